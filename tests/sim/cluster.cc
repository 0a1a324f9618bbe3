#include "tests/sim/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "common/proto/versions.h"
#include "router/dispatch/block_hashes.h"

namespace tandem::sim {

using std::chrono::milliseconds;

class Cluster::Observer final : public router::DispatchObserver {
 public:
  void on_queue_wait(double) override {}
  void on_prefill_to_decode(double) override {}
  void on_transfer(double, const std::string&) override {}
  void on_event(int, std::string, std::string, uint64_t) override {}
};

Cluster::Cluster(const ClusterOptions& options)
    : world(options.seed),
      hub(world.clock()),
      options_(options),
      observer_(std::make_unique<Observer>()),
      // The dispatcher shares sinks; this one lives as long as the cluster.
      sink_(std::shared_ptr<router::AnswerSink>(), this) {
  if (options_.real_inproc) {
    options_.prefill.hub = &hub;
    options_.decode.hub = &hub;
    world.after_each = [this] {
      hub.run();
      if (const auto due = hub.next_due()) world.after(*due - world.now(), [] {});
    };
  }
  make_dispatcher();
  tick_router();
  for (int i = 0; i < options_.prefills; ++i) {
    nodes_["prefill-" + std::to_string(i)].role = control::ROLE_PREFILL;
  }
  for (int i = 0; i < options_.decodes; ++i) {
    nodes_["decode-" + std::to_string(i)].role = control::ROLE_DECODE;
  }
  for (const auto& [name, slot] : nodes_) start(name);
  world.run_for(milliseconds(20));
}

Cluster::~Cluster() = default;

void Cluster::make_dispatcher() {
  auto o = options_.dispatch;
  o.generation = next_generation_++;
  dispatcher_ = std::make_unique<router::Dispatcher>(
      router::Dispatcher::Deps{
          .clock = world.clock(),
          .policy = policy_,
          .observer = *observer_,
          .send = [this](router::NodeHandle h, const control::ToNode& m) { to_node(h, m); },
          .close =
              [this](router::NodeHandle h) {
                for (auto& [name, slot] : nodes_) {
                  if (slot.handle == h && slot.admitted) {
                    world.after(Duration{0}, [this, name = name] { disconnect(name, false); });
                  }
                }
              }},
      o);
}

void Cluster::tick_router() {
  world.after(milliseconds(5), [this] {
    dispatcher_->tick();
    tick_router();
  });
}

control::Hello Cluster::hello_of(const Slot& slot) const {
  const NodeOptions& o = slot.role == control::ROLE_PREFILL ? options_.prefill : options_.decode;
  control::Hello hello;
  hello.set_protocol_version(proto::kControlVersion);
  hello.set_role(slot.role);
  hello.set_node_id(slot.process->name());
  hello.set_generation(slot.process->generation().value);
  auto& c = *hello.mutable_compatibility();
  c.set_model_fingerprint("ledger");
  c.set_tokenizer_hash("none");
  const kv::KvLayout layout = o.kv_layout();
  c.set_kv_format(std::string(kv::to_string(layout.format)));
  c.set_kv_block_tokens(kv::kBlockTokens);
  c.set_kv_layers(layout.layers);
  c.set_kv_heads(layout.kv_heads);
  c.set_kv_head_dim(layout.head_dim);
  c.set_kv_codec_version(1);
  c.set_dtype("bfloat16");
  c.set_transport_protocol_version(proto::kKvFrameVersion);
  hello.set_transport("inproc");
  hello.set_transport_address(slot.process->transport().address());
  hello.set_model_id("ledger");
  hello.set_vocab_size(o.vocab);
  hello.set_max_context(o.max_context);
  hello.set_kv_blocks(o.blocks);
  hello.set_kv_block_bytes(slot.process->kv().layout().block_bytes());
  hello.set_max_sequences(slot.role == control::ROLE_PREFILL ? o.prefill.max_sequences
                                                             : o.decode.max_sequences);
  hello.set_max_batch_tokens(o.prefill.max_batch_tokens);
  hello.set_engine("ledger");
  hello.set_self_test_passed(true);
  return hello;
}

void Cluster::start(const std::string& name) {
  Slot& slot = nodes_.at(name);
  ASSERT_EQ(slot.process, nullptr);
  const uint64_t generation = next_generation_++;
  if (slot.role == control::ROLE_PREFILL) {
    slot.process = std::make_unique<SimPrefill>(world, network, name, generation, options_.prefill);
  } else {
    slot.process = std::make_unique<SimDecode>(world, network, name, generation, options_.decode);
  }
  connect(name);
}

void Cluster::connect(const std::string& name) {
  Slot& slot = nodes_.at(name);
  const uint64_t connection = next_connection_++;
  slot.connection = connection;
  slot.handle = router::NodeHandle{connection};
  slot.link = {};
  slot.process->to_router = [this, name, connection](control::ToRouter m) {
    to_router(name, connection, std::move(m));
  };
  world.after(milliseconds(1), [this, name, connection] {
    Slot& s = nodes_.at(name);
    if (s.connection != connection || !s.process) return;
    const auto welcome = dispatcher_->on_node_connected(s.handle, hello_of(s));
    EXPECT_TRUE(welcome.admitted()) << welcome.reason();
    s.admitted = welcome.admitted();
    beat(name, connection);
  });
}

void Cluster::beat(const std::string& name, uint64_t connection) {
  Slot& slot = nodes_.at(name);
  if (slot.connection != connection || !slot.process) return;
  control::ToRouter m;
  *m.mutable_heartbeat() = slot.process->heartbeat();
  to_router(name, connection, std::move(m));
  world.after(milliseconds(options_.dispatch.heartbeat_ms),
              [this, name, connection] { beat(name, connection); });
}

// The connection of a node ends. Both sides notice, each in its own time.
void Cluster::disconnect(const std::string& name, bool tell_router) {
  Slot& slot = nodes_.at(name);
  if (slot.connection == 0) return;
  const router::NodeHandle handle = slot.handle;
  const bool admitted = std::exchange(slot.admitted, false);
  slot.connection = 0;
  if (admitted && tell_router) {
    world.after(milliseconds(1), [this, handle] { dispatcher_->on_node_disconnected(handle); });
  }
  if (!slot.process) return;
  slot.process->to_router = nullptr;
  slot.process->disconnect();
  world.after(milliseconds(20), [this, name] {
    if (nodes_.at(name).process && nodes_.at(name).connection == 0) connect(name);
  });
}

void Cluster::crash(const std::string& name) {
  Slot& slot = nodes_.at(name);
  if (!slot.process) return;
  if (options_.real_inproc) hub.kill(slot.process->transport().address());
  slot.process.reset();
  disconnect(name, true);
}

void Cluster::restart_router() {
  // Destroying the old one tells nobody anything: its sockets just close.
  for (auto& [id, a] : answers_) a.cancelled = a.cancelled || a.ends == 0;
  dispatcher_.reset();
  make_dispatcher();
  for (auto& [name, slot] : nodes_) {
    world.after(world.draw(Duration{0}, milliseconds(5)), [this, name = name, c = slot.connection] {
      if (nodes_.at(name).connection == c) disconnect(name, false);
    });
  }
}

void Cluster::hold_link(const std::string& name, bool hold) {
  Slot& slot = nodes_.at(name);
  slot.link.held = hold;
  if (hold) return;
  for (auto& work : std::exchange(slot.link.waiting, {})) work();
}

void Cluster::deliver(Slot& slot, TimePoint& last, std::function<void()> work) {
  if (slot.link.held) {
    slot.link.waiting.push_back(std::move(work));
    return;
  }
  const TimePoint at = std::max(
      last, world.now() + world.draw(options_.control_min_delay, options_.control_max_delay));
  last = at;
  world.after(at - world.now(), std::move(work));
}

void Cluster::to_node(router::NodeHandle handle, const control::ToNode& message) {
  for (auto& [name, slot] : nodes_) {
    if (slot.handle != handle || slot.connection == 0) continue;
    if (swallow_to_node && swallow_to_node(name, message)) return;
    deliver(slot, slot.link.last_to_node, [this, name = name, c = slot.connection, message] {
      Slot& s = nodes_.at(name);
      if (s.connection == c && s.process) s.process->receive(message);
    });
    return;
  }
}

void Cluster::to_router(const std::string& name, uint64_t connection, control::ToRouter message) {
  Slot& slot = nodes_.at(name);
  if (slot.connection != connection) return;
  if (swallow_to_router && swallow_to_router(name, message)) return;
  deliver(slot, slot.link.last_to_router, [this, name, connection, message = std::move(message)] {
    Slot& s = nodes_.at(name);
    if (s.connection == connection && s.admitted) dispatcher_->on_message(s.handle, message);
  });
}

uint64_t Cluster::submit(const LedgerRequest& request) {
  const uint64_t id = next_request_++;
  ClientAnswer& a = answers_[id];
  a.request = request;
  a.submitted = a.last_update = world.now();
  router::TaskSpec spec;
  spec.prompt = request.prompt;
  spec.block_hashes = router::hash_blocks(request.prompt);
  spec.max_new_tokens = request.max_new_tokens;
  spec.min_new_tokens = request.min_new_tokens;
  spec.stop_tokens = request.stop_tokens;
  spec.sampling.temperature = 0;
  spec.seed = request.seed;
  std::vector<router::Submission> choices(1);
  choices[0].id = RequestId{id};
  choices[0].spec = std::move(spec);
  dispatcher_->submit(std::move(choices), sink_);
  return id;
}

uint64_t Cluster::submit_random(size_t prompt, uint32_t max_new_tokens) {
  return submit({.prompt = random_prompt(world, prompt),
                 .max_new_tokens = max_new_tokens,
                 .min_new_tokens = 0,
                 .stop_tokens = {},
                 .seed = world.draw()});
}

void Cluster::cancel(uint64_t id) {
  if (answers_.at(id).ends > 0) return;
  answers_.at(id).cancelled = true;
  dispatcher_->cancel(RequestId{id});
}

void Cluster::on_update(router::AnswerUpdate update) {
  ClientAnswer& a = answers_.at(update.id.value);
  if (a.ends > 0 || a.cancelled) ++a.updates_after_end;
  if (!update.tokens.empty() && !a.first_token) a.first_token = world.now();
  for (const auto& t : update.tokens) a.tokens.push_back(t.id);
  for (const auto& t : update.prompt_scores) a.scores.push_back(t.id);
  a.longest_pause = std::max(a.longest_pause, world.now() - a.last_update);
  a.last_update = world.now();
  if (!update.finish && !update.error) return;
  ++a.ends;
  a.ended_at = world.now();
  a.finish = update.finish;
  a.error = update.error;
}

size_t Cluster::open() const {
  return static_cast<size_t>(std::ranges::count_if(
      answers_, [](const auto& a) { return a.second.ends == 0 && !a.second.cancelled; }));
}

bool Cluster::all_idle() const {
  return std::ranges::all_of(
      nodes_, [](const auto& n) { return !n.second.process || n.second.process->idle(); });
}

void Cluster::expect_all_answers_right() {
  const uint32_t context = std::min(options_.prefill.max_context, options_.decode.max_context);
  for (const auto& [id, a] : answers_) {
    SCOPED_TRACE("request " + std::to_string(id));
    EXPECT_EQ(a.updates_after_end, 0);
    const auto whole = ledger_answer(a.request, kVocab, context);
    if (a.cancelled || a.error) {
      // What was delivered before the end is right as far as it goes.
      ASSERT_LE(a.tokens.size(), whole.size());
      EXPECT_TRUE(std::equal(a.tokens.begin(), a.tokens.end(), whole.begin()));
      EXPECT_EQ(a.ends, a.cancelled ? 0 : 1);
      continue;
    }
    EXPECT_EQ(a.ends, 1);
    EXPECT_EQ(a.tokens, whole);
    const bool stopped =
        whole.size() < a.request.max_new_tokens && a.request.prompt.size() + whole.size() < context;
    EXPECT_EQ(a.finish, stopped ? router::FinishKind::kStop : router::FinishKind::kLength);
  }
}

void Cluster::expect_nothing_leaked() {
  EXPECT_TRUE(world.run_until([&] { return all_idle(); }, std::chrono::seconds(120)))
      << "a node still holds a request, a lease or a transfer";
  for (const auto& [name, slot] : nodes_) {
    if (!slot.process) continue;
    SCOPED_TRACE(name);
    EXPECT_EQ(slot.process->blocks_used(), 0U);
    EXPECT_EQ(slot.process->mismatches(), 0U);
  }
  EXPECT_EQ(dispatcher_->open_requests(), 0U);
}

}  // namespace tandem::sim

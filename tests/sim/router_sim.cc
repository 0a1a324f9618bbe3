#include "tests/sim/router_sim.h"

#include <gtest/gtest.h>

#include <utility>

#include "common/proto/versions.h"

namespace tandem::router::sim {

using std::chrono::milliseconds;

TokenId token_at(uint64_t seed, size_t position) {
  uint64_t z = seed * 0x9e3779b97f4a7c15ULL + position;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  return static_cast<TokenId>((z ^ (z >> 27)) % 1000);
}

void Client::on_update(AnswerUpdate update) {
  Answer& a = answers[update.id.value];
  if (a.ends > 0) ++a.updates_after_end;
  for (const AnswerToken& t : update.tokens) a.tokens.push_back(t.id);
  for (const AnswerToken& t : update.prompt_scores) a.scores.push_back(t.id);
  if (update.finish) a.finish = update.finish;
  if (update.error) a.error = update.error;
  a.retry_after = std::max(a.retry_after, update.retry_after_seconds);
  if (update.finish || update.error) ++a.ends;
}

FakeNode::FakeNode(Cluster& cluster, control::Role role, std::string id) : cluster_(cluster) {
  hello.set_protocol_version(proto::kControlVersion);
  hello.set_role(role);
  hello.set_node_id(std::move(id));
  hello.set_transport("inproc");
  hello.set_transport_address(hello.node_id());
  hello.set_self_test_passed(true);
  hello.set_max_context(4096);
  hello.set_vocab_size(1000);
  hello.set_max_sequences(8);
  hello.set_max_batch_tokens(512);
  hello.mutable_compatibility()->set_model_fingerprint("model");
  hello.mutable_compatibility()->set_kv_block_tokens(16);
}

control::Welcome FakeNode::connect() {
  handle = NodeHandle{cluster_.next_handle_++};
  hello.set_generation(cluster_.random() | 1U);
  hello.set_kv_blocks(options.kv_blocks);
  control::Welcome welcome = cluster_.dispatcher->on_node_connected(handle, hello);
  up = welcome.admitted();
  if (up) heartbeat();
  return welcome;
}

void FakeNode::crash(bool silently) {
  if (!up) return;
  up = false;
  ++incarnation_;
  running.clear();
  reservations.clear();
  attempt_.clear();
  if (!silently) cluster_.dispatcher->on_node_disconnected(handle);
}

int FakeNode::count(control::ToNode::MessageCase kind) const {
  int n = 0;
  for (const control::ToNode& m : inbox) n += m.message_case() == kind ? 1 : 0;
  return n;
}

void FakeNode::send(const control::ToRouter& message, Duration delay) {
  const NodeHandle from = handle;
  const uint64_t incarnation = incarnation_;
  cluster_.at(delay + options.network, [this, message, from, incarnation] {
    if (up && incarnation == incarnation_) cluster_.dispatcher->on_message(from, message);
  });
}

void FakeNode::heartbeat() {
  control::ToRouter message;
  control::Heartbeat& beat = *message.mutable_heartbeat();
  if (!options.wedged) ++tick_;
  beat.set_tick(tick_ + 1);
  beat.set_running(static_cast<uint32_t>(running.size()));
  beat.set_kv_blocks_free(options.kv_blocks);
  beat.set_prefill_tokens_per_second(options.claimed_rate);
  beat.set_draining(draining);
  send(message, {});
}

void FakeNode::on_reserve(const control::Reserve& order) {
  if (options.silent_reserve) return;
  control::ToRouter message;
  control::Reserved& reply = *message.mutable_reserved();
  reply.set_transfer_id(order.transfer_id());
  reply.set_request_id(order.task().request_id());
  const bool refuse = draining || cluster_.chance(options.refuse_reservation);
  reply.set_granted(!refuse);
  if (refuse) {
    reply.set_error_code("resource_exhausted");
    reply.set_error("KV exhausted");
  } else {
    reservations[order.transfer_id()] = order.task().request_id();
    running[order.task().request_id()] = order.task();
  }
  send(message, {});
}

void FakeNode::deliver_kv(const control::Prefill& order, uint32_t first_index, Duration delay) {
  const uint64_t transfer = order.transfer_id();
  const uint64_t generation = hello.generation();
  (void)generation;
  FakeNode* decode = cluster_.find(order.decode_node());
  if (cluster_.chance(options.lose_transfer)) return;  // nobody says anything
  const uint64_t incarnation = incarnation_;
  const control::Task task = order.task();
  const uint64_t decode_generation = order.decode_generation();
  cluster_.at(delay, [=, this] {
    if (!up || incarnation != incarnation_ || !running.contains(task.request_id())) return;
    running.erase(task.request_id());
    const bool open = decode != nullptr && decode->up &&
                      decode->hello.generation() == decode_generation &&
                      decode->reservations.contains(transfer);
    control::ToRouter message;
    if (!open) {
      control::Failed& failed = *message.mutable_failed();
      failed.set_request_id(task.request_id());
      failed.set_transfer_id(transfer);
      failed.set_code("transport");
      failed.set_detail("the receiver is gone");
      failed.set_retryable(true);
      send(message, {});
      return;
    }
    control::TransferDone& done = *message.mutable_transfer_done();
    done.set_transfer_id(transfer);
    done.set_request_id(task.request_id());
    done.set_wire_bytes(1000);
    done.set_raw_bytes(2000);
    send(message, {});
    decode->reservations.erase(transfer);
    control::ToRouter admitted;
    admitted.mutable_admitted()->set_request_id(task.request_id());
    admitted.mutable_admitted()->set_transfer_id(transfer);
    decode->send(admitted, {});
    control::Task rest = task;
    rest.add_tokens(token_at(task.sampling().seed(), static_cast<size_t>(task.tokens_size())));
    rest.set_max_new_tokens(task.max_new_tokens() - 1);
    decode->decode_from(task.request_id(), rest, first_index + 1, decode->options.step_time);
  });
}

void FakeNode::on_prefill(const control::Prefill& order) {
  const control::Task& task = order.task();
  running[task.request_id()] = task;
  if (options.silent_prefill) return;
  const auto index = static_cast<uint32_t>(task.tokens_size()) - task.prompt_tokens();
  const uint64_t incarnation = incarnation_;
  cluster_.at(options.prefill_time, [this, order, index, incarnation] {
    const control::Task& t = order.task();
    if (!up || incarnation != incarnation_ || !running.contains(t.request_id())) return;
    control::ToRouter message;
    if (cluster_.chance(options.fail_prefill)) {
      running.erase(t.request_id());
      control::Failed& failed = *message.mutable_failed();
      failed.set_request_id(t.request_id());
      failed.set_transfer_id(order.transfer_id());
      failed.set_code("internal");
      failed.set_detail("out of luck");
      failed.set_retryable(true);
      send(message, {});
      return;
    }
    control::PrefillDone& done = *message.mutable_prefill_done();
    done.set_transfer_id(order.transfer_id());
    done.set_request_id(t.request_id());
    done.set_cached_tokens(options.cached_tokens);
    if (t.prompt_logprobs() >= 0) {
      for (uint32_t i = 1; i < t.prompt_tokens(); ++i) {
        done.add_prompt_scores()->set_id(t.tokens(static_cast<int>(i)));
      }
    }
    if (t.max_new_tokens() > 0) {
      done.mutable_first()->set_id(
          token_at(t.sampling().seed(), static_cast<size_t>(t.tokens_size())));
    }
    if (t.max_new_tokens() <= 1) done.set_finish(control::FINISH_LENGTH);
    // The first token may come after what decode already makes of it.
    send(message, std::chrono::milliseconds(cluster_.random() % 30));
    if (order.transfer_id() != 0) {
      deliver_kv(order, index, options.transfer_time);
    } else {
      running.erase(t.request_id());
    }
  });
}

void FakeNode::decode_from(uint64_t request, control::Task task, uint32_t first_index,
                           Duration delay) {
  (void)first_index;
  running[request] = std::move(task);
  if (options.silent_decode) return;
  const uint64_t attempt = next_attempt_++;
  attempt_[request] = attempt;
  cluster_.at(delay, [this, request, attempt] { step(request, attempt); });
}

void FakeNode::step(uint64_t request, uint64_t attempt) {
  const auto it = running.find(request);
  if (!up || it == running.end() || attempt_[request] != attempt) return;
  control::Task& task = it->second;
  auto index = static_cast<uint32_t>(task.tokens_size()) - task.prompt_tokens();
  control::ToRouter message;
  control::TokenRun& run = *message.mutable_tokens()->add_runs();
  run.set_request_id(request);
  if (index > 0 && cluster_.chance(options.repeat_tokens)) {
    --index;
    run.add_tokens()->set_id(task.tokens(task.tokens_size() - 1));
  }
  run.set_first_index(index);
  if (task.max_new_tokens() > 0) {
    const TokenId next = token_at(task.sampling().seed(), static_cast<size_t>(task.tokens_size()));
    run.add_tokens()->set_id(next);
    task.add_tokens(next);
    task.set_max_new_tokens(task.max_new_tokens() - 1);
  }
  if (task.max_new_tokens() == 0) {
    run.set_finish(control::FINISH_LENGTH);
    running.erase(it);
    send(message, {});
    return;
  }
  send(message, {});
  cluster_.at(options.step_time, [this, request, attempt] { step(request, attempt); });
}

void FakeNode::receive(const control::ToNode& message) {
  if (!up) return;
  inbox.push_back(message);
  switch (message.message_case()) {
    case control::ToNode::kReserve:
      on_reserve(message.reserve());
      break;
    case control::ToNode::kPrefill:
      on_prefill(message.prefill());
      break;
    case control::ToNode::kGenerate: {
      const control::Task& task = message.generate().task();
      control::ToRouter admitted;
      admitted.mutable_admitted()->set_request_id(task.request_id());
      send(admitted, {});
      decode_from(task.request_id(), task, 0, options.prefill_time);
      break;
    }
    case control::ToNode::kCancel: {
      running.erase(message.cancel().request_id());
      const uint64_t id = message.cancel().request_id();
      std::erase_if(reservations, [&](const auto& entry) { return entry.second == id; });
      break;
    }
    case control::ToNode::kPeerGone: {
      // A decode node drops what the dead writer had open here.
      for (const auto& [transfer, request] : reservations) running.erase(request);
      reservations.clear();
      break;
    }
    default:
      break;
  }
}

Cluster::Cluster(uint64_t seed, DispatchOptions options) : random(seed) {
  options.generation = 7;
  dispatcher =
      std::make_unique<Dispatcher>(Dispatcher::Deps{
                                       .clock = clock,
                                       .policy = policy_,
                                       .observer = *this,
                                       .send =
                                           [this](NodeHandle to, const control::ToNode& message) {
                                             for (auto& [id, node] : nodes) {
                                               if (node->handle != to) continue;
                                               FakeNode* target = node.get();
                                               at(target->options.network, [target, to, message] {
                                                 if (target->handle == to) target->receive(message);
                                               });
                                             }
                                           },
                                       .close = [](NodeHandle) {},
                                   },
                                   std::move(options));
}

FakeNode& Cluster::add(control::Role role, const std::string& id, NodeOptions node_options) {
  auto& node = nodes[id] = std::make_unique<FakeNode>(*this, role, id);
  node->options = node_options;
  const control::Welcome welcome = node->connect();
  EXPECT_TRUE(welcome.admitted()) << welcome.reason();
  return *node;
}

FakeNode* Cluster::find(const std::string& id) {
  const auto it = nodes.find(id);
  return it == nodes.end() ? nullptr : it->second.get();
}

uint64_t Cluster::submit(uint32_t prompt_tokens, uint32_t new_tokens) {
  TaskSpec spec;
  for (uint32_t i = 0; i < prompt_tokens; ++i)
    spec.prompt.push_back(static_cast<TokenId>(random() % 1000));
  spec.max_new_tokens = new_tokens;
  spec.seed = random();
  return submit(std::move(spec));
}

uint64_t Cluster::submit(TaskSpec spec) {
  const uint64_t id = next_request_++;
  spec.block_hashes = hash_blocks(spec.prompt);
  specs[id] = spec;
  std::vector<Submission> choices;
  choices.push_back({RequestId{id}, std::move(spec)});
  dispatcher->submit(std::move(choices), client);
  return id;
}

std::vector<TokenId> Cluster::expected(uint64_t id) const {
  const TaskSpec& spec = specs.at(id);
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < spec.max_new_tokens; ++i) {
    tokens.push_back(token_at(spec.seed, spec.prompt.size() + i));
  }
  return tokens;
}

void Cluster::expect_right_answer(uint64_t id) {
  const Client::Answer& a = answer(id);
  EXPECT_EQ(a.ends, 1) << "request " << id;
  EXPECT_FALSE(a.error) << "request " << id << ": " << a.error->detail;
  EXPECT_EQ(a.finish, FinishKind::kLength) << "request " << id;
  EXPECT_EQ(a.tokens, expected(id)) << "request " << id;
}

void Cluster::at(Duration delay, std::function<void()> event) {
  timeline_.emplace(clock.now().since_start + delay, std::move(event));
}

void Cluster::run(Duration time) {
  const TimePoint end = clock.now() + time;
  constexpr Duration kStep = milliseconds(1);
  while (clock.now() < end) {
    clock.advance(kStep);
    while (!timeline_.empty() && timeline_.begin()->first <= clock.now().since_start) {
      auto event = std::move(timeline_.begin()->second);
      timeline_.erase(timeline_.begin());
      event();
    }
    const int64_t ms = clock.now().since_start / milliseconds(1);
    if (ms % 5 == 0) dispatcher->tick();
    if (ms % 500 == 0) {
      for (auto& [id, node] : nodes) {
        if (node->up) node->heartbeat();
      }
    }
  }
}

void Cluster::settle(Duration limit) {
  const TimePoint end = clock.now() + limit;
  while (dispatcher->open_requests() > 0 && clock.now() < end) run(milliseconds(50));
  EXPECT_EQ(dispatcher->open_requests(), 0U) << "requests still open";
  run(milliseconds(500));  // what is on its way arrives
}

void Cluster::expect_no_leaks() {
  EXPECT_EQ(dispatcher->open_requests(), 0U);
  const auto snapshot = dispatcher->snapshot();
  EXPECT_EQ(snapshot->queue_depth, 0U);
  for (const NodeStatus& node : snapshot->nodes) EXPECT_EQ(node.open_requests, 0U) << node.id;
  for (const auto& [id, node] : nodes) {
    EXPECT_TRUE(node->running.empty()) << id << " holds " << node->running.size() << " requests";
    EXPECT_TRUE(node->reservations.empty())
        << id << " holds " << node->reservations.size() << " reservations";
  }
  for (const auto& [id, a] : client->answers) {
    EXPECT_LE(a.ends, 1) << "request " << id;
    EXPECT_EQ(a.updates_after_end, 0) << "request " << id;
  }
}

}  // namespace tandem::router::sim

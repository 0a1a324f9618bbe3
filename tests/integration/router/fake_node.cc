#include "tests/integration/router/fake_node.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "common/base/check.h"
#include "common/net/control_channel.h"
#include "common/net/io_thread.h"
#include "common/obs/metrics.h"

namespace tandem::router::test {

struct FakeNode::Impl {
  Impl(FakeNodeOptions o, const Clock& c, Logger l)
      : options(std::move(o)), clock(c), log(std::move(l)), io("fake-node") {}

  struct Answer {
    Script script;
    size_t sent = 0;
    uint32_t base = 0;
  };

  control::Hello hello() const {
    control::Hello h;
    h.set_role(options.role);
    h.set_node_id(options.id);
    h.set_transport("inproc");
    h.set_transport_detail("inproc (test)");
    h.set_engine("fake");
    h.set_self_test_passed(true);
    h.set_vocab_size(options.vocab);
    h.set_max_context(1U << 20);
    h.set_kv_blocks(options.kv_blocks);
    h.set_max_sequences(options.max_sequences);
    h.set_max_batch_tokens(1U << 20);
    h.mutable_compatibility()->set_model_fingerprint(options.model_fingerprint);
    h.mutable_compatibility()->set_tokenizer_hash(options.tokenizer_hash);
    return h;
  }

  void heartbeat() {
    control::ToRouter message;
    control::Heartbeat& beat = *message.mutable_heartbeat();
    beat.set_tick(++ticks);
    beat.set_running(static_cast<uint32_t>(answers.size()));
    beat.set_kv_blocks_free(options.kv_blocks);
    beat.set_tokens_processed(tokens);
    client->send(message);
  }

  void generate(const control::Task& task) {
    {
      std::lock_guard lock(mutex);
      if (seen.size() < 10000) seen.push_back(task);
    }
    ++task_count;
    control::ToRouter admitted_message;
    admitted_message.mutable_admitted()->set_request_id(task.request_id());
    client->send(admitted_message);
    Answer answer;
    answer.base = static_cast<uint32_t>(task.tokens_size()) - task.prompt_tokens();
    if (options.script) {
      answer.script = options.script(task);
    } else {
      for (uint32_t i = 0; i < task.max_new_tokens(); ++i)
        answer.script.tokens.emplace_back().set_id(5);
    }
    running.fetch_add(1);
    answers[task.request_id()] = std::move(answer);
    control::ToRouter scores;
    if (task.prompt_logprobs() >= 0) {
      control::TokenRun& run = *scores.mutable_tokens()->add_runs();
      run.set_request_id(task.request_id());
      for (uint32_t i = 1; i < task.prompt_tokens(); ++i) {
        control::Token& t = *run.add_prompt_scores();
        t.set_id(task.tokens(static_cast<int>(i)));
        t.set_logprob(-1.0F - static_cast<float>(i));
      }
      client->send(scores);
    }
    if (options.token_time == Duration{}) step();
  }

  // One token of every answer, or all of them at once.
  void step() {
    control::ToRouter message;
    control::Tokens& out = *message.mutable_tokens();
    for (auto it = answers.begin(); it != answers.end();) {
      Answer& a = it->second;
      if (a.sent >= options.hold_after) {
        ++it;
        continue;
      }
      control::TokenRun& run = *out.add_runs();
      run.set_request_id(it->first);
      run.set_first_index(a.base + static_cast<uint32_t>(a.sent));
      const size_t count = options.token_time == Duration{}
                               ? a.script.tokens.size() - a.sent
                               : std::min<size_t>(1, a.script.tokens.size() - a.sent);
      for (size_t i = 0; i < count; ++i) *run.add_tokens() = a.script.tokens[a.sent++];
      tokens += count;
      if (a.sent == a.script.tokens.size()) {
        run.set_finish(a.script.finish);
        it = answers.erase(it);
        running.fetch_sub(1);
      } else {
        ++it;
      }
    }
    if (out.runs_size() > 0) client->send(message);
  }

  void on_message(control::ToNode&& message) {
    if (message.has_generate()) generate(message.generate().task());
    if (message.has_cancel()) {
      // In this order: who has seen the cancellation may ask what still runs.
      if (answers.erase(message.cancel().request_id()) > 0) running.fetch_sub(1);
      ++cancel_count;
    }
  }

  FakeNodeOptions options;
  const Clock& clock;
  const Logger log;
  MetricsRegistry metrics;
  IoThread io;
  std::unique_ptr<ControlClient> client;
  std::unique_ptr<IoThread::Timer> beat_timer, step_timer;
  std::map<uint64_t, Answer> answers;
  uint64_t ticks = 0;
  uint64_t tokens = 0;
  std::atomic<bool> admitted{false};
  std::atomic<uint64_t> task_count{0}, cancel_count{0}, running{0};
  mutable std::mutex mutex;  // guards the two below
  std::string refusal;
  std::vector<control::Task> seen;
};

FakeNode::FakeNode(uint16_t control_port, FakeNodeOptions options, const Clock& clock, Logger log)
    : impl_(std::make_unique<Impl>(std::move(options), clock, std::move(log))) {
  Impl& i = *impl_;
  ControlClient::Callbacks callbacks{
      .make_hello = [&i] { return i.hello(); },
      .on_admitted =
          [&i](const control::Welcome&) {
            i.admitted = true;
            i.heartbeat();
          },
      .on_refused =
          [&i](const ControlClient::Refusal& refusal) {
            std::lock_guard lock(i.mutex);
            i.refusal = refusal.reason;
          },
      .on_message = [&i](control::ToNode&& message) { i.on_message(std::move(message)); },
      .on_disconnected = [&i](const Error&) { i.admitted = false; },
  };
  ControlOptions control;
  control.shared_key = i.options.shared_key;
  auto client = ControlClient::create(
      "127.0.0.1:" + std::to_string(control_port), random_generation(), control,
      std::move(callbacks), {.io = i.io, .clock = i.clock, .log = i.log, .metrics = i.metrics});
  TANDEM_CHECK(client.has_value(), "the fake node's address is good");
  i.client = std::move(*client);
  i.beat_timer = i.io.every(std::chrono::milliseconds(200), [&i] {
    if (i.admitted) i.heartbeat();
  });
  if (i.options.token_time != Duration{}) {
    i.step_timer = i.io.every(i.options.token_time, [&i] { i.step(); });
  }
  i.io.start();
}

FakeNode::~FakeNode() {
  impl_->io.stop();
  impl_->beat_timer.reset();
  impl_->step_timer.reset();
  impl_->client.reset();
}

bool FakeNode::admitted() const { return impl_->admitted; }
uint64_t FakeNode::tasks() const { return impl_->task_count; }
uint64_t FakeNode::cancels() const { return impl_->cancel_count; }
uint64_t FakeNode::running() const { return impl_->running; }
std::string FakeNode::refusal() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->refusal;
}
std::vector<control::Task> FakeNode::seen() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->seen;
}

}  // namespace tandem::router::test

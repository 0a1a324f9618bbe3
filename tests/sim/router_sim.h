#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/proto/control.pb.h"
#include "router/dispatch/block_hashes.h"
#include "router/dispatch/dispatcher.h"

namespace tandem::router::sim {

inline constexpr auto kPrefill = control::ROLE_PREFILL;
inline constexpr auto kDecode = control::ROLE_DECODE;

// What the model would say: the token at an absolute position depends on seed and position alone,
// as the counter-based sampler promises, so any node continues any answer.
[[nodiscard]] TokenId token_at(uint64_t seed, size_t position);

// A client: collects its answer and checks that nothing follows the end.
class Client final : public AnswerSink {
 public:
  void on_update(AnswerUpdate update) override;
  struct Answer {
    std::vector<TokenId> tokens;
    std::vector<TokenId> scores;
    std::optional<FinishKind> finish;
    std::optional<Error> error;
    uint32_t retry_after = 0;
    int ends = 0;
    int updates_after_end = 0;
    [[nodiscard]] bool ended() const { return ends > 0; }
  };
  std::map<uint64_t, Answer> answers;
};

struct NodeOptions {
  Duration prefill_time = std::chrono::milliseconds(40);
  Duration transfer_time = std::chrono::milliseconds(5);
  Duration step_time = std::chrono::milliseconds(10);
  Duration network = std::chrono::milliseconds(1);
  uint32_t kv_blocks = 1000;
  double claimed_rate = 5000;     // prompt tokens a second, says its heartbeat
  uint32_t cached_tokens = 0;     // of every prompt, says a prefill node
  double refuse_reservation = 0;  // probability of "KV exhausted"
  double fail_prefill = 0;        // probability of Failed(transport)
  double lose_transfer = 0;       // probability that KV never arrives and nobody says so
  double repeat_tokens = 0;       // probability that a run overlaps what was sent
  bool silent_prefill = false;    // takes Prefill and never answers, heartbeats go on
  bool silent_reserve = false;    // takes Reserve and never answers
  bool silent_decode = false;     // admits, then sends no token
  bool wedged = false;            // heartbeats, but the scheduler's tick stands still
};

class Cluster;

// A node that behaves as the protocol says, or breaks it as its options say. Scripted by the test.
class FakeNode {
 public:
  FakeNode(Cluster& cluster, control::Role role, std::string id);
  control::Welcome connect();  // a new connection, a new generation
  void crash(bool silently);   // silently: the connection stays open and mute (half-open)
  void receive(const control::ToNode& message);
  void heartbeat();

  NodeOptions options;
  control::Hello hello;
  NodeHandle handle;
  bool up = false;
  bool draining = false;
  // What a leak would leave behind.
  std::map<uint64_t, control::Task> running;  // request -> task in prefill, decode or reservation
  std::map<uint64_t, uint64_t> reservations;  // transfer -> request
  std::vector<control::ToNode> inbox;         // everything that ever came
  [[nodiscard]] int count(control::ToNode::MessageCase kind) const;
  // Sends to the router after `delay`, unless the node has crashed meanwhile.
  void send(const control::ToRouter& message, Duration delay);

 private:
  void on_reserve(const control::Reserve& order);
  void on_prefill(const control::Prefill& order);
  void decode_from(uint64_t request, control::Task task, uint32_t first_index, Duration delay);
  void step(uint64_t request, uint64_t attempt);
  void deliver_kv(const control::Prefill& order, uint32_t first_index, Duration delay);
  friend class Cluster;
  Cluster& cluster_;
  std::map<uint64_t, uint64_t> attempt_;  // request -> attempt of the step loop
  uint64_t next_attempt_ = 1;
  uint64_t tick_ = 0;
  uint64_t incarnation_ = 0;
};

// Router dispatcher, nodes and clients on one simulated clock.
class Cluster : public DispatchObserver {
 public:
  explicit Cluster(uint64_t seed, DispatchOptions options = {});

  FakeNode& add(control::Role role, const std::string& id, NodeOptions node_options = {});
  [[nodiscard]] FakeNode* find(const std::string& id);

  // Submits one request and returns its id.
  uint64_t submit(uint32_t prompt_tokens, uint32_t new_tokens);
  uint64_t submit(TaskSpec spec);
  [[nodiscard]] Client::Answer& answer(uint64_t id) { return client->answers[id]; }
  // The answer a single node would have given.
  [[nodiscard]] std::vector<TokenId> expected(uint64_t id) const;
  void expect_right_answer(uint64_t id);

  void at(Duration delay, std::function<void()> event);
  void run(Duration time);
  // Runs until nothing is open, at most `limit`.
  void settle(Duration limit);
  // No node holds anything, the dispatcher has forgotten everything.
  void expect_no_leaks();

  void on_queue_wait(double) override {}
  void on_prefill_to_decode(double seconds) override { prefill_to_decode.push_back(seconds); }
  void on_transfer(double, const std::string&) override {}
  void on_event(int, std::string message, std::string node_id, uint64_t) override {
    events.push_back(node_id + ": " + message);
  }

  ManualClock clock;
  std::mt19937_64 random;
  std::shared_ptr<Client> client = std::make_shared<Client>();
  std::unique_ptr<Dispatcher> dispatcher;
  std::map<std::string, std::unique_ptr<FakeNode>> nodes;
  std::map<uint64_t, TaskSpec> specs;
  std::vector<double> prefill_to_decode;
  std::vector<std::string> events;

  [[nodiscard]] bool chance(double p) {
    return p > 0 && std::uniform_real_distribution<double>(0, 1)(random) < p;
  }

 private:
  friend class FakeNode;
  PredictedFinishPolicy policy_;
  std::multimap<Duration, std::function<void()>> timeline_;
  uint64_t next_handle_ = 1;
  uint64_t next_request_ = 1;
};

// One prefill and one decode node.
struct Pair : Cluster {
  explicit Pair(DispatchOptions options = {}, NodeOptions p = {}, NodeOptions d = {})
      : Cluster(1, std::move(options)),
        prefill(add(control::ROLE_PREFILL, "prefill-0", p)),
        decode(add(control::ROLE_DECODE, "decode-0", d)) {}
  FakeNode& prefill;
  FakeNode& decode;
};

}  // namespace tandem::router::sim

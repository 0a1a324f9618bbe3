#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/proto/control.pb.h"
#include "router/dispatch/dispatcher.h"
#include "router/dispatch/route_policy.h"
#include "tests/sim/cluster_world.h"
#include "tests/sim/ledger_engine.h"
#include "tests/sim/sim_nodes.h"
#include "tests/sim/sim_transport.h"

namespace tandem::sim {

// One client's view of its answer.
struct ClientAnswer {
  LedgerRequest request;
  std::vector<TokenId> tokens;
  std::vector<TokenId> scores;
  std::optional<router::FinishKind> finish;
  std::optional<Error> error;
  int ends = 0;
  int updates_after_end = 0;
  bool cancelled = false;
  TimePoint submitted;
  std::optional<TimePoint> first_token;
  TimePoint ended_at;
  Duration longest_pause{};  // between two updates
  TimePoint last_update;
};

struct ClusterOptions {
  uint64_t seed = 1;
  int prefills = 1;
  int decodes = 1;
  NodeOptions prefill;
  NodeOptions decode;
  bool real_inproc = false;  // the in-process transport instead of the simulated wire
  router::DispatchOptions dispatch;
  Duration control_min_delay = std::chrono::microseconds(100);
  Duration control_max_delay = std::chrono::microseconds(400);
};

// The whole cluster in one thread and simulated time: the router's dispatcher, nodes with their
// real schedulers and KV pools over a ledger engine, control links that keep order and lose
// everything when they break, and a wire with faults.
class Cluster final : private router::AnswerSink {
 public:
  explicit Cluster(const ClusterOptions& options);
  ~Cluster() override;

  // ---- clients
  uint64_t submit(const LedgerRequest& request);
  // A prompt of random tokens with a random seed.
  uint64_t submit_random(size_t prompt, uint32_t max_new_tokens);
  void cancel(uint64_t id);
  [[nodiscard]] ClientAnswer& answer(uint64_t id) { return answers_.at(id); }
  [[nodiscard]] std::map<uint64_t, ClientAnswer>& answers() { return answers_; }
  [[nodiscard]] size_t open() const;  // not ended, not cancelled

  // ---- faults
  void crash(const std::string& node);                 // process gone, connection closed
  void start(const std::string& node);                 // a new process of that name
  void restart_router();                               // clients of the old one are forgotten
  void hold_link(const std::string& node, bool hold);  // messages both ways wait (half-open)
  // Asked for every message to a node; true swallows it.
  std::function<bool(const std::string& node, const control::ToNode&)> swallow_to_node;
  std::function<bool(const std::string& node, const control::ToRouter&)> swallow_to_router;

  // ---- looking in
  [[nodiscard]] SimNode& node(const std::string& name) { return *nodes_.at(name).process; }
  [[nodiscard]] router::Dispatcher& dispatcher() { return *dispatcher_; }
  [[nodiscard]] bool all_idle() const;
  // Every answer equals that of a single node; everything ended exactly once; nothing is held.
  void expect_all_answers_right();
  void expect_nothing_leaked();
  [[nodiscard]] std::string metrics(const std::string& node) {
    return this->node(node).metrics().exposition();
  }

  World world;
  SimNetwork network{world};
  transport::InprocHub hub;

 private:
  struct Link {
    TimePoint last_to_node, last_to_router;  // deliveries keep their order
    bool held = false;
    std::vector<std::function<void()>> waiting;
  };
  struct Slot {
    control::Role role = control::ROLE_UNSPECIFIED;
    std::unique_ptr<SimNode> process;
    router::NodeHandle handle{};
    uint64_t connection = 0;  // 0: none
    bool admitted = false;
    Link link;
  };
  class Observer;

  void on_update(router::AnswerUpdate update) override;
  void make_dispatcher();
  void connect(const std::string& name);
  void disconnect(const std::string& name, bool tell_router);
  void to_node(router::NodeHandle handle, const control::ToNode& message);
  void to_router(const std::string& name, uint64_t connection, control::ToRouter message);
  void deliver(Slot& slot, TimePoint& last, std::function<void()> work);
  void beat(const std::string& name, uint64_t connection);
  void tick_router();
  [[nodiscard]] control::Hello hello_of(const Slot& slot) const;

  ClusterOptions options_;
  router::PredictedFinishPolicy policy_;
  std::unique_ptr<Observer> observer_;
  std::unique_ptr<router::Dispatcher> dispatcher_;
  std::shared_ptr<router::AnswerSink> sink_;
  std::map<std::string, Slot> nodes_;
  std::map<uint64_t, ClientAnswer> answers_;
  uint64_t next_generation_ = 100;
  uint64_t next_connection_ = 1;
  uint64_t next_request_ = 1;
};

}  // namespace tandem::sim

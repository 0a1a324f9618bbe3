#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/node/kv_store.h"
#include "common/obs/metrics.h"
#include "common/proto/control.pb.h"
#include "common/transport/inproc/inproc.h"
#include "decode_node/decode_scheduler.h"
#include "prefill_node/prefill_scheduler.h"
#include "tests/sim/cluster_world.h"
#include "tests/sim/ledger_engine.h"
#include "tests/sim/sim_executor.h"
#include "tests/sim/sim_mover.h"
#include "tests/sim/sim_transport.h"

namespace tandem::sim {

inline constexpr uint32_t kVocab = 97;

struct NodeOptions {
  kv::KvFormat format = kv::KvFormat::kBf16;
  uint32_t layers = 3;
  uint32_t blocks = 64;
  uint32_t tails = 32;
  uint32_t max_context = 512;
  bool prefix_cache = true;
  // Time of a step: `base` and so much per row.
  Duration step_base = std::chrono::milliseconds(2);
  Duration step_row = std::chrono::microseconds(50);
  // What a step of that node takes instead, asked when it begins.
  std::function<Duration(const std::string& node, const node::StepJob&)> step_cost{};
  Duration tick = std::chrono::milliseconds(5);
  prefill::PrefillOptions prefill{};
  decode::DecodeOptions decode{};
  // A CPU tail of so many blocks; 0: none. Its steps take `tail_slowdown` times as long.
  uint32_t tail_blocks = 0;
  int tail_slowdown = 5;
  std::optional<kv::KvFormat> tail_format{};  // none: as on the device; the ledger needs that
  Duration move_batch = std::chrono::microseconds(300);  // copying one batch takes up to this
  transport::InprocHub* hub = nullptr;                   // null: SimTransport
  // A real model instead of the ledger: its layout and vocabulary, and what runs a step.
  std::optional<kv::KvLayout> layout{};
  uint32_t vocab = kVocab;
  std::function<node::StepFunction(const engine::KvPages&)> make_step{};

  [[nodiscard]] kv::KvLayout kv_layout() const;
};

// What both kinds of simulated process have: memory, a ledger engine, a transport, a control
// connection. Destroying it is a crash: nothing that it had on its way comes out.
class SimNode : public transport::TransportEvents {
 public:
  SimNode(World& world, SimNetwork& network, std::string name, uint64_t generation,
          const NodeOptions& options);
  ~SimNode() override;

  // Everything the node says, in order.
  std::function<void(control::ToRouter)> to_router;

  [[nodiscard]] Generation generation() const { return generation_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  // The simulated wire; absent when the node uses the real in-process transport.
  [[nodiscard]] SimTransport& wire() { return *wire_; }
  [[nodiscard]] transport::Transport& transport() { return *transport_; }
  [[nodiscard]] LedgerEngine& engine() { return *engine_; }
  [[nodiscard]] node::KvStore& kv() { return *kv_; }
  [[nodiscard]] virtual uint32_t tail_blocks_used() const { return 0; }
  [[nodiscard]] MetricsRegistry& metrics() { return registry_; }
  // Over all of its pools and engines.
  [[nodiscard]] virtual uint32_t blocks_used() const { return kv_->usage().used; }
  [[nodiscard]] virtual uint64_t mismatches() const { return engine_->mismatches(); }

  void receive(const control::ToNode& message) { scheduler_->on_message(message); }
  void disconnect() { scheduler_->on_disconnected(); }
  [[nodiscard]] bool idle() const { return scheduler_->idle(); }
  [[nodiscard]] control::Heartbeat heartbeat() const { return scheduler_->heartbeat(); }

  void on_received(TransferId id, std::string commit,
                   const transport::ReceiveStats& stats) override {
    scheduler_->on_received(id, commit, stats);
  }
  void on_receive_failed(TransferId id, Error error) override {
    scheduler_->on_receive_failed(id, error);
  }
  void on_sent(TransferId id, const transport::SendStats& stats) override {
    scheduler_->on_sent(id, stats);
  }
  void on_send_failed(TransferId id, Error error) override {
    scheduler_->on_send_failed(id, error);
  }

 protected:
  void start(std::unique_ptr<node::Scheduler> scheduler);
  [[nodiscard]] std::unique_ptr<SimExecutor> make_executor(const engine::KvPages& pages,
                                                           LedgerEngine& engine, int slowdown);
  void keep_ticking();

  World& world_;
  const std::string name_;
  const Generation generation_;
  const NodeOptions options_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  MetricsRegistry registry_;
  std::unique_ptr<node::KvStore> kv_;
  std::unique_ptr<LedgerEngine> engine_;
  std::unique_ptr<SimExecutor> executor_;
  std::unique_ptr<transport::Transport> transport_;
  SimTransport* wire_ = nullptr;
  std::unique_ptr<node::Scheduler> scheduler_;
};

class SimPrefill final : public SimNode {
 public:
  SimPrefill(World& world, SimNetwork& network, std::string name, uint64_t generation,
             const NodeOptions& options);
};

class SimDecode final : public SimNode {
 public:
  SimDecode(World& world, SimNetwork& network, std::string name, uint64_t generation,
            const NodeOptions& options);
  ~SimDecode() override;

  // Only with a CPU tail.
  [[nodiscard]] node::KvStore& tail_kv() { return *tail_kv_; }
  [[nodiscard]] LedgerEngine& tail_engine() { return *tail_engine_; }
  [[nodiscard]] SimMover& mover() { return *mover_; }
  [[nodiscard]] uint32_t blocks_used() const override;
  [[nodiscard]] uint64_t mismatches() const override;

 private:
  [[nodiscard]] std::optional<decode::CpuTail> make_tail();

  std::unique_ptr<node::KvStore> tail_kv_;
  std::unique_ptr<LedgerEngine> tail_engine_;
  std::unique_ptr<SimExecutor> tail_executor_;
  std::unique_ptr<SimMover> mover_;
};

// A greedy task as the router sends it.
[[nodiscard]] control::Task make_task(uint64_t id, const LedgerRequest& request);
[[nodiscard]] std::vector<TokenId> random_prompt(World& world, size_t tokens);

}  // namespace tandem::sim

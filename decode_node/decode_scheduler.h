#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/node/kv_store.h"
#include "common/node/page_mover.h"
#include "common/node/scheduler.h"
#include "common/node/step_executor.h"
#include "common/node/task.h"
#include "common/obs/metrics.h"
#include "common/proto/control.pb.h"
#include "common/transport/transport.h"

namespace tandem::decode {

// When requests go on in the CPU tail. Bytes are those of the device's KV pool.
struct CpuTailOptions {
  uint32_t after_tokens = 512;  // of the answer; shorter ones leave only when KV runs out
  uint64_t free_below = 0;      // long requests leave while less than this is free
  uint64_t return_above = 0;    // they come back while at least this is free; >= free_below
};

struct DecodeOptions {
  node::TaskLimits limits;
  uint32_t max_batch_tokens = 2048;  // rows of one step
  uint32_t max_sequences = 64;       // generating at once; further ones wait in the decode queue
  uint32_t queue_capacity = 256;     // requests held beyond max_sequences, in whatever phase
  uint32_t chunk_tokens = 256;       // most rows of local prefill that may join a decode step
  // Local prefill takes fewer rows when the step would last longer: with requests that wait for
  // their next token in the same step (step_budget.h), and without.
  Duration mixed_target = std::chrono::milliseconds(80);
  Duration prefill_target = std::chrono::milliseconds(400);
  Duration queue_ageing = std::chrono::seconds(1);    // see batch_policy.h
  Duration default_lease = std::chrono::seconds(30);  // when the router names none
  Duration max_lease = std::chrono::hours(1);
  CpuTailOptions cpu_tail;  // without effect where the node has none
};

// A place where requests generate: an engine and the KV pool that it works on.
struct Lane {
  node::KvStore& kv;
  node::StepExecutor& executor;
};

// A second lane in host memory, and what carries requests between the two.
struct CpuTail {
  Lane lane;
  node::PageMover& mover;
};

// Everything a decode node decides: who may write which blocks until when, which requests join the
// next step, who gives up blocks when they run out. A state machine over messages, transport
// events, step results and tick(); it owns no thread and no socket. Belongs to the control thread.
//
// A request is reserved (a prefill node writes its blocks; a lease) or waiting (to be prefilled
// here) -> prefilling -> ready (in the decode queue or generating) -> gone. Preemption takes a
// request that holds blocks back to waiting; it keeps its tokens. With a CPU tail a ready request
// may also be moving: its KV is being copied to the other lane, where it is ready again. Blocks
// return to their pool when no step and no move reads or writes them and their transfer is closed,
// which is synchronous: after Transport::close_receive() nobody writes any more.
class DecodeScheduler final : public node::Scheduler {
 public:
  struct Deps {
    const Clock& clock;
    Lane device;  // where requests arrive and prompts are prefilled
    std::optional<CpuTail> tail;
    transport::Transport& transport;
    MetricsRegistry& metrics;
    std::function<void(control::ToRouter)> send;
  };

  DecodeScheduler(const Deps& deps, const DecodeOptions& options);
  ~DecodeScheduler() override;

  void on_message(const control::ToNode& message) override;
  void on_step(node::StepResult result) override;
  void on_moved(node::MoveResult result) override;
  void on_received(TransferId id, const std::string& commit,
                   const transport::ReceiveStats& stats) override;
  void on_receive_failed(TransferId id, const Error& error) override;
  void on_sent(TransferId, const transport::SendStats&) override {}
  void on_send_failed(TransferId, const Error&) override {}
  void on_disconnected() override;
  void tick() override;
  void drain() override;
  [[nodiscard]] bool idle() const override;
  [[nodiscard]] control::Heartbeat heartbeat() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::decode

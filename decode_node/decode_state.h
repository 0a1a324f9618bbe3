#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/kv/reservations.h"
#include "common/node/handover.h"
#include "common/node/rate.h"
#include "common/node/recent_ids.h"
#include "common/node/role_state.h"
#include "decode_node/decode_metrics.h"
#include "decode_node/decode_scheduler.h"
#include "decode_node/sequence.h"
#include "decode_node/step_budget.h"
#include "decode_node/step_model.h"

namespace tandem::decode {

// Insides of DecodeScheduler; control thread only. Requests, leases and transfers are in
// decode_scheduler.cc, admission and preemption in decode_blocks.cc, steps in decode_steps.cc,
// moves between the lanes in decode_moves.cc.
struct DecodeScheduler::State final : node::RoleState {
  struct LaneState {
    Lane at;
    uint64_t open_step = 0;  // 0: none
    std::vector<Sequence*> stepping;
  };

  State(const Deps& d, const DecodeOptions& o);

  // ---- requests
  void reserve(const control::Reserve& message) override;
  [[nodiscard]] Result<Sequence*> try_reserve(const control::Reserve& message);
  void answer_reserve(const control::Reserve& message, const Result<Sequence*>& outcome);
  [[nodiscard]] Status open_receive(const Sequence& sequence);
  void generate(const control::Generate& message) override;
  [[nodiscard]] Status check_new(RequestId request, TransferId transfer) const;
  void cancel(const control::Cancel& message) override;
  void peer_here(const control::PeerHere&) override {}  // it sends to nobody
  void peer_gone(const control::PeerGone& message) override;
  void received(TransferId id, const std::string& commit, const transport::ReceiveStats& stats);
  [[nodiscard]] Result<control::Commit> check_commit(const Sequence& sequence,
                                                     const std::string& bytes) const;
  void receive_failed(TransferId id, const Error& error);
  // Frees everything of the request: at once, or when the step that uses it ends.
  void fail(Sequence& sequence, const Error& error, Report report);
  void retire(Sequence& sequence, std::string_view outcome);
  void end_reservation(TransferId id);
  void drop_everything(const Error& why) override;
  void sweep() override;
  void drop_ended() override;
  [[nodiscard]] Sequence* find(RequestId request) const;
  [[nodiscard]] Sequence* find(TransferId transfer) const;  // reserved ones only

  // ---- blocks
  // Blocks that requests already taken in are still predicted to need.
  [[nodiscard]] uint32_t committed_blocks() const;
  [[nodiscard]] uint32_t predicted_blocks(const node::Task& task) const;
  [[nodiscard]] Status check_capacity(const node::Task& task) const;
  void admit_waiting();
  [[nodiscard]] bool grow(Sequence& sequence, const std::vector<Sequence*>& ranked);
  void preempt(Sequence& sequence);
  void publish(Sequence& sequence);
  [[nodiscard]] node::KvStore& store(LaneId lane) { return lanes[static_cast<size_t>(lane)].at.kv; }
  [[nodiscard]] size_t held_blocks(const Sequence& sequence) const;

  // ---- moves between the lanes; nothing happens without a CPU tail
  void start_moves();
  void move_out();
  void move_back();
  // False when it cannot or may not move, or there is no room for it.
  [[nodiscard]] bool begin_move(Sequence& sequence, LaneId to);
  [[nodiscard]] bool has_room(LaneId lane, const Sequence& sequence);
  void finish_move(node::MoveResult result);
  // Requests in the lane (with those on their way to it), and those on their way out of it.
  [[nodiscard]] size_t residents(LaneId lane) const;
  [[nodiscard]] bool leaving(LaneId lane) const;
  [[nodiscard]] uint64_t free_bytes() const;  // of the device's pool
  // Ready requests of the lane that may move, longest answer first.
  [[nodiscard]] std::vector<Sequence*> movable(LaneId lane) const;

  // ---- steps
  void start_work() override;
  void start_step(LaneId lane);
  // Holders of the lane's blocks that no lease protects, most deserving first.
  [[nodiscard]] std::vector<Sequence*> ranked_holders(LaneId lane) const;
  [[nodiscard]] std::vector<Sequence*> decode_rows(LaneId lane);
  [[nodiscard]] std::vector<Sequence*> prefilling(LaneId lane) const;
  void add_to_step(node::StepJob& step, Sequence& sequence, uint32_t rows);
  [[nodiscard]] uint32_t prompt_rows(uint32_t decoding, uint32_t start) const;
  void observe_step(const StepModel::Load& load, Duration took);
  void finish_step(node::StepResult result);
  void apply(Sequence& sequence, engine::SequenceOutput output, control::Tokens& tokens);
  void draw(Sequence& sequence, const engine::SampledToken& token, control::TokenRun& run);
  void make_ready(Sequence& sequence);
  void report_admitted(const Sequence& sequence);

  void update_gauges() override;

  Deps deps;
  DecodeOptions options;
  DecodeMetrics metrics;
  std::vector<std::unique_ptr<Sequence>> sequences;  // in order of arrival
  kv::Reservations reservations;                     // blocks of the reserved ones
  std::unordered_map<TransferId, Sequence*> reserved;
  node::RecentIds fenced;  // (generation, 0)
  uint64_t next_arrival = 1;
  uint64_t next_step = 1;  // of all lanes
  uint64_t next_move = 1;
  std::vector<LaneState> lanes;  // by LaneId
  uint64_t tokens_generated = 0;
  uint64_t wire_bytes = 0;
  StepModel step_model;
  StepBudget step_budget{options.mixed_target};
  node::Smoothed step_seconds;
  node::Throughput prefill_throughput;
  node::LineFit step_cost;  // seconds over decode rows
};

}  // namespace tandem::decode

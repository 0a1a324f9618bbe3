#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/node/page_copy.h"
#include "common/node/page_mover.h"
#include "tests/sim/cluster_world.h"

namespace tandem::sim {

// A mover in simulated time: every batch of pages is copied at a moment of its own, so that
// messages, steps and cancellations fall between any two of them.
class SimMover final : public node::PageMover {
 public:
  SimMover(World& world, size_t least_staging, Duration batch_time)
      : world_(world), batch_time_(batch_time), staging_(2 * least_staging) {}
  // A crashed process: what it had open never comes back.
  ~SimMover() override { *alive_ = false; }

  std::function<void(node::MoveResult)> sink;
  // Asked before each batch; what it returns ends the move.
  std::function<std::optional<Error>(const node::MoveJob&)> fault;

  [[nodiscard]] bool submit(node::MoveJob job) override {
    if (queue_.size() >= kQueue) return false;
    queue_.push_back(std::move(job));
    if (queue_.size() == 1) begin();
    return true;
  }

 private:
  static constexpr size_t kQueue = 4;

  void begin() {
    copy_ = std::make_unique<node::PageCopy>(queue_.front(), staging_);
    started_ = world_.now();
    later();
  }
  void later() {
    world_.after(world_.draw(Duration{0}, batch_time_), [this, alive = alive_] {
      if (*alive) batch();
    });
  }
  void batch() {
    const node::MoveJob& job = queue_.front();
    if (job.cancelled->load()) return end(fail(ErrorCode::kCancelled, "cancelled"));
    if (const auto error = fault ? fault(job) : std::nullopt) return end(fail(*error));
    auto more = copy_->next();
    if (!more) return end(fail(more.error()));
    if (*more) return later();
    end({});
  }
  void end(Status outcome) {
    node::MoveResult result{.id = queue_.front().id,
                            .outcome = std::move(outcome),
                            .bytes = copy_->bytes(),
                            .started = started_,
                            .finished = world_.now()};
    copy_.reset();
    queue_.pop_front();
    if (!queue_.empty()) begin();
    sink(std::move(result));
  }

  World& world_;
  Duration batch_time_;
  std::vector<std::byte> staging_;
  std::deque<node::MoveJob> queue_;
  std::unique_ptr<node::PageCopy> copy_;
  TimePoint started_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace tandem::sim

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// Where the time of a card's steps goes, stage by stage: events around each stage of steps that run
// one kernel after the other. Stages therefore do not overlap as they do in recorded steps, and
// their sum is more than such a step takes. Plain data; filled by the device thread.
class StepProfile {
 public:
  struct Stage {
    std::string name;
    uint64_t calls = 0;
    double seconds = 0;
    double bytes = 0;  // of weights and KV that it must move; 0: not counted
  };

  // Called by the engine.
  void add(std::string_view name, double seconds, double bytes) {
    const auto it = std::ranges::find(stages_, name, &Stage::name);
    Stage& stage =
        it != stages_.end() ? *it : stages_.emplace_back(Stage{std::string(name), 0, 0, 0});
    ++stage.calls;
    stage.seconds += seconds;
    stage.bytes += bytes;
  }
  void end_step() { ++steps_; }

  void clear() { *this = {}; }
  [[nodiscard]] uint64_t steps() const { return steps_; }
  [[nodiscard]] const std::vector<Stage>& stages() const { return stages_; }  // in order of use
  [[nodiscard]] double seconds() const {
    double sum = 0;
    for (const Stage& s : stages_) sum += s.seconds;
    return sum;
  }

 private:
  std::vector<Stage> stages_;
  uint64_t steps_ = 0;
};

}  // namespace tandem::engine

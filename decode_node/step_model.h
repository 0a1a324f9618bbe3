#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tandem::decode {

// How long a step takes: a constant, something for each sequence that decodes, something for each
// row of a prompt, and more for rows that come late in theirs, since they attend to all before.
// Fitted online to every step that ran, so that the parts are told apart even where no step ever
// holds one of them alone, as under a steady load of prompts. What a machine's speed and the
// requests' lengths change is followed within some tens of steps; what the recent steps say nothing
// about keeps its last value. Control thread.
class StepModel {
 public:
  struct Load {
    uint32_t decoding = 0;     // sequences with one row each
    uint32_t prompt_rows = 0;  // rows of prompts
    double attended = 0;       // sum over those rows of the positions before the row's chunk
  };
  void add(const Load& load, double seconds);
  // Of a step without prompts. 0 before the first step.
  [[nodiscard]] double decode_seconds(uint32_t decoding) const;
  // What one more prompt row takes whose chunk begins at position `start`. 0: not known yet.
  [[nodiscard]] double seconds_per_prompt_row(uint32_t start) const;

 private:
  static constexpr size_t kParts = 4;
  using Vector = std::array<double, kParts>;

  [[nodiscard]] double predict(const Vector& features) const;

  // A Kalman filter whose state, the parts, wanders.
  Vector parts_{};
  std::array<Vector, kParts> covariance_{};
  bool empty_ = true;
  bool seen_prompts_ = false;
};

}  // namespace tandem::decode

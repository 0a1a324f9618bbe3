#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tandem::router {

// Decode seconds = a * L + b * N (L prompt tokens, N generated tokens), fitted to what a node
// really took by recursive least squares with exponential forgetting, starting from a prior.
class DecodeTimeModel {
 public:
  void observe(double prompt_tokens, double new_tokens, double seconds);
  // Never negative.
  [[nodiscard]] double predict(double prompt_tokens, double new_tokens) const;
  [[nodiscard]] double a() const { return a_; }
  [[nodiscard]] double b() const { return b_; }
  [[nodiscard]] uint64_t observations() const { return observations_; }

 private:
  double a_ = 0;
  double b_ = 0.02;  // a small model on a CPU; one answer corrects it
  // Covariance of (a, b) over the noise's variance; symmetric: aa, ab, bb.
  double p_aa_ = 1e-4, p_ab_ = 0, p_bb_ = 1;
  uint64_t observations_ = 0;
};

// How fast a node works off its prompts: tokens that were ahead of a first token, the prompt's own
// included, over the time until it came. So it holds what else the node does meanwhile, and the
// ways there and back. Old answers fade.
class PrefillPaceModel {
 public:
  // False when this tells nothing.
  bool observe(double tokens, double seconds);
  // Tokens per second; 0: not known.
  [[nodiscard]] double per_second() const;
  [[nodiscard]] uint64_t observations() const { return observations_; }

 private:
  double tokens_ = 0, seconds_ = 0;
  uint64_t observations_ = 0;
};

// Guesses how long answers become from those that finished lately.
class OutputLengthModel {
 public:
  void observe(uint32_t new_tokens);
  // Further tokens of an answer that has `generated` and may grow by `limit`.
  [[nodiscard]] uint32_t predict(uint32_t generated, uint32_t limit) const;

 private:
  static constexpr size_t kWindow = 128;
  static constexpr uint32_t kPrior = 128;
  std::array<uint32_t, kWindow> recent_{};
  size_t count_ = 0;
  size_t next_ = 0;
};

}  // namespace tandem::router

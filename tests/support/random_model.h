#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>

#include "tests/support/temp_folder.h"

// Models that nobody has trained, of shapes that nobody has published.
namespace tandem::testing {

// Numbers that a seed gives alike on every machine, whatever its standard library.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  [[nodiscard]] uint32_t below(uint32_t n) { return static_cast<uint32_t>(engine_() % n); }
  [[nodiscard]] uint32_t between(uint32_t least, uint32_t most) {
    return least + below(most - least + 1);
  }
  [[nodiscard]] bool chance(uint32_t percent) { return below(100) < percent; }
  template <typename T>
  [[nodiscard]] T of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<uint32_t>(values.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

struct RandomModel {
  std::string config;  // config.json
  // Sizes are what projections in float8 want, and weights are such that these lose nothing.
  bool suits_fp8 = false;
};
// A small model of one of the five architectures, of any sizes that the loader takes and that the
// CUDA engine does not refuse.
[[nodiscard]] RandomModel random_model(Dice& dice);

// Writes it and weights for it (bf16, so that every engine reads the same numbers) as a
// Hugging Face folder. Their scale is a trained model's: attention has favourites, a router is
// sure of most of its choices, and no layer drowns those before it.
void write_random_model(const TempFolder& folder, const RandomModel& model, uint64_t seed);

}  // namespace tandem::testing

#pragma once

#include <cstddef>
#include <cstdint>

// What the sampling kernel reads and writes, in plain types: packed on the host without a toolkit
// (common/engine/cuda/sample_batch.h), and unit-tested there.
namespace tandem::cuda {

enum class SampleMode : uint32_t {
  kSkip = 0,    // a padding row: nothing is read or written
  kSample = 1,  // draw a token
  kScore = 2,   // log-probability of `token` (prompt scoring)
};

inline constexpr uint32_t kNoHistory = 0xffffffffu;

// One row of logits and what to do with it: engine::SamplingParams with everything derived from
// them alone computed on the host, by the same float operations as the CPU sampler's.
struct SampleRow {
  SampleMode mode = SampleMode::kSkip;
  uint32_t source = 0;            // the row of logits; two entries may look at one row
  int32_t token = 0;              // kScore
  uint32_t history = kNoHistory;  // slot of the token history; only rows with penalties need one
  uint32_t length = 0;            // tokens before the one drawn: the RNG's position
  uint32_t prompt = 0;            // of those, the prompt's
  uint32_t bias_first = 0;        // in DeviceSampling::biases, sorted by id
  uint32_t bias_count = 0;
  uint32_t top_k = 0;      // 0: off
  float inverse = 0;       // 1 / temperature; 0: greedy
  float min_p_offset = 0;  // logits below the best one's by more than this are cut; -inf: off
  float repetition = 1;
  float presence = 0;
  float frequency = 0;
  int32_t logprobs = -1;  // -1: none; else this many best beside the token's own
  uint32_t appends = 0;   // 1: the token drawn becomes entry `length` of the history
  double top_share = 1;   // top-p; 1 and above: off
  uint64_t seed = 0;
};
static_assert(sizeof(SampleRow) == 80);

struct SampleBias {
  int32_t id = 0;
  float value = 0;
};

struct SampleTop {
  int32_t id = 0;
  float logprob = 0;
};

// Device memory at fixed addresses, so that a recorded graph sees each step's contents.
struct DeviceSampling {
  const SampleRow* rows = nullptr;     // [max rows]
  const SampleBias* biases = nullptr;  // back to back
  // Token histories by slot. A kSample row with a slot reads its first `length` entries and, with
  // `appends`, adds the token it draws, so that the host uploads a prompt once and then nothing.
  int32_t* history = nullptr;  // [slots, history_stride]
  uint32_t history_stride = 0;
  int32_t* tokens = nullptr;  // out [max rows]; kScore rows leave theirs alone
  float* logprobs = nullptr;  // out [max rows], where asked for
  SampleTop* top = nullptr;   // out [max rows, top_capacity], best first, where asked for
  uint32_t top_capacity = 0;  // at least every row's `logprobs`; at most kMaxTop
};

inline constexpr uint32_t kMaxTop = 1024;

// How a row is spread: `cluster` thread blocks hold `slice` logits each in shared memory.
struct SamplingPlan {
  uint32_t vocab = 0;
  uint32_t cluster = 0;  // 0: the vocabulary does not fit (kMaxSampledVocab)
  uint32_t slice = 0;
  size_t shared_bytes = 0;
};

inline constexpr uint32_t kSampleGroup = 128;               // logits a warp takes at once
inline constexpr uint32_t kSampleScratchBytes = 32u << 10;  // histograms, candidates, counts
inline constexpr uint32_t kMaxSampledVocab = 8 * 48 * 1024;

// Few blocks where there is little to share out, else 8: the largest cluster every card grants.
[[nodiscard]] constexpr SamplingPlan plan_sampling(uint32_t vocab) {
  SamplingPlan plan;
  plan.vocab = vocab;
  if (vocab == 0 || vocab > kMaxSampledVocab) return plan;
  plan.cluster = vocab <= 4096 ? 1 : vocab <= 8192 ? 2 : vocab <= 16384 ? 4 : 8;
  const uint32_t share = (vocab + plan.cluster - 1) / plan.cluster;
  plan.slice = (share + kSampleGroup - 1) / kSampleGroup * kSampleGroup;
  plan.shared_bytes = size_t{plan.slice} * sizeof(float) + kSampleScratchBytes;
  return plan;
}

}  // namespace tandem::cuda

#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace tandem::testing {

// What the reference implementation said about one checkpoint (tests/data/golden/*/golden.json and
// golden.safetensors); case j's arrays are logits_j, logits_all_j and top1_j.
struct GoldenCase {
  std::vector<TokenId> prompt;
  std::vector<TokenId> greedy;
  std::vector<float> margins;      // gap of the two best logits at each greedy step; may be empty
  std::vector<float> last_logits;  // [vocab]
  std::vector<float> all_logits;   // [n, vocab], of the first n positions; may be empty
  std::vector<int32_t> top1;       // of every position; may be empty
};

[[nodiscard]] Result<std::vector<GoldenCase>> load_golden(const std::filesystem::path& folder);

// ||a - b|| / ||b|| over the first b.size() values.
[[nodiscard]] double relative_l2(const float* a, const std::vector<float>& b);

}  // namespace tandem::testing

#include "common/node/packing.h"

#include <algorithm>

#include "common/kv/layout.h"

namespace tandem::node {
namespace {

constexpr double kUnknownRows = 128;

}  // namespace

uint32_t rows_within(Duration target, double rows_per_second, uint32_t limit) {
  const double rows = rows_per_second > 0 ? rows_per_second * to_seconds(target) : kUnknownRows;
  const auto whole = static_cast<uint32_t>(std::min(rows, static_cast<double>(limit)));
  return std::min(limit, std::max(whole - whole % kv::kBlockTokens, kv::kBlockTokens));
}

std::vector<uint32_t> pack_rows(std::span<const uint32_t> remaining, const PackLimits& limits) {
  std::vector<uint32_t> rows(remaining.size(), 0);
  uint32_t left = limits.rows;
  for (size_t i = 0; i < remaining.size() && left > 0; ++i) {
    uint32_t take = std::min({remaining[i], limits.chunk, left});
    if (take < remaining[i]) take -= take % kv::kBlockTokens;
    rows[i] = take;
    left -= take;
  }
  return rows;
}

}  // namespace tandem::node

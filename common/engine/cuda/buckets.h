#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::engine {

// Row counts for which a decode step is recorded: 1, 2, 4, 8, then multiples of 8 up to 32, of 16
// up to 64, of 32 up to 128, of 64 beyond; `most` itself is the last. Padding a step to its bucket
// then costs at most a third of its rows where rows cost anything.
[[nodiscard]] std::vector<uint32_t> decode_buckets(uint32_t most);

// Likewise of a step in which sequences have several rows each, in all: not below 8. Projections of
// up to four rows share multiprocessors with the kernels around them, and with one kernel more
// between them they crowd on some of these: 4 rows took 5.9 ms where 8 took 4.2 (Qwen2-7B, H200).
[[nodiscard]] std::vector<uint32_t> verify_buckets(uint32_t most);

// Index of the smallest bucket that holds `rows`; buckets.size() when none does.
[[nodiscard]] size_t bucket_of(const std::vector<uint32_t>& buckets, uint32_t rows);

}  // namespace tandem::engine

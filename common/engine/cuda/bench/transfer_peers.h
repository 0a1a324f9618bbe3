#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/engine/cuda/bench/transfer_end.h"

// What a KV push is compared with, measured in the same run. Rates are bytes a second each way.
namespace tandem::bench {

// Plain copies of `size` between two cards (or on one, or on the host), one after the other.
[[nodiscard]] Result<double> plain_copy(int from, int to, size_t size, size_t total,
                                        bool both_ways);

// UCX's own perftest with the UCX that this process would load, put between two processes. Empty:
// it did not run, `why` says so. `cuda`: memory of cards 0 and 1 (perftest gives each process one).
[[nodiscard]] std::optional<double> ucx_perftest(const std::string& program, bool cuda, size_t size,
                                                 uint32_t messages, std::string& why);

}  // namespace tandem::bench

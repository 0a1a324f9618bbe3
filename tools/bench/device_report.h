#pragma once

#include <string>
#include <vector>

#include "common/engine/cuda/bench/device_bench.h"

namespace tandem::bench {

// "pass", "short", or "" for a row without a target.
[[nodiscard]] std::string verdict(const DeviceRow& row);

[[nodiscard]] std::string device_table_header();
[[nodiscard]] std::string device_table_line(const DeviceRow& row);
// One object: what was measured on, and the rows. Figures that do not exist are null.
[[nodiscard]] std::string device_json(const std::string& device, const std::string& driver,
                                      const std::vector<DeviceRow>& rows);

}  // namespace tandem::bench

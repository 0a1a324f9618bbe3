#pragma once

#include <cstdint>
#include <string>

namespace tandem {

// Bytes that processes like this one can ever hold: RAM, or what the control group allows where
// that is less, and swap. 0: unknown. `root` stands before /proc and /sys; tests give a folder of
// their own.
[[nodiscard]] uint64_t machine_memory(const std::string& root = "");

// Threads that this process and those in its control groups may have together, or those of its
// user. 0: no limit that is known.
[[nodiscard]] uint64_t machine_threads(const std::string& root = "");

}  // namespace tandem

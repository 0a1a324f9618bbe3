#pragma once

#include <cstdint>

namespace tandem {

// How many descriptors this process may hold.
[[nodiscard]] uint64_t open_file_limit();

// CPUs that this process may run on; at least 1.
[[nodiscard]] uint32_t usable_cpus();

// Whether one of the standard streams is a terminal, whose closing SIGHUP tells.
[[nodiscard]] bool has_terminal();

// To be called first in main(): raises that number to what the system allows (services often begin
// with 1024), and lets a write to a file over its size limit fail instead of ending the process.
void prepare_process_limits();

}  // namespace tandem

#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tandem::doctor {

// What the operating system tells of this machine; what it does not tell stays empty.
struct SystemFacts {
  std::string os;      // "Debian GNU/Linux 12 (bookworm)"
  std::string kernel;  // "6.1.0-18-amd64"
  std::string cpu;     // "Intel(R) Xeon(R) …"
  uint32_t cpus = 0;   // that this process may use
  uint32_t numa_nodes = 0;
  std::optional<uint64_t> memory_bytes;
  std::optional<uint64_t> memory_available_bytes;
  std::optional<uint64_t> huge_pages;     // of 2 MiB, reserved
  std::string transparent_huge_pages;     // "always", "madvise", "never"
  std::optional<uint64_t> memlock_bytes;  // empty: unlimited
  std::optional<uint64_t> shm_bytes;      // size of /dev/shm
  std::optional<uint64_t> shm_free_bytes;
  bool nvidia_device_files = false;  // /dev/nvidia0
};

// `root` stands before /proc, /sys, /etc and /dev; tests give a folder of their own.
[[nodiscard]] SystemFacts read_system(const std::string& root = "");

}  // namespace tandem::doctor

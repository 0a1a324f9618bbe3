#include "common/base/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>

namespace tandem {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// The line "KEY:  123 kB" of /proc/meminfo, in bytes; 0 where it is not.
uint64_t meminfo(const std::string& root, std::string_view key) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t begin = line.find_first_of("0123456789");
    return begin == std::string::npos ? 0 : std::strtoull(line.c_str() + begin, nullptr, 10) << 10;
  }
  return 0;
}

// A limit of a control group; "max" and what cannot be read limit nothing.
uint64_t limit_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t bytes = 0;
  return file >> bytes ? bytes : kNoLimit;
}

// The least limit of this process's control group and those around it.
uint64_t group_limit(const std::string& root) {
  const std::string base = root + "/sys/fs/cgroup";
  uint64_t limit = limit_in(base + "/memory/memory.limit_in_bytes");  // version 1, in a container
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kVersion2 = "0::";
    if (!line.starts_with(kVersion2)) continue;
    for (std::string group = line.substr(kVersion2.size());; group.resize(group.rfind('/'))) {
      if (group == "/") group.clear();
      limit = std::min(limit, limit_in(base + group + "/memory.max"));
      if (group.rfind('/') == std::string::npos) break;
    }
  }
  return limit;
}

}  // namespace

uint64_t machine_memory(const std::string& root) {
  const uint64_t ram = meminfo(root, "MemTotal:");
  return ram == 0 ? 0 : std::min(ram, group_limit(root)) + meminfo(root, "SwapTotal:");
}

}  // namespace tandem

#include "common/base/machine_limits.h"

#include <sys/resource.h>
#include <unistd.h>

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

// The least limit under that name of this process's control group and those around it; `version1`
// is what it is in a container of the older version.
uint64_t group_limit(const std::string& root, std::string_view version1, std::string_view name) {
  const std::string base = root + "/sys/fs/cgroup";
  uint64_t limit = limit_in(base + std::string(version1));
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kVersion2 = "0::";
    if (!line.starts_with(kVersion2)) continue;
    for (std::string group = line.substr(kVersion2.size());; group.resize(group.rfind('/'))) {
      if (group == "/") group.clear();
      limit = std::min(limit, limit_in(base + group + "/" + std::string(name)));
      if (group.rfind('/') == std::string::npos) break;
    }
  }
  return limit;
}

}  // namespace

uint64_t machine_memory(const std::string& root) {
  const uint64_t ram = meminfo(root, "MemTotal:");
  return ram == 0
             ? 0
             : std::min(ram, group_limit(root, "/memory/memory.limit_in_bytes", "memory.max")) +
                   meminfo(root, "SwapTotal:");
}

uint64_t machine_threads(const std::string& root) {
  uint64_t limit = group_limit(root, "/pids/pids.max", "pids.max");
  rlimit of_user{};
  // The superuser's is not looked at by the system.
  if (::geteuid() != 0 && ::getrlimit(RLIMIT_NPROC, &of_user) == 0 &&
      of_user.rlim_cur != RLIM_INFINITY) {
    limit = std::min<uint64_t>(limit, of_user.rlim_cur);
  }
  return limit == kNoLimit ? 0 : limit;
}

}  // namespace tandem

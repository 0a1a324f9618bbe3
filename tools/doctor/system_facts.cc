#include "tools/doctor/system_facts.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace tandem::doctor {
namespace {

namespace fs = std::filesystem;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<uint64_t> leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_of("0123456789"), text.size()));
  uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc()) return {};
  return value;
}

// The rest of the first line that begins with `key`, without separators and quotes.
std::string value_of(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::string_view rest = std::string_view(line).substr(key.size());
    const size_t begin = rest.find_first_not_of("\t :=\"");
    if (begin == std::string_view::npos) return {};
    rest = rest.substr(begin);
    while (!rest.empty() && (rest.back() == '"' || rest.back() == ' ')) rest.remove_suffix(1);
    return std::string(rest);
  }
  return {};
}

std::optional<uint64_t> kibibytes(const std::string& meminfo, std::string_view key) {
  const auto number = leading_number(value_of(meminfo, key));
  if (!number) return {};
  return *number << 10;
}

// "always [madvise] never" -> "madvise"
std::string chosen(const std::string& line) {
  const size_t begin = line.find('['), end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return line.substr(begin + 1, end - begin - 1);
}

uint32_t count_numa_nodes(const std::string& folder) {
  std::error_code error;
  uint32_t count = 0;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.size() > 4 && name.starts_with("node") &&
        name.find_first_not_of("0123456789", 4) == std::string::npos) {
      ++count;
    }
  }
  return count;
}

}  // namespace

SystemFacts read_system(const std::string& root) {
  SystemFacts facts;
  facts.os = value_of(root + "/etc/os-release", "PRETTY_NAME");
  facts.cpu = value_of(root + "/proc/cpuinfo", "model name");
  utsname name{};
  if (uname(&name) == 0) facts.kernel = name.release;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    facts.cpus = static_cast<uint32_t>(CPU_COUNT(&set));
  facts.numa_nodes = count_numa_nodes(root + "/sys/devices/system/node");
  const std::string meminfo = root + "/proc/meminfo";
  facts.memory_bytes = kibibytes(meminfo, "MemTotal");
  facts.memory_available_bytes = kibibytes(meminfo, "MemAvailable");
  facts.huge_pages = leading_number(value_of(meminfo, "HugePages_Total"));
  facts.transparent_huge_pages =
      chosen(first_line(root + "/sys/kernel/mm/transparent_hugepage/enabled"));
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    facts.memlock_bytes = limit.rlim_cur;
  struct statvfs shm {};
  if (statvfs((root + "/dev/shm").c_str(), &shm) == 0) {
    facts.shm_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
    facts.shm_free_bytes = uint64_t{shm.f_bavail} * shm.f_frsize;
  }
  std::error_code error;
  facts.nvidia_device_files = fs::exists(root + "/dev/nvidia0", error);
  return facts;
}

}  // namespace tandem::doctor

#include <charconv>

#include "common/cuda/device_info.h"

namespace tandem::cuda {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string describe(const std::vector<DeviceInfo>& devices) {
  std::string text;
  for (const DeviceInfo& d : devices) {
    if (!text.empty()) text += ", ";
    text += std::to_string(d.index) + ": " + d.name + " (" + d.uuid + ")";
  }
  return text;
}

Status check_index(int wanted, const std::vector<DeviceInfo>& devices) {
  if (wanted >= 0 && static_cast<size_t>(wanted) < devices.size()) return {};
  return fail(ErrorCode::kConfig,
              "there is no CUDA device " + std::to_string(wanted) + "; visible are " +
                  describe(devices) + " (CUDA_VISIBLE_DEVICES hides others)",
              "device");
}

Status check_architecture(const DeviceInfo& device, std::string_view architectures) {
  std::string_view rest = architectures;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(';'), rest.size());
    const std::string_view one = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    int number = 0;
    const auto parsed = std::from_chars(one.data(), one.data() + one.size(), number);
    if (parsed.ec != std::errc()) continue;
    const bool exact = parsed.ptr != one.data() + one.size();  // "90a"
    const int major = number / 10, minor = number % 10;
    if (device.major != major) continue;
    if (exact ? device.minor == minor : device.minor >= minor) return {};
  }
  const std::string capability = std::to_string(device.major) + "." + std::to_string(device.minor);
  return fail(ErrorCode::kUnsupported,
              "device " + std::to_string(device.index) + " (" + device.name +
                  ") has compute capability " + capability + "; this build has code for " +
                  std::string(architectures) +
                  " only: choose another device, or device: cpu (other architectures: "
                  "-DTANDEM_CUDA_ARCHITECTURES at build time)",
              "device");
}

}  // namespace tandem::cuda

#include "common/cuda/card_monitor.h"
#include "common/cuda/device_info.h"

// What a program without CUDA answers.
namespace tandem::cuda {
namespace {

auto not_built() {
  return fail(ErrorCode::kUnsupported,
              "this build has no CUDA: install a toolkit (scripts/install-cuda.sh) and build with "
              "-DTANDEM_CUDA=ON, or use device: cpu",
              "device");
}

}  // namespace

bool built_with_cuda() { return false; }

std::string_view built_architectures() { return {}; }

Result<CudaVersions> cuda_versions() { return not_built(); }

Result<std::vector<DeviceInfo>> list_devices() { return not_built(); }

struct CardMonitor::Impl {};
CardMonitor::CardMonitor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CardMonitor::CardMonitor(CardMonitor&&) noexcept = default;
CardMonitor& CardMonitor::operator=(CardMonitor&&) noexcept = default;
CardMonitor::~CardMonitor() = default;
Result<CardMonitor> CardMonitor::open(std::span<const std::string>) { return not_built(); }
Result<std::vector<CardHealth>> CardMonitor::read_all() { return not_built(); }
Result<CardHealth> CardMonitor::read(std::string_view) { return not_built(); }
Result<std::vector<std::vector<CardPair>>> CardMonitor::topology() { return not_built(); }
Result<CardPair> CardMonitor::pair(std::string_view, std::string_view) { return not_built(); }
std::string CardMonitor::driver_version() const { return {}; }

}  // namespace tandem::cuda

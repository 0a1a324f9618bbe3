#include "common/cuda/cuda_status.h"

#include <cstdio>

#include "common/cuda/device_info.h"

namespace tandem::cuda {
namespace {

std::string mebibytes(size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

std::string memory_figures() {
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return {};
  return mebibytes(free) + " of " + mebibytes(total) + " are free on the card; ";
}

std::string driver_version() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return "none was found";
  return "the one here speaks CUDA " + version_text(version);
}

struct Advice {
  ErrorCode code;
  std::string text;
};

Advice advice_for(cudaError_t error) {
  if (is_sticky(error))
    return {ErrorCode::kDeviceLost, "the device is lost to this process, which must restart"};
  // CUDA may grow codes at any time, and most mean a wrong call: hence ifs, not a switch.
  if (error == cudaErrorMemoryAllocation) {
    return {ErrorCode::kResourceExhausted,
            memory_figures() +
                "lower gpu_memory_utilization or the KV memory, or end what else "
                "uses the card (nvidia-smi)"};
  }
  int driver = 0;
  if (error == cudaErrorInsufficientDriver &&
      (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)) {
    return {ErrorCode::kUnavailable,
            "there is no NVIDIA driver here (in a container: was it started with --gpus?); install "
            "one, or use device: cpu"};
  }
  if (error == cudaErrorInsufficientDriver || error == cudaErrorCallRequiresNewerDriver ||
      error == cudaErrorUnsupportedPtxVersion || error == cudaErrorSystemDriverMismatch ||
      error == cudaErrorCompatNotSupportedOnDevice) {
    return {ErrorCode::kUnsupported, "this build wants an NVIDIA driver for CUDA " +
                                         version_text(CUDART_VERSION) + ", " + driver_version() +
                                         ": update the driver, or use device: cpu"};
  }
  if (error == cudaErrorNoDevice) {
    return {ErrorCode::kUnavailable,
            "no NVIDIA card is visible: check nvidia-smi, CUDA_VISIBLE_DEVICES and, in a "
            "container, --gpus; or use device: cpu"};
  }
  if (error == cudaErrorInvalidDevice)
    return {ErrorCode::kConfig, "`tandem doctor` lists the cards; or use device: cpu"};
  if (error == cudaErrorDevicesUnavailable) {
    return {ErrorCode::kUnavailable,
            "another process holds the card in exclusive mode: end it, or choose another device"};
  }
  if (error == cudaErrorSystemNotReady) {
    return {ErrorCode::kUnavailable,
            "the NVSwitch fabric is not up: is nvidia-fabricmanager running?"};
  }
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidKernelImage) {
    return {ErrorCode::kUnsupported,
            "this build has no code for this card (TANDEM_CUDA_ARCHITECTURES at build time)"};
  }
  return {ErrorCode::kInternal, {}};
}

}  // namespace

bool is_sticky(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorContextIsDestroyed:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

Status cuda_status(cudaError_t error, const char* call, std::source_location location) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();  // or the next launch check reports this one again
  int device = -1;
  (void)cudaGetDevice(&device);
  const Advice advice = advice_for(error);
  std::string text = std::string(call) + ": " + cudaGetErrorString(error) + " (" +
                     cudaGetErrorName(error) + ", device " + std::to_string(device) + ")";
  if (!advice.text.empty()) text += "; " + advice.text;
  return fail(advice.code, std::move(text), {}, location);
}

void report_failure(cudaError_t error, const char* call) noexcept {
  if (error == cudaSuccess || error == cudaErrorCudartUnloading || is_sticky(error)) return;
  std::fprintf(stderr, "cuda: %s: %s\n", call, cudaGetErrorString(error));
}

DeviceScope::DeviceScope(int device) {
  (void)cudaGetDevice(&previous_);
  if (previous_ == device)
    previous_ = -1;
  else
    report_failure(cudaSetDevice(device), "cudaSetDevice");
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) report_failure(cudaSetDevice(previous_), "cudaSetDevice");
}

}  // namespace tandem::cuda

#include "common/cuda/libraries.h"

#include "common/base/dynamic_library.h"

namespace tandem::cuda {
namespace {

// How a library tells its version. Spelled out here because NVIDIA's headers are not always there.
enum class Asks : uint8_t {
  kSize,    // size_t f()
  kStatus,  // status f(int*)
};

struct Known {
  const char* name;
  const char* soname;
  const char* purpose;
  const char* function;
  Asks asks;
  int unit;  // major * unit^2 + minor * unit + patch; 10: 13000 is 13.0
};

constexpr Known kKnown[] = {
    {"driver", "libcuda.so.1", "device: cuda", "cuDriverGetVersion", Asks::kStatus, 10},
    {"cuBLASLt", "libcublasLt.so.13", "device: cuda", "cublasLtGetVersion", Asks::kSize, 100},
    {"NVML", "libnvidia-ml.so.1", "metrics of cards and links", nullptr, Asks::kSize, 0},
    {"NCCL", "libnccl.so.2", "transport nccl", "ncclGetVersion", Asks::kStatus, 100},
    {"cuDNN", "libcudnn.so.9", "comparison in tandem bench kernels", "cudnnGetVersion", Asks::kSize,
     100},
};

std::string dotted(size_t version, int unit) {
  const auto u = static_cast<size_t>(unit);
  if (u == 10) return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  return std::to_string(version / (u * u)) + "." + std::to_string(version / u % u) + "." +
         std::to_string(version % u);
}

std::string version_of(const DynamicLibrary& library, const Known& known) {
  if (known.function == nullptr) return {};
  switch (known.asks) {
    case Asks::kSize: {
      size_t (*ask)() = nullptr;
      if (!library.bind(ask, known.function)) return {};
      return dotted(ask(), known.unit);
    }
    case Asks::kStatus: {
      int (*ask)(int*) = nullptr;
      int version = 0;
      if (!library.bind(ask, known.function) || ask(&version) != 0) return {};
      return dotted(static_cast<size_t>(version), known.unit);
    }
  }
  return {};
}

}  // namespace

std::vector<LibraryInfo> inspect_libraries(std::span<const std::string> folders) {
  std::vector<LibraryInfo> result;
  for (const Known& known : kKnown) {
    LibraryInfo info;
    info.name = known.name;
    info.soname = known.soname;
    info.purpose = known.purpose;
    const auto library = DynamicLibrary::open(known.soname, folders);
    info.found = library.has_value();
    if (library) {
      info.path = library->path();
      info.version = version_of(*library, known);
    } else {
      info.problem = library.error().detail;
    }
    result.push_back(std::move(info));
  }
  return result;
}

}  // namespace tandem::cuda

#pragma once

#include <nccl.h>

#include <span>
#include <string>

#include "common/base/dynamic_library.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace tandem::transport {

// Every function of NCCL that is used. NCCL is opened at run time, so that programs run without it.
#define TANDEM_NCCL_FUNCTIONS(X) \
  X(ncclGetVersion)              \
  X(ncclGetErrorString)          \
  X(ncclGetLastError)            \
  X(ncclGetUniqueId)             \
  X(ncclCommInitRankConfig)      \
  X(ncclCommGetAsyncError)       \
  X(ncclCommAbort)               \
  X(ncclSend)                    \
  X(ncclRecv)                    \
  X(ncclGroupStart)              \
  X(ncclGroupEnd)

class NcclApi {
 public:
  static constexpr const char* kLibrary = "libnccl.so.2";

  // `folders` are searched first (gpu.libraries of the configuration).
  [[nodiscard]] static Result<NcclApi> open(std::span<const std::string> folders = {});

#define TANDEM_NCCL_MEMBER(name) decltype(&::name) name = nullptr;
  TANDEM_NCCL_FUNCTIONS(TANDEM_NCCL_MEMBER)
#undef TANDEM_NCCL_MEMBER

  [[nodiscard]] const std::string& version() const { return version_; }  // "2.28.9"
  // The error names the call and NCCL's own words. ncclInProgress is no error.
  [[nodiscard]] Status status(ncclResult_t result, const char* call, ncclComm_t comm) const;

 private:
  DynamicLibrary library_;
  std::string version_;
};

// Owner of a communicator: ends what it does on the device, wakes its threads and frees it, in up
// to half a second. Dropped with its device current and before the stream that it works in. NCCL is
// never unloaded, so it may outlive the NcclApi.
struct NcclCommTraits {
  struct Handle {
    ncclComm_t comm = nullptr;
    decltype(&::ncclCommAbort) abort = nullptr;
    bool operator==(const Handle& other) const { return comm == other.comm; }
  };
  static Handle invalid() { return {}; }
  static void close(Handle handle) noexcept { (void)handle.abort(handle.comm); }
};
using NcclComm = UniqueHandle<NcclCommTraits>;

}  // namespace tandem::transport

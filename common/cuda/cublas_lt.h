#pragma once

#include <cublasLt.h>

#include <span>
#include <string>

#include "common/base/dynamic_library.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace tandem::cuda {

// Every function of cuBLASLt that is used; `linear` code calls lt.api().cublasLtMatmul(…).
#define TANDEM_CUBLASLT_FUNCTIONS(X)      \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtGetVersion)                   \
  X(cublasLtGetStatusString)              \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatrixLayoutSetAttribute)     \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulAlgoCheck)              \
  X(cublasLtMatmulAlgoConfigGetAttribute)

struct CublasLtApi {
#define TANDEM_CUBLASLT_MEMBER(name) decltype(&::name) name = nullptr;
  TANDEM_CUBLASLT_FUNCTIONS(TANDEM_CUBLASLT_MEMBER)
#undef TANDEM_CUBLASLT_MEMBER
};

// cuBLASLt, opened at run time, and a handle for the device that is current. One per device thread.
class CublasLt {
 public:
  static constexpr const char* kLibrary = "libcublasLt.so.13";

  // `folders` are searched first (gpu.libraries of the configuration).
  [[nodiscard]] static Result<CublasLt> create(std::span<const std::string> folders = {});
  CublasLt() = default;

  [[nodiscard]] const CublasLtApi& api() const { return api_; }
  [[nodiscard]] cublasLtHandle_t handle() const { return owner_.get().handle; }
  [[nodiscard]] size_t version() const { return api_.cublasLtGetVersion(); }  // 130100
  [[nodiscard]] const std::string& path() const { return library_.path(); }

  // Like cuda_status(); names the call and cuBLASLt's words.
  [[nodiscard]] Status status(
      cublasStatus_t status, const char* call,
      std::source_location location = std::source_location::current()) const;

 private:
  struct Owned {
    cublasLtHandle_t handle = nullptr;
    decltype(&::cublasLtDestroy) destroy = nullptr;
    bool operator==(const Owned& other) const { return handle == other.handle; }
  };
  struct Traits {
    using Handle = Owned;
    static Handle invalid() { return {}; }
    static void close(Handle owned) noexcept;
  };

  DynamicLibrary library_;
  CublasLtApi api_;
  UniqueHandle<Traits> owner_;
};

}  // namespace tandem::cuda

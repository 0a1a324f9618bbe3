#pragma once

// NCCL, as far as communicators are built and ended. What one does is said by the first byte of its
// id. Any thread.

#include <atomic>
#include <memory>

#include "common/transport/nccl/nccl_api.h"
#include "tests/support/fake_driver/fake_cuda.h"

namespace tandem::transport::testing {

enum class FakeId : char { kGood, kBad };

class FakeNccl {
 public:
  static void reset() {
    made_ = aborted_ = asked_ = 0;
    held_ = false;
    found_ = ncclSuccess;
  }
  // While held, no communicator gets built.
  static void hold(bool held) {
    held_ = held;
    held_.notify_all();
  }
  // What ncclCommGetAsyncError() finds from now on.
  static void fail(ncclResult_t found) { found_ = found; }
  [[nodiscard]] static int asked() { return asked_; }  // for a communicator
  [[nodiscard]] static int made() { return made_; }
  [[nodiscard]] static int aborted() { return aborted_; }
  [[nodiscard]] static ncclUniqueId id(FakeId kind) {
    ncclUniqueId result{};
    result.internal[0] = static_cast<char>(kind);
    return result;
  }
  [[nodiscard]] static std::shared_ptr<const NcclApi> api() {
    auto api = std::make_shared<NcclApi>();
    api->ncclGetErrorString = [](ncclResult_t) { return "refused by the fake"; };
    api->ncclGetLastError = [](ncclComm_t) { return ""; };
    api->ncclCommInitRankConfig = [](ncclComm_t* comm, int, ncclUniqueId id, int, ncclConfig_t*) {
      ++asked_;
      held_.wait(true);
      if (id.internal[0] == static_cast<char>(FakeId::kBad)) return ncclSystemError;
      *comm = reinterpret_cast<ncclComm_t>(uintptr_t{16} * static_cast<uintptr_t>(++made_));
      return ncclSuccess;
    };
    api->ncclCommAbort = [](ncclComm_t) {
      ++aborted_;
      FakeCuda::note("aborted on device " + std::to_string(FakeCuda::device()));
      return ncclSuccess;
    };
    api->ncclSend = [](const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
      return ncclSuccess;
    };
    api->ncclRecv = [](void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
      return ncclSuccess;
    };
    api->ncclCommGetAsyncError = [](ncclComm_t, ncclResult_t* found) {
      *found = found_;
      return ncclSuccess;
    };
    api->ncclGroupStart = [] { return ncclSuccess; };
    api->ncclGroupEnd = [] { return ncclSuccess; };
    return api;
  }

 private:
  static inline std::atomic<int> asked_{0};
  static inline std::atomic<int> made_{0};
  static inline std::atomic<int> aborted_{0};
  static inline std::atomic<bool> held_{false};
  static inline std::atomic<ncclResult_t> found_{ncclSuccess};
};

}  // namespace tandem::transport::testing

#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "common/base/unique_handle.h"
#include "common/cuda/cuda_status.h"
#include "common/cuda/stream.h"

namespace tandem::cuda {

// A recorded piece of work, ready to be launched again and again. It holds the addresses that were
// passed while recording, not their contents.
class GraphExec {
 public:
  // Runs `body`, which enqueues on `stream` (and on streams joined to it by events), and records
  // instead of executing. While it runs, this thread must make no call that cannot be recorded
  // (allocation, synchronization); such a call makes recording fail with CUDA's own message.
  template <typename Body>
  [[nodiscard]] static Result<GraphExec> record(const Stream& stream, Body&& body) {
    TANDEM_TRY(begin(stream));
    Status status = std::forward<Body>(body)();
    return end(stream, std::move(status));
  }
  GraphExec() = default;

  [[nodiscard]] cudaGraphExec_t get() const { return handle_.get(); }
  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(handle_); }
  // Enqueues the whole graph. The owner keeps it alive until the stream has passed it.
  [[nodiscard]] Status launch(const Stream& stream) const;
  // Copies the graph to the device ahead of its first launch, so that the first is as fast as
  // others.
  [[nodiscard]] Status upload(const Stream& stream) const;
  [[nodiscard]] size_t nodes() const { return nodes_; }  // kernels and copies recorded

 private:
  struct Traits {
    using Handle = cudaGraphExec_t;
    static Handle invalid() { return nullptr; }
    static void close(Handle graph) noexcept {
      report_failure(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
    }
  };
  [[nodiscard]] static Status begin(const Stream& stream);
  [[nodiscard]] static Result<GraphExec> end(const Stream& stream, Status body);

  UniqueHandle<Traits> handle_;
  size_t nodes_ = 0;
};

}  // namespace tandem::cuda

#include "common/cuda/graph.h"

namespace tandem::cuda {
namespace {

struct GraphTraits {
  using Handle = cudaGraph_t;
  static Handle invalid() { return nullptr; }
  static void close(Handle graph) noexcept {
    report_failure(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
};

}  // namespace

Status GraphExec::begin(const Stream& stream) {
  // Thread-local: what other threads do on other streams is none of this recording's business.
  return cuda_status(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
                     "cudaStreamBeginCapture");
}

Result<GraphExec> GraphExec::end(const Stream& stream, Status body) {
  cudaGraph_t raw = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.get(), &raw);  // in every case
  UniqueHandle<GraphTraits> graph(raw);
  TANDEM_TRY(std::move(body));
  TANDEM_TRY(cuda_status(ended, "cudaStreamEndCapture"));
  GraphExec result;
  TANDEM_CUDA_TRY(cudaGraphGetNodes(graph.get(), nullptr, &result.nodes_));
  cudaGraphExec_t exec = nullptr;
  TANDEM_CUDA_TRY(cudaGraphInstantiate(&exec, graph.get(), 0));
  result.handle_.reset(exec);
  return result;
}

Status GraphExec::launch(const Stream& stream) const {
  return cuda_status(cudaGraphLaunch(get(), stream.get()), "cudaGraphLaunch");
}

Status GraphExec::upload(const Stream& stream) const {
  return cuda_status(cudaGraphUpload(get(), stream.get()), "cudaGraphUpload");
}

}  // namespace tandem::cuda

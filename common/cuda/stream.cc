#include "common/cuda/stream.h"

namespace tandem::cuda {

Result<Stream> Stream::create(StreamPriority priority) {
  int least = 0, greatest = 0;  // numerically, greatest <= least
  TANDEM_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  TANDEM_CUDA_TRY(cudaStreamCreateWithPriority(
      &stream, cudaStreamNonBlocking, priority == StreamPriority::kHigh ? greatest : least));
  Stream result;
  result.handle_.reset(stream);
  return result;
}

Status Stream::synchronize() const {
  return cuda_status(cudaStreamSynchronize(get()), "cudaStreamSynchronize");
}

Status Stream::wait_for(const Event& event) const {
  return cuda_status(cudaStreamWaitEvent(get(), event.get(), 0), "cudaStreamWaitEvent");
}

Result<Event> Event::create(Kind kind) {
  const unsigned flags = kind == Kind::kTiming ? cudaEventDefault : cudaEventDisableTiming;
  cudaEvent_t event = nullptr;
  TANDEM_CUDA_TRY(cudaEventCreateWithFlags(&event, flags));
  Event result;
  result.handle_.reset(event);
  return result;
}

Status Event::record(const Stream& stream) const {
  return cuda_status(cudaEventRecord(get(), stream.get()), "cudaEventRecord");
}

Result<bool> Event::done() const {
  const cudaError_t state = cudaEventQuery(get());
  if (state == cudaErrorNotReady) return false;
  TANDEM_TRY(cuda_status(state, "cudaEventQuery"));
  return true;
}

Status Event::synchronize() const {
  return cuda_status(cudaEventSynchronize(get()), "cudaEventSynchronize");
}

Result<float> Event::milliseconds_since(const Event& start) const {
  float milliseconds = 0;
  TANDEM_CUDA_TRY(cudaEventElapsedTime(&milliseconds, start.get(), get()));
  return milliseconds;
}

}  // namespace tandem::cuda

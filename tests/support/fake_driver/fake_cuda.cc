#include "tests/support/fake_driver/fake_cuda.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda/page_copy.h"

namespace {

constexpr int kQueriesUntilCopied = 3;

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};
struct FakeStream {
  std::vector<Copy> copies;
  int queries = 0;
};
struct World {
  std::mutex mutex;
  std::map<cudaStream_t, FakeStream> streams;
  std::vector<std::string> notes;
  cudaError_t kernels = cudaSuccess;
  bool frozen = false;
  bool events_held = false;
  int memory_calls = 0;
  uintptr_t handles = 0;
};
World& world() {
  static World all;
  return all;
}
thread_local int current_device = 0;

template <typename Handle>
cudaError_t make(Handle* handle) {
  std::lock_guard lock(world().mutex);
  *handle = reinterpret_cast<Handle>(++world().handles * 16);
  return cudaSuccess;
}

void copy_all(FakeStream& stream) {
  for (const Copy& c : std::exchange(stream.copies, {})) std::memcpy(c.to, c.from, c.bytes);
}

void count_memory_call() {
  std::lock_guard lock(world().mutex);
  ++world().memory_calls;
}

cudaError_t allocate(void** data, size_t bytes) {
  *data = std::malloc(bytes);
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t release(void* data) {
  std::free(data);
  return cudaSuccess;
}

}  // namespace

namespace tandem::transport::testing {

void FakeCuda::reset() {
  std::lock_guard lock(world().mutex);
  world().streams.clear();
  world().notes.clear();
  world().kernels = cudaSuccess;
  world().frozen = false;
  world().events_held = false;
}

void FakeCuda::fail_kernels(cudaError_t error) {
  std::lock_guard lock(world().mutex);
  world().kernels = error;
}

void FakeCuda::freeze_streams() {
  std::lock_guard lock(world().mutex);
  world().frozen = true;
}

void FakeCuda::hold_events() {
  std::lock_guard lock(world().mutex);
  world().events_held = true;
}

int FakeCuda::memory_calls() {
  std::lock_guard lock(world().mutex);
  return world().memory_calls;
}

void FakeCuda::note(std::string event) {
  std::lock_guard lock(world().mutex);
  world().notes.push_back(std::move(event));
}

std::vector<std::string> FakeCuda::notes() {
  std::lock_guard lock(world().mutex);
  return world().notes;
}

int FakeCuda::device() { return current_device; }

}  // namespace tandem::transport::testing

cudaError_t tandem::cuda::page_copy(const PageCopy&, uint32_t, cudaStream_t) {
  std::lock_guard lock(world().mutex);
  return world().kernels;
}

extern "C" {

cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake"; }
const char* cudaGetErrorName(cudaError_t) { return "fake"; }
// Streams of the fake write no words: whoever waits asks events.
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  if (found != nullptr) *found = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 30;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return make(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  tandem::transport::testing::FakeCuda::note("stream ended");
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::lock_guard lock(world().mutex);
  if (!world().frozen) copy_all(world().streams[stream]);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  std::lock_guard lock(world().mutex);
  FakeStream& s = world().streams[stream];
  if (s.copies.empty()) return cudaSuccess;
  if (world().frozen || ++s.queries < kQueriesUntilCopied) return cudaErrorNotReady;
  copy_all(s);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return make(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) {
  std::lock_guard lock(world().mutex);
  return world().events_held ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  count_memory_call();
  return allocate(data, bytes);
}
cudaError_t cudaFree(void* data) {
  count_memory_call();
  return release(data);
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) { return allocate(data, bytes); }
cudaError_t cudaFreeHost(void* data) { return release(data); }
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  std::lock_guard lock(world().mutex);
  world().streams[stream].copies.push_back({to, from, bytes});
  return cudaSuccess;
}

}  // extern "C"

#include "common/cuda/arena.h"

#include <cuda_runtime_api.h>

namespace tandem::cuda {

Result<Arena> Arena::create(const Device& device, ArenaRequest request) {
  const DeviceScope scope(device.info().index);
  TANDEM_ASSIGN(const Device::Memory memory, device.memory());
  request.device =
      "device " + std::to_string(device.info().index) + " (" + device.info().name + ")";
  request.total_bytes = memory.total;
  request.free_bytes = memory.free;
  Arena arena;
  TANDEM_ASSIGN(arena.plan_, plan_arena(request));
  auto allocated = DeviceBuffer::create(arena.plan_.bytes);
  if (!allocated) {
    if (allocated.error().code != ErrorCode::kResourceExhausted)
      return fail(std::move(allocated).error());
    const auto now = device.memory();
    return fail(arena_race(request, arena.plan_, now ? now->free : 0));
  }
  arena.memory_ = std::move(*allocated);
  // A page is read up to its end before all of it is written, and 0 * NaN is NaN.
  for (const ArenaSpan& span : {arena.plan_.kv_pages, arena.plan_.kv_tails}) {
    if (span.bytes == 0) continue;
    TANDEM_CUDA_TRY(cudaMemset(arena.at(span), 0, span.bytes));
  }
  TANDEM_CUDA_TRY(cudaDeviceSynchronize());
  arena.description_ = describe(request, arena.plan_);
  return arena;
}

}  // namespace tandem::cuda

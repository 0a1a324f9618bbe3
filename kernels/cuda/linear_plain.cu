#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_small.h"
#include "kernels/cuda/rows.cuh"

// Matrix products of any size: a warp an output, an element a lane and turn.
namespace tandem::cuda {
namespace {

constexpr int kWarps = 8;

struct Task {
  const __nv_bfloat16* weight;
  const __nv_bfloat16* bias;
  const __nv_bfloat16* x;
  void* result;
  int in;
  int out;
  uint32_t rows;
};

template <SmallEpilogue kEpilogue>
__global__ void __launch_bounds__(kWarps * 32) linear_plain_kernel(Task task) {
  allow_next();
  wait_for_previous();
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto output = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  const auto dot = [&](int64_t row, int o) {
    float sum = 0;
    for (int i = lane; i < task.in; i += 32)
      sum = fmaf(__bfloat162float(task.weight[int64_t{o} * task.in + i]),
                 __bfloat162float(task.x[row * task.in + i]), sum);
    return warp_sum(sum) + (task.bias == nullptr ? 0.0F : __bfloat162float(task.bias[o]));
  };
  constexpr bool kPairs = kEpilogue == SmallEpilogue::kSiluMul;
  if (output * (kPairs ? 2 : 1) >= task.out) return;
  for (int64_t row = blockIdx.y; row < task.rows; row += gridDim.y) {
    if constexpr (kPairs) {
      const float gate = dot(row, output * 2);
      const float up = dot(row, output * 2 + 1);
      if (lane == 0)
        static_cast<__nv_bfloat16*>(task.result)[row * (task.out / 2) + output] =
            __float2bfloat16_rn(silu(gate) * up);
    } else {
      const float y = dot(row, output);
      if (lane == 0) store_output<kEpilogue>(task.result, row * task.out + output, y);
    }
  }
}

using Kernel = void (*)(Task);

Kernel pick(SmallEpilogue epilogue) {
  switch (epilogue) {
    case SmallEpilogue::kStore:
      return linear_plain_kernel<SmallEpilogue::kStore>;
    case SmallEpilogue::kAdd:
      return linear_plain_kernel<SmallEpilogue::kAdd>;
    case SmallEpilogue::kSiluMul:
      return linear_plain_kernel<SmallEpilogue::kSiluMul>;
    case SmallEpilogue::kStoreFloat:
      return linear_plain_kernel<SmallEpilogue::kStoreFloat>;
  }
  return nullptr;
}

}  // namespace

cudaError_t linear_plain(const SmallLinear& task, cudaStream_t stream) {
  if (task.rows == 0 || task.out == 0) return cudaSuccess;
  if (task.x == nullptr) return cudaErrorInvalidValue;
  const int64_t outputs = task.epilogue == SmallEpilogue::kSiluMul ? task.out / 2 : task.out;
  const Task raw{reinterpret_cast<const __nv_bfloat16*>(task.weight),
                 reinterpret_cast<const __nv_bfloat16*>(task.bias),
                 reinterpret_cast<const __nv_bfloat16*>(task.x),
                 task.result,
                 static_cast<int>(task.in),
                 static_cast<int>(task.out),
                 task.rows};
  const dim3 grid(static_cast<unsigned>((outputs + kWarps - 1) / kWarps),
                  std::min(task.rows, kMaxGridY));
  return launch_chained(pick(task.epilogue), grid, dim3(kWarps * 32), 0, stream, raw);
}

}  // namespace tandem::cuda

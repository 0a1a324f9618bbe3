#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_fp8.h"
#include "kernels/cuda/rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ __forceinline__ float value_of(uint8_t bits) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
}

struct Task {
  const uint8_t* weight;
  const float* weight_scales;
  const __nv_bfloat16* bias;
  const uint8_t* x;
  const float* x_scales;
  void* result;
  int in;
  int out;
  uint32_t rows;
};

template <SmallEpilogue kEpilogue>
__global__ void __launch_bounds__(kThreads) linear_fp8_plain_kernel(Task task) {
  allow_next();
  wait_for_previous();
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto output = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  if (output >= task.out) return;
  for (int64_t row = blockIdx.y; row < task.rows; row += gridDim.y) {
    float sum = 0;
    for (int i = lane; i < task.in; i += 32)
      sum = fmaf(value_of(task.weight[int64_t{output} * task.in + i]),
                 value_of(task.x[row * task.in + i]), sum);
    float y = warp_sum(sum) * task.weight_scales[output] * task.x_scales[row];
    if (task.bias != nullptr) y += __bfloat162float(task.bias[output]);
    if (lane == 0) store_output<kEpilogue>(task.result, row * task.out + output, y);
  }
}

using Kernel = void (*)(Task);

Kernel pick(SmallEpilogue epilogue) {
  switch (epilogue) {
    case SmallEpilogue::kStore:
      return linear_fp8_plain_kernel<SmallEpilogue::kStore>;
    case SmallEpilogue::kAdd:
      return linear_fp8_plain_kernel<SmallEpilogue::kAdd>;
    case SmallEpilogue::kStoreFloat:
      return linear_fp8_plain_kernel<SmallEpilogue::kStoreFloat>;
    case SmallEpilogue::kSiluMul:
      break;
  }
  return nullptr;
}

}  // namespace

cudaError_t linear_fp8_plain(const Fp8Linear& task, cudaStream_t stream) {
  if (task.rows == 0 || task.out == 0) return cudaSuccess;
  const Kernel kernel = pick(task.epilogue);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const Task raw{task.weight,
                 task.weight_scales,
                 reinterpret_cast<const __nv_bfloat16*>(task.bias),
                 task.x,
                 task.x_scales,
                 task.result,
                 static_cast<int>(task.in),
                 static_cast<int>(task.out),
                 task.rows};
  const dim3 grid(static_cast<unsigned>((task.out + kWarps - 1) / kWarps),
                  std::min(task.rows, kMaxGridY));
  return launch_chained(kernel, grid, dim3(kThreads), 0, stream, raw);
}

}  // namespace tandem::cuda

#include "kernels/cuda/kv_transcode.h"

#include <algorithm>

#include "kernels/cuda/kv_codec.cuh"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr uint32_t kThreads = 256;

struct Args {
  KvTranscode task;
  PageShape from;
  PageShape to;
};

// ---- rows in registers: head dims of 64, 128 and 256, a row is 8, 16 or 32 lanes ----

template <Coding C>
__device__ __forceinline__ void load_run(const std::byte* section, uint32_t head_dim,
                                         uint32_t token, uint32_t c, float (&x)[kRun]) {
  const uint32_t at = token * head_dim + c;
  if constexpr (C == Coding::kBf16) {
    const uint4 v = __ldcs(reinterpret_cast<const uint4*>(section + 2 * at));
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (uint32_t i = 0; i < kRun; ++i)
      x[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000U);
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kRun; ++i) x[i] = decode_element<C>(section, head_dim, token, c + i);
  }
}

template <Coding C>
__device__ __forceinline__ void store_scaled_run(float (&x)[kRun], uint32_t head_dim,
                                                 uint32_t token, uint32_t c, std::byte* section) {
  constexpr float kTop = C == Coding::kInt8 ? 127.0F : kv::kMaxE4m3;
  float amplitude = 0.0F;
#pragma unroll
  for (float& v : x) {
    v = kv_clean(v);
    amplitude = fmaxf(amplitude, fabsf(v));
  }
  amplitude = lanes_reduce(amplitude, head_dim / kRun, larger);
  uint16_t h = 0;
  float inverse = 0.0F;
  if (amplitude >= kv::kMinAmplitude) {
    h = half_bits(__fmul_rn(amplitude, 1.0F / kTop));
    if (__fmul_rn(half_value(h), kTop) < amplitude) ++h;
    inverse = __frcp_rn(half_value(h));
  }
  uint32_t words[2] = {};
#pragma unroll
  for (uint32_t i = 0; i < kRun; i += 2) {
    uint32_t two;
    if constexpr (C == Coding::kInt8) {
      const int32_t a = __float2int_rn(clamp_level(__fmul_rn(x[i], inverse), -127.0F, 127.0F));
      const int32_t b = __float2int_rn(clamp_level(__fmul_rn(x[i + 1], inverse), -127.0F, 127.0F));
      two = __byte_perm(static_cast<uint32_t>(a), static_cast<uint32_t>(b), 0x0040) & 0xffffU;
    } else {
      // A row of zeros has no negative ones.
      const float2 v = {__fmul_rn(x[i], inverse), __fmul_rn(x[i + 1], inverse)};
      two = h == 0 ? 0U : __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3);
    }
    words[i / 4] |= two << (i % 4 * 8);
  }
  *reinterpret_cast<uint2*>(section + token * head_dim + c) = {words[0], words[1]};
  if (c == 0) reinterpret_cast<uint16_t*>(section + kPageTokens * head_dim)[token] = h;
}

template <Coding C>
__device__ __forceinline__ void store_run(float (&x)[kRun], uint32_t head_dim, uint32_t token,
                                          uint32_t c, std::byte* section) {
  const uint32_t at = token * head_dim + c;
  if constexpr (C == Coding::kF32) {
    auto* to = reinterpret_cast<float4*>(section + 4 * at);
    to[0] = {x[0], x[1], x[2], x[3]};
    to[1] = {x[4], x[5], x[6], x[7]};
  } else if constexpr (C == Coding::kBf16) {
    uint32_t words[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
      words[i] = uint32_t{bf16_bits(x[2 * i])} | uint32_t{bf16_bits(x[2 * i + 1])} << 16;
    *reinterpret_cast<uint4*>(section + 2 * at) = {words[0], words[1], words[2], words[3]};
  } else if constexpr (C == Coding::kFourBitRows) {
    store_v4_run(x, head_dim, token, c, true, section);
  } else {
    store_scaled_run<C>(x, head_dim, token, c, section);
  }
}

template <Coding A, Coding B, bool kRound>
__device__ void transcode_runs(const std::byte* from, std::byte* to, uint32_t head_dim) {
  const uint32_t vectors = head_dim / kRun;
  // A multiple of whole warps for these head dims, so lanes_reduce() finds all lanes.
  for (uint32_t i = threadIdx.x; i < kPageTokens * vectors; i += kThreads) {
    float x[kRun];
    load_run<A>(from, head_dim, i / vectors, i % vectors * kRun, x);
    if constexpr (kRound) {
#pragma unroll
      for (float& v : x) v = bf16_value(bf16_bits(v));
    }
    store_run<B>(x, head_dim, i / vectors, i % vectors * kRun, to);
  }
}

// ---- rows in shared memory: every head dim, and keys that want their whole page ----

template <Coding A, Coding B, bool kRound>
__device__ void transcode_rows(const std::byte* from, std::byte* to, uint32_t head_dim,
                               float* rows) {
  for (uint32_t i = threadIdx.x; i < kPageTokens * head_dim; i += kThreads) {
    const float x = decode_element<A>(from, head_dim, i / head_dim, i % head_dim);
    rows[i] = kRound ? bf16_value(bf16_bits(x)) : x;
  }
  __syncthreads();
  if constexpr (B == Coding::kFourBitChannels) {
    auto* levels = reinterpret_cast<uint64_t*>(rows + kPageTokens * head_dim);
    block_encode_k4_page(rows, head_dim, head_dim, levels, to);
  } else {
    for (uint32_t t = threadIdx.x / kWarp; t < kPageTokens; t += kThreads / kWarp)
      warp_encode_row<B>(rows + t * head_dim, head_dim, t, to);
  }
  __syncthreads();
}

template <Coding A, Coding B, bool kRound>
__device__ void transcode_section(const std::byte* from, std::byte* to, uint32_t head_dim,
                                  float* rows) {
  if constexpr (B != Coding::kFourBitChannels) {
    if (head_dim == 64 || head_dim == 128 || head_dim == 256)
      return transcode_runs<A, B, kRound>(from, to, head_dim);
  }
  transcode_rows<A, B, kRound>(from, to, head_dim, rows);
}

template <kv::KvFormat A, kv::KvFormat B>
__global__ void __launch_bounds__(kThreads) kv_transcode_kernel(const __grid_constant__ Args args) {
  extern __shared__ float rows[];
  wait_for_previous();
  allow_next();
  constexpr bool kRound = B == kv::KvFormat::kInt4;  // as kv::seal_tail says
  const uint32_t sections = args.task.count * args.from.kv_heads * 2;
  for (uint32_t i = blockIdx.x; i < sections; i += gridDim.x) {
    const KvTranscode::Page page = args.task.pages[i / 2 / args.from.kv_heads];
    const uint32_t head = i / 2 % args.from.kv_heads;
    const std::byte* from = page.from + head * args.from.head_bytes;
    std::byte* to = page.to + head * args.to.head_bytes;
    if (i % 2 == 0)
      transcode_section<key_coding(A), key_coding(B), kRound>(from, to, args.from.head_dim, rows);
    else
      transcode_section<value_coding(A), value_coding(B), kRound>(
          from + args.from.k_bytes, to + args.to.k_bytes, args.from.head_dim, rows);
  }
}

using Kernel = void (*)(Args);
Kernel kernel_from_bf16(kv::KvFormat to) {
  using kv::KvFormat;
  switch (to) {
    case KvFormat::kF32:
      return kv_transcode_kernel<KvFormat::kBf16, KvFormat::kF32>;
    case KvFormat::kBf16:
      return kv_transcode_kernel<KvFormat::kBf16, KvFormat::kBf16>;
    case KvFormat::kInt8:
      return kv_transcode_kernel<KvFormat::kBf16, KvFormat::kInt8>;
    case KvFormat::kK8V4:
      return kv_transcode_kernel<KvFormat::kBf16, KvFormat::kK8V4>;
    case KvFormat::kInt4:
      return kv_transcode_kernel<KvFormat::kBf16, KvFormat::kInt4>;
    case KvFormat::kFp8E4M3:
      return kv_transcode_kernel<KvFormat::kBf16, KvFormat::kFp8E4M3>;
  }
  return nullptr;
}
Kernel kernel_to_bf16(kv::KvFormat from) {
  using kv::KvFormat;
  switch (from) {
    case KvFormat::kF32:
      return kv_transcode_kernel<KvFormat::kF32, KvFormat::kBf16>;
    case KvFormat::kBf16:
      return kv_transcode_kernel<KvFormat::kBf16, KvFormat::kBf16>;
    case KvFormat::kInt8:
      return kv_transcode_kernel<KvFormat::kInt8, KvFormat::kBf16>;
    case KvFormat::kK8V4:
      return kv_transcode_kernel<KvFormat::kK8V4, KvFormat::kBf16>;
    case KvFormat::kInt4:
      return kv_transcode_kernel<KvFormat::kInt4, KvFormat::kBf16>;
    case KvFormat::kFp8E4M3:
      return kv_transcode_kernel<KvFormat::kFp8E4M3, KvFormat::kBf16>;
  }
  return nullptr;
}
Kernel kernel_of(kv::KvFormat from, kv::KvFormat to) {
  if (from == kv::KvFormat::kBf16) return kernel_from_bf16(to);
  return to == kv::KvFormat::kBf16 ? kernel_to_bf16(from) : nullptr;
}

}  // namespace

cudaError_t kv_transcode(const kv::KvLayout& from, const kv::KvLayout& to, const KvTranscode& task,
                         uint32_t blocks, cudaStream_t stream) {
  if (from.kv_heads != to.kv_heads || from.head_dim != to.head_dim || from.head_dim % 2 != 0 ||
      from.head_dim == 0 || from.head_dim > kMaxHeadDim || task.count > kMostTranscodePages)
    return cudaErrorInvalidValue;
  const Kernel kernel = kernel_of(from.format, to.format);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  if (task.count == 0) return cudaSuccess;
  const Args args{task, PageShape(from), PageShape(to)};
  const size_t row = from.head_dim * sizeof(float);
  const size_t shared = kPageTokens * row + from.head_dim * sizeof(uint64_t);
  // Four of these blocks keep one multiprocessor busy on its loads.
  const uint32_t grid = std::min(blocks * 4, task.count * from.kv_heads * 2);
  return launch_chained(kernel, grid, kThreads, shared, stream, args);
}

}  // namespace tandem::cuda

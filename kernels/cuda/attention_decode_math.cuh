#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kv_codec.cuh"

// The tensor-core arithmetic of decode attention on one page of one head, by one warp. Transposed,
// so that few columns (query row, head) fill the small side of mma.m16n8k16:
//   S^T[16 tokens][8 columns] = K[16 tokens][channels] * Q^T
//   O^T[channels][8 columns] += V^T[channels][16 tokens] * P^T
// A lane is (g, j) = (lane / 4, lane % 4). The order of channels is free as long as K and Q, or V
// and the accumulators, agree, so each lane loads whole 4 to 16 byte chunks of a row as they are
// stored and takes its fragments from them:
//   K: lane j of tokens g and g+8 takes the chunks c*4+j
//   V: lane g takes the chunks c*8+g of tokens 2j, 2j+1, 2j+8, 2j+9
namespace tandem::cuda {

enum class Math : uint8_t { kBf16, kHalf };

// fp8 elements become bf16 by moving bits, which leaves them 2^120 too small; the other factor of
// the product carries 2^100 and the rest is made up for in float32.
constexpr float kFp8Lift = 0x1p100F;
constexpr float kFp8Rest = 0x1p20F;

constexpr uint32_t bits_of(Coding c) {
  return c == Coding::kBf16 ? 16 : c == Coding::kInt8 || c == Coding::kE4m3 ? 8 : 4;
}
constexpr Math math_of(Coding c) {
  return c == Coding::kFourBitChannels || c == Coding::kFourBitRows ? Math::kHalf : Math::kBf16;
}
// The largest of 16, 8, 4 that divides what a lane takes of a row.
constexpr uint32_t chunk_of(uint32_t bytes) {
  return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : 4;
}

template <Math M>
__device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  if constexpr (M == Math::kBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// 2^x; a few units in the last place are nothing beside the rounding of the weights.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ uint32_t transpose8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

template <Math M>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (M == Math::kBf16) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&v);
  } else {
    const __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&v);
  }
}

__device__ __forceinline__ uint32_t lower_halves(uint32_t a, uint32_t b) {
  return __byte_perm(a, b, 0x5410);
}
__device__ __forceinline__ uint32_t upper_halves(uint32_t a, uint32_t b) {
  return __byte_perm(a, b, 0x7632);
}

__device__ __forceinline__ uint32_t half_sub(uint32_t a, uint32_t b) {
  const __half2 v =
      __hsub2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ uint32_t half_fma(uint32_t a, uint32_t b, uint32_t c) {
  const __half2 v =
      __hfma2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b),
              *reinterpret_cast<const __half2*>(&c));
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ uint32_t bf16_sub(uint32_t a, uint32_t b) {
  const __nv_bfloat162 v = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                   *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&v);
}

// Two elements each, in the low bytes of x's halves (what is above them does not matter).
// int8: the lower seven bits on top of 128 are exact in bf16; less 128, or 256 where the sign bit
// is set, they are the number.
__device__ __forceinline__ uint32_t int8_pair(uint32_t x) {
  const uint32_t rest = (x & 0x007f007fU) | 0x43004300U;
  const uint32_t less = (x & 0x00800080U) | 0x43004300U;
  return bf16_sub(rest, less);
}
__device__ __forceinline__ uint32_t e4m3_pair(uint32_t x) {
  return ((x << 8) & 0x80008000U) | ((x << 4) & 0x07f007f0U);
}
template <Coding C>
__device__ __forceinline__ uint32_t byte_pair(uint32_t x) {
  return C == Coding::kInt8 ? int8_pair(x) : e4m3_pair(x);
}
// Levels in the low or the high nibble of the low bytes, exactly, as halves.
__device__ __forceinline__ uint32_t low_nibbles(uint32_t x) {
  return half_sub((x & 0x000f000fU) | 0x64006400U, 0x64006400U);  // 1024 + n
}
__device__ __forceinline__ uint32_t high_nibbles(uint32_t x) {
  return half_sub((x & 0x00f000f0U) | 0x54005400U, 0x54005400U);  // 64 + n
}

template <uint32_t kBytes>
struct Chunk {
  uint32_t word[kBytes / 4];

  __device__ __forceinline__ explicit Chunk(const std::byte* from) {
    if constexpr (kBytes == 16) {
      const uint4 v = *reinterpret_cast<const uint4*>(from);
      word[0] = v.x;
      word[1] = v.y;
      word[2] = v.z;
      word[3] = v.w;
    } else if constexpr (kBytes == 8) {
      const uint2 v = *reinterpret_cast<const uint2*>(from);
      word[0] = v.x;
      word[1] = v.y;
    } else {
      word[0] = *reinterpret_cast<const uint32_t*>(from);
    }
  }
};

// ---- keys ----

template <Coding C, uint32_t kDim>
struct Keys {
  static constexpr uint32_t kRow = kDim * bits_of(C) / 8;
  static constexpr uint32_t kBytes = chunk_of(kRow / 4);
  static constexpr uint32_t kChunks = kRow / 4 / kBytes;
  static constexpr uint32_t kChannels = kBytes * 8 / bits_of(C);  // of a chunk
  static constexpr uint32_t kSteps = kChannels / 4;               // of 16 channels over the lanes
  static constexpr Math kMath = math_of(C);

  // Channels of the two halves of register r of a chunk.
  __host__ __device__ static constexpr uint32_t channel(uint32_t r, uint32_t half) {
    const uint32_t per_word = 32 / bits_of(C);
    return r * 2 / per_word * per_word + r % (per_word / 2) * (per_word == 2 ? 2 : 1) +
           half * (per_word / 2);
  }

  // s[p][n] = K * Q^T of page p and columns 8n .. 8n+7; q(n, step) gives the fragments of Q.
  template <uint32_t kPages, uint32_t kTiles, typename Query>
  __device__ static __forceinline__ void score(const std::byte* const (&pages)[kPages],
                                               const Query& q, float (&s)[kPages][kTiles][4]) {
    const uint32_t g = threadIdx.x % kWarp / 4;
    const uint32_t j = threadIdx.x % 4;
    // A second chain where there are few products, so that they wait less for each other.
    constexpr bool kTwo = kPages * kTiles < 4;
    float odd[kPages][kTiles][4] = {};
#pragma unroll
    for (uint32_t p = 0; p < kPages; ++p)
#pragma unroll
      for (uint32_t n = 0; n < kTiles; ++n)
#pragma unroll
        for (float& x : s[p][n]) x = 0.0F;
#pragma unroll
    for (uint32_t c = 0; c < kChunks; ++c) {
      uint32_t a[kPages][kChannels / 2];
      uint32_t b[kPages][kChannels / 2];
#pragma unroll
      for (uint32_t p = 0; p < kPages; ++p) {
        const std::byte* at = pages[p] + g * kRow + (c * 4 + j) * kBytes;
        const Chunk<kBytes> x(at);
        const Chunk<kBytes> y(at + 8 * kRow);
        unpack(pages[p], c, x, y, a[p], b[p]);
      }
#pragma unroll
      for (uint32_t step = 0; step < kSteps; ++step)
#pragma unroll
        for (uint32_t n = 0; n < kTiles; ++n) {
          const uint2 f = q(n, c * kSteps + step);
#pragma unroll
          for (uint32_t p = 0; p < kPages; ++p)
            mma<kMath>(kTwo && step % 2 == 1 ? odd[p][n] : s[p][n], a[p][2 * step], b[p][2 * step],
                       a[p][2 * step + 1], b[p][2 * step + 1], f.x, f.y);
        }
    }
    if constexpr (kTwo) {
#pragma unroll
      for (uint32_t p = 0; p < kPages; ++p)
#pragma unroll
        for (uint32_t n = 0; n < kTiles; ++n)
#pragma unroll
          for (uint32_t i = 0; i < 4; ++i) s[p][n][i] += odd[p][n][i];
    }
  }

 private:
  __device__ static __forceinline__ void unpack(const std::byte* keys, uint32_t c,
                                                const Chunk<kBytes>& x, const Chunk<kBytes>& y,
                                                uint32_t (&a)[kChannels / 2],
                                                uint32_t (&b)[kChannels / 2]) {
    if constexpr (C == Coding::kBf16) {
#pragma unroll
      for (uint32_t w = 0; w < kBytes / 4; ++w) {
        a[w] = x.word[w];
        b[w] = y.word[w];
      }
    } else if constexpr (C == Coding::kInt8 || C == Coding::kE4m3) {
#pragma unroll
      for (uint32_t w = 0; w < kBytes / 4; ++w) {
        a[2 * w] = byte_pair<C>(x.word[w]);
        a[2 * w + 1] = byte_pair<C>(x.word[w] >> 8);
        b[2 * w] = byte_pair<C>(y.word[w]);
        b[2 * w + 1] = byte_pair<C>(y.word[w] >> 8);
      }
    } else {
      const uint32_t first = (c * 4 + threadIdx.x % 4) * kChannels;
      const std::byte* scales = keys + kPageTokens * kRow + 2 * first;
#pragma unroll
      for (uint32_t w = 0; w < kBytes / 4; ++w) {
        const Chunk<16> s(scales + 16 * w);
        const Chunk<16> m(scales + 2 * kDim + 16 * w);
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t k = i / 2;  // registers 0, 1 of words 0 and 2, then 2, 3 of 1 and 3
          const uint32_t scale = i % 2 == 0 ? lower_halves(s.word[k], s.word[k + 2])
                                            : upper_halves(s.word[k], s.word[k + 2]);
          const uint32_t minimum = i % 2 == 0 ? lower_halves(m.word[k], m.word[k + 2])
                                              : upper_halves(m.word[k], m.word[k + 2]);
          const uint32_t u = x.word[w] >> (8 * k);
          const uint32_t v = y.word[w] >> (8 * k);
          a[4 * w + i] = half_fma(i % 2 == 0 ? low_nibbles(u) : high_nibbles(u), scale, minimum);
          b[4 * w + i] = half_fma(i % 2 == 0 ? low_nibbles(v) : high_nibbles(v), scale, minimum);
        }
      }
    }
  }
};

// ---- values ----

// `kRun` is how many neighbouring channels a lane takes at a time: normally what a chunk holds.
template <Coding C, uint32_t kDim, uint32_t kRun = chunk_of(kDim* bits_of(C) / 64) * 8 / bits_of(C)>
struct Values {
  static constexpr uint32_t kRow = kDim * bits_of(C) / 8;
  static constexpr uint32_t kBytes = chunk_of(kRun * bits_of(C) / 8);
  static constexpr uint32_t kPieces = kRun * bits_of(C) / 8 / kBytes;  // loads of a run
  static constexpr uint32_t kRuns = kDim / 8 / kRun;
  static constexpr uint32_t kTiles = kDim / 16;
  static constexpr Math kMath = math_of(C);
  static constexpr uint32_t kRunChannels = kRun;
  static_assert(C != Coding::kFourBitRows || kRuns == 1, "a lane's channels share one scale");

  // Channel of a row of the accumulators: tile of 16, its upper or lower half, lane g.
  __host__ __device__ static constexpr uint32_t channel(uint32_t tile, uint32_t half, uint32_t g) {
    return tile / (kRun / 2) * 8 * kRun + g * kRun + tile % (kRun / 2) * 2 + half;
  }

  // acc[n] += V^T * P^T of columns 8n .. 8n+7, whose P^T fragments are p[n].
  template <uint32_t kColumns>
  __device__ static __forceinline__ void accumulate(const std::byte* values,
                                                    const uint32_t (&p)[kColumns][2],
                                                    float (&acc)[kColumns][kTiles][4]) {
    const uint32_t g = threadIdx.x % kWarp / 4;
    const uint32_t j = threadIdx.x % 4;
    uint32_t scale[2] = {};
    uint32_t minimum[2] = {};
    if constexpr (C == Coding::kFourBitRows) load_grid(values, g, j, scale, minimum);
#pragma unroll
    for (uint32_t c = 0; c < kRuns * kPieces; ++c) {
      const uint32_t run = c / kPieces;
      const std::byte* at =
          values + 2 * j * kRow + ((run * 8 + g) * kPieces + c % kPieces) * kBytes;
      const Chunk<kBytes> t0(at);
      const Chunk<kBytes> t1(at + kRow);
      const Chunk<kBytes> t2(at + 8 * kRow);
      const Chunk<kBytes> t3(at + 9 * kRow);
#pragma unroll
      for (uint32_t w = 0; w < kBytes / 4; ++w) {
        constexpr uint32_t kPerWord = 16 / bits_of(C);  // tiles
        uint32_t lower[2 * kPerWord];                   // tokens 2j, 2j+1 of each channel
        uint32_t upper[2 * kPerWord];
        pairs(t0.word[w], t1.word[w], scale[0], minimum[0], lower);
        pairs(t2.word[w], t3.word[w], scale[1], minimum[1], upper);
#pragma unroll
        for (uint32_t i = 0; i < kPerWord; ++i)
#pragma unroll
          for (uint32_t n = 0; n < kColumns; ++n)
            mma<kMath>(acc[n][(c * (kBytes / 4) + w) * kPerWord + i], lower[2 * i],
                       lower[2 * i + 1], upper[2 * i], upper[2 * i + 1], p[n][0], p[n][1]);
      }
    }
  }

 private:
  __device__ static __forceinline__ void load_grid(const std::byte* values, uint32_t g, uint32_t j,
                                                   uint32_t (&scale)[2], uint32_t (&minimum)[2]) {
    constexpr uint32_t kGroups = kv::v4_groups(kDim);
    const auto* scales = reinterpret_cast<const uint16_t*>(values + kPageTokens * kRow) +
                         2 * j * kGroups + g * kRun / kv::kV4Group;
    const uint16_t* minima = scales + kPageTokens * kGroups;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      scale[i] = scales[8 * i * kGroups] | uint32_t{scales[(8 * i + 1) * kGroups]} << 16;
      minimum[i] = minima[8 * i * kGroups] | uint32_t{minima[(8 * i + 1) * kGroups]} << 16;
    }
  }

  // The channels of one word of two tokens, in order: each with both tokens in one register.
  template <uint32_t kCount>
  __device__ static __forceinline__ void pairs(uint32_t x, uint32_t y, uint32_t scale,
                                               uint32_t minimum, uint32_t (&out)[kCount]) {
    const uint32_t low = lower_halves(x, y);
    const uint32_t high = upper_halves(x, y);
    if constexpr (C == Coding::kBf16) {
      out[0] = low;
      out[1] = high;
    } else if constexpr (C == Coding::kInt8 || C == Coding::kE4m3) {
      out[0] = byte_pair<C>(low);
      out[1] = byte_pair<C>(low >> 8);
      out[2] = byte_pair<C>(high);
      out[3] = byte_pair<C>(high >> 8);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t u = (i < 2 ? low : high) >> (i % 2 * 8);
        out[2 * i] = half_fma(low_nibbles(u), scale, minimum);
        out[2 * i + 1] = half_fma(high_nibbles(u), scale, minimum);
      }
    }
  }
};

}  // namespace tandem::cuda

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

constexpr uint32_t bits_of(Coding c) {
  return c == Coding::kBf16 ? 16 : c == Coding::kInt8 || c == Coding::kE4m3 ? 8 : 4;
}
constexpr Math math_of(Coding c) { return c == Coding::kBf16 ? Math::kBf16 : Math::kHalf; }
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
__device__ __forceinline__ uint32_t half_mul(uint32_t a, uint32_t b) {
  const __half2 v =
      __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ uint32_t half_fma(uint32_t a, uint32_t b, uint32_t c) {
  const __half2 v =
      __hfma2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b),
              *reinterpret_cast<const __half2*>(&c));
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ uint32_t half_max(uint32_t a, uint32_t b) {
  const __half2 v =
      __hmax2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ uint32_t half_min(uint32_t a, uint32_t b) {
  const __half2 v =
      __hmin2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ bool half_any_greater(uint32_t a, uint32_t b) {
  return !__hble2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
}
constexpr uint32_t half_negative(uint32_t x) { return x ^ 0x80008000U; }
constexpr uint32_t kHalfThirtyTwo = 0x50005000U;
constexpr uint32_t kHalfLargest = 0x7bff7bffU;
// (x & mask) | more in one instruction; left to itself the compiler makes two of it where both are
// constants.
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t mask, uint32_t more) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(more));
  return y;
}

// Four int8 elements as 128 more than they are.
__device__ __forceinline__ uint32_t biased(uint32_t x) { return x ^ 0x80808080U; }
// Two of them, bytes 0 and 1 or 2 and 3, as halves: kInt8Bias more than the elements.
constexpr float kInt8Bias = 1024.0F + 128.0F;
constexpr uint32_t kInt8BiasPair = 0x64806480U;
__device__ __forceinline__ uint32_t low_bytes(uint32_t x) {
  return __byte_perm(x, 0x64646464U, 0x4140);
}
__device__ __forceinline__ uint32_t high_bytes(uint32_t x) {
  return __byte_perm(x, 0x64646464U, 0x4342);
}
// Two e4m3 elements, exactly.
__device__ __forceinline__ uint32_t e4m3_pair(uint32_t x) {
  const __half2_raw v = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(x), __NV_E4M3);
  return uint32_t{v.x} | uint32_t{v.y} << 16;
}
// Levels in the low or the high nibble of the low bytes of x's halves (what is above them does not
// matter) as halves: 1024 or 64 more than they are.
constexpr uint32_t kLowNibbleBias = 0x64006400U;
constexpr uint32_t kHighNibbleBias = 0x54005400U;
__device__ __forceinline__ uint32_t low_nibbles(uint32_t x) {
  return and_or(x, 0x000f000fU, kLowNibbleBias);
}
__device__ __forceinline__ uint32_t high_nibbles(uint32_t x) {
  return and_or(x, 0x00f000f0U, kHighNibbleBias);
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
  // The largest element of a query in halves is brought to [2^this, 2^(this+1)).
  static constexpr uint32_t kQueryTop = 2;

  // Two neighbouring channels of a chunk that register r of its query has.
  __host__ __device__ static constexpr uint32_t word(uint32_t r) { return r; }

  // What every element is too large by; the scores' start makes up for it.
  static constexpr float kBias = C == Coding::kInt8 ? kInt8Bias : 0.0F;

  // s = K * Q^T of one page and eight columns, on top of `start` of the columns 2j and 2j+1.
  __device__ static __forceinline__ void score(const std::byte* page, const uint2 (&q)[kDim / 16],
                                               const float (&start)[2], float (&s)[4]) {
    const uint32_t g = threadIdx.x % kWarp / 4;
    const uint32_t j = threadIdx.x % 4;
    // Two chains, so that products wait less for each other.
    float odd[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) s[i] = start[i % 2];
#pragma unroll
    for (uint32_t c = 0; c < kChunks; ++c) {
      const std::byte* at = page + g * kRow + (c * 4 + j) * kBytes;
      const Chunk<kBytes> x(at);
      const Chunk<kBytes> y(at + 8 * kRow);
      uint32_t a[kChannels / 2];
      uint32_t b[kChannels / 2];
      unpack(x, y, a, b);
#pragma unroll
      for (uint32_t step = 0; step < kSteps; ++step) {
        const uint2 f = q[c * kSteps + step];
        mma<kMath>(step % 2 == 1 ? odd : s, a[2 * step], b[2 * step], a[2 * step + 1],
                   b[2 * step + 1], f.x, f.y);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) s[i] += odd[i];
  }

 private:
  __device__ static __forceinline__ void unpack(const Chunk<kBytes>& x, const Chunk<kBytes>& y,
                                                uint32_t (&a)[kChannels / 2],
                                                uint32_t (&b)[kChannels / 2]) {
    if constexpr (C == Coding::kBf16) {
#pragma unroll
      for (uint32_t w = 0; w < kBytes / 4; ++w) {
        a[w] = x.word[w];
        b[w] = y.word[w];
      }
    } else if constexpr (C == Coding::kInt8) {
#pragma unroll
      for (uint32_t w = 0; w < kBytes / 4; ++w) {
        a[2 * w] = low_bytes(biased(x.word[w]));
        a[2 * w + 1] = high_bytes(biased(x.word[w]));
        b[2 * w] = low_bytes(biased(y.word[w]));
        b[2 * w + 1] = high_bytes(biased(y.word[w]));
      }
    } else if constexpr (C == Coding::kE4m3) {
#pragma unroll
      for (uint32_t w = 0; w < kBytes / 4; ++w) {
        a[2 * w] = e4m3_pair(x.word[w]);
        a[2 * w + 1] = e4m3_pair(x.word[w] >> 16);
        b[2 * w] = e4m3_pair(y.word[w]);
        b[2 * w + 1] = e4m3_pair(y.word[w] >> 16);
      }
    }
  }
};

// Four bits with a scale and a minimum a channel: the queries take the scales, so that the levels
// stay as they are stored, and the minima have products of their own.
template <uint32_t kDim>
struct Keys<Coding::kFourBitChannels, kDim> {
  static constexpr uint32_t kRow = kDim / 2;
  static constexpr uint32_t kBytes = chunk_of(kRow / 4);
  static constexpr uint32_t kChunks = kRow / 4 / kBytes;
  static constexpr uint32_t kChannels = kBytes * 2;
  static constexpr Math kMath = Math::kHalf;
  static constexpr uint32_t kQueryTop = 1;  // times the largest scale, 2 * 65504 / 15, it fits

  __host__ __device__ static constexpr uint32_t word(uint32_t r) {
    return r / 4 * 4 + r % 2 * 2 + r % 4 / 2;
  }
  static constexpr float kBias = 0.0F;

  // As above. A nibble n at the foot of a half is the number n * 2^-24, one above it 16 times that.
  __device__ static __forceinline__ void score(const std::byte* page, const uint2 (&q)[kDim / 16],
                                               const float (&)[2], float (&s)[4]) {
    const uint32_t g = threadIdx.x % kWarp / 4;
    const uint32_t j = threadIdx.x % 4;
    float low[4] = {};
    float high[4] = {};
    float first[4] = {};
    float second[4] = {};
#pragma unroll
    for (uint32_t c = 0; c < kChunks; ++c) {
      const std::byte* at = page + g * kRow + (c * 4 + j) * kBytes;
      const Chunk<kBytes> x(at);
      const Chunk<kBytes> y(at + 8 * kRow);
      const std::byte* scales = page + kPageTokens * kRow + 2 * (c * 4 + j) * kChannels;
#pragma unroll
      for (uint32_t w = 0; w < kBytes / 4; ++w) {
        // Of channels 0 .. 7: a word's nibbles are 0, 1 to 6, 7 from its lowest byte on.
        const Chunk<16> scale(scales + 16 * w);
        const Chunk<16> minimum(scales + 2 * kDim + 16 * w);
        const uint2 even = q[c * (kChannels / 4) + 2 * w];     // words 0, 2
        const uint2 odd = q[c * (kChannels / 4) + 2 * w + 1];  // words 1, 3
        // Minima in the order in which they are loaded: tokens g have the products of even words,
        // tokens g+8 of the others have those of odd words.
        mma<kMath>(first, minimum.word[0], minimum.word[1], minimum.word[2], minimum.word[3],
                   even.x, even.y);
        mma<kMath>(second, minimum.word[0], minimum.word[1], minimum.word[2], minimum.word[3],
                   odd.x, odd.y);
        const uint32_t p01 = half_mul(even.x, scale.word[0]);
        const uint32_t p23 = half_mul(odd.x, scale.word[1]);
        const uint32_t p45 = half_mul(even.y, scale.word[2]);
        const uint32_t p67 = half_mul(odd.y, scale.word[3]);
        const uint32_t x2 = x.word[w] >> 8;
        const uint32_t y2 = y.word[w] >> 8;
        constexpr uint32_t kLow = 0x000f000fU;
        constexpr uint32_t kHigh = 0x00f000f0U;
        mma<kMath>(low, x.word[w] & kLow, y.word[w] & kLow, x2 & kLow, y2 & kLow,
                   lower_halves(p01, p45), lower_halves(p23, p67));
        mma<kMath>(high, x.word[w] & kHigh, y.word[w] & kHigh, x2 & kHigh, y2 & kHigh,
                   upper_halves(p01, p45), upper_halves(p23, p67));
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
      s[i] =
          __fmaf_rn(__fmaf_rn(high[i], 0x1p-4F, low[i]), 0x1p24F, first[i % 2] + second[2 + i % 2]);
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

  // acc += V^T * P^T of eight columns, whose P^T fragments are p. Of elements that are stored as
  // level * scale + minimum, the minima's part goes to `base`, that of all channels of the lane.
  __device__ static __forceinline__ void accumulate(const std::byte* values, const uint32_t (&p)[2],
                                                    float (&acc)[kTiles][4], float (&base)[4]) {
    if constexpr (C == Coding::kFourBitRows) {
      Grid grid(values);
      if (__any_sync(kAllLanes, grid.wide())) {
        add_products<true>(values, p, grid, acc);
      } else {
        mma<kMath>(base, grid.minimum[0], 0, grid.minimum[1], 0, p[0], p[1]);
        grid.shift();
        add_products<false>(values, p, grid, acc);
      }
    } else {
      add_products<false>(values, p, Grid(), acc);
    }
  }

 private:
  // Of tokens 2j, 2j+1 and 2j+8, 2j+9 in this lane's channels.
  struct Grid {
    uint32_t scale[2];
    uint32_t minimum[2];
    uint32_t low[2];  // what the bias of a low or high nibble comes to, negative
    uint32_t high[2];

    __device__ __forceinline__ Grid() {}
    __device__ __forceinline__ explicit Grid(const std::byte* values) {
      constexpr uint32_t kGroups = kv::v4_groups(kDim);
      const uint32_t g = threadIdx.x % kWarp / 4;
      const uint32_t j = threadIdx.x % 4;
      const auto* scales = reinterpret_cast<const uint16_t*>(values + kPageTokens * kRow) +
                           2 * j * kGroups + g * kRun / kv::kV4Group;
      const uint16_t* minima = scales + kPageTokens * kGroups;
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        scale[i] = scales[8 * i * kGroups] | uint32_t{scales[(8 * i + 1) * kGroups]} << 16;
        minimum[i] = minima[8 * i * kGroups] | uint32_t{minima[(8 * i + 1) * kGroups]} << 16;
      }
    }
    // 1024 times a scale, or 15 times one, might not fit a half: then minima are added to elements.
    __device__ __forceinline__ bool wide() const {
      return half_any_greater(half_max(scale[0], scale[1]), kHalfThirtyTwo);
    }
    // Rounding may have brought the highest level past the largest half.
    __device__ __forceinline__ uint32_t element(uint32_t level, uint32_t of) const {
      return half_min(half_fma(level, scale[of], minimum[of]), kHalfLargest);
    }
    __device__ __forceinline__ void shift() {
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        low[i] = half_mul(scale[i], half_negative(kLowNibbleBias));
        high[i] = half_mul(scale[i], half_negative(kHighNibbleBias));
      }
    }
  };

  template <bool kWide>
  __device__ static __forceinline__ void add_products(const std::byte* values,
                                                      const uint32_t (&p)[2], const Grid& grid,
                                                      float (&acc)[kTiles][4]) {
    const uint32_t g = threadIdx.x % kWarp / 4;
    const uint32_t j = threadIdx.x % 4;
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
        pairs<kWide>(t0.word[w], t1.word[w], grid, 0, lower);
        pairs<kWide>(t2.word[w], t3.word[w], grid, 1, upper);
#pragma unroll
        for (uint32_t i = 0; i < kPerWord; ++i)
          mma<kMath>(acc[(c * (kBytes / 4) + w) * kPerWord + i], lower[2 * i], lower[2 * i + 1],
                     upper[2 * i], upper[2 * i + 1], p[0], p[1]);
      }
    }
  }

  // The channels of one word of two tokens, in order: each with both tokens in one register.
  template <bool kWide, uint32_t kCount>
  __device__ static __forceinline__ void pairs(uint32_t x, uint32_t y, const Grid& grid,
                                               uint32_t of, uint32_t (&out)[kCount]) {
    // Of 8-bit elements: x0 y0 x1 y1 and x2 y2 x3 y3.
    constexpr bool kByByte = bits_of(C) == 8;
    const uint32_t low = kByByte ? __byte_perm(x, y, 0x5140) : lower_halves(x, y);
    const uint32_t high = kByByte ? __byte_perm(x, y, 0x7362) : upper_halves(x, y);
    if constexpr (C == Coding::kBf16) {
      out[0] = low;
      out[1] = high;
    } else if constexpr (C == Coding::kInt8) {
      out[0] = half_sub(low_bytes(biased(low)), kInt8BiasPair);
      out[1] = half_sub(high_bytes(biased(low)), kInt8BiasPair);
      out[2] = half_sub(low_bytes(biased(high)), kInt8BiasPair);
      out[3] = half_sub(high_bytes(biased(high)), kInt8BiasPair);
    } else if constexpr (C == Coding::kE4m3) {
      out[0] = e4m3_pair(low);
      out[1] = e4m3_pair(low >> 16);
      out[2] = e4m3_pair(high);
      out[3] = e4m3_pair(high >> 16);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t u = (i < 2 ? low : high) >> (i % 2 * 8);
        const uint32_t low_level = low_nibbles(u);
        const uint32_t high_level = high_nibbles(u);
        if constexpr (kWide) {
          out[2 * i] = grid.element(half_sub(low_level, kLowNibbleBias), of);
          out[2 * i + 1] = grid.element(half_sub(high_level, kHighNibbleBias), of);
        } else {  // level * scale: the product is exact before the sum, which is rounded once
          out[2 * i] = half_fma(low_level, grid.scale[of], grid.low[of]);
          out[2 * i + 1] = half_fma(high_level, grid.scale[of], grid.high[of]);
        }
      }
    }
  }
};

}  // namespace tandem::cuda

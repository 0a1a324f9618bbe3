#pragma once

#include <cstdint>

// Warpgroup matrix products (sm_90a): D[64, N] += A[64, 16] * B[16, N], bf16 in, float32 sums in
// registers. All 128 threads of a warpgroup issue the same instruction; it runs asynchronously
// between wgmma_fence() and wgmma_wait().
//
// Thread t of the warpgroup, w = t/32, l = t%32, holds of D in d[4j + 2i + c]:
//   row 16w + l/4 + 8i, column 8j + 2(l%4) + c.
// A from registers has the same rows: a[2j + i] packs columns 8j + 2(l%4) + {0, 1}, j = 0, 1.
//
// Matrices in shared memory are stored as swizzled panels: rows of `swizzle` bytes (128, 64, 32),
// as TMA writes a box with that many bytes a row. The fields of a descriptor, in bytes:
//   rows are M or N, columns K ("K-major"):   stride = 8 rows; leading unused
//   rows are K, columns N ("MN-major"):       stride = 8 rows; leading = from panel to panel
namespace tandem::cuda {

__device__ inline uint64_t wgmma_descriptor(uint32_t address, uint32_t leading, uint32_t stride,
                                            uint32_t swizzle) {
  const uint32_t kind = swizzle == 128 ? 1 : swizzle == 64 ? 2 : 3;
  return (uint64_t{(kind << 30) | (stride >> 4)} << 32) | ((leading >> 4) << 16) | (address >> 4);
}

// The same matrix `bytes` further on.
__device__ inline uint64_t wgmma_advance(uint64_t descriptor, uint32_t bytes) {
  const auto low = static_cast<uint32_t>(descriptor);
  return (descriptor & 0xFFFFFFFF00000000) | (low + (bytes >> 4));
}

// Registers written by ordinary instructions are ready for wgmma after this.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most `Pending` committed groups run.
template <int Pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps the compiler from moving uses of these registers across this line.
template <int Count>
__device__ inline void wgmma_pin(float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int Regs>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Regs));
}
template <int Regs>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Regs));
}

// The instruction for each N. `ss`: A[64, 16] and B[N, 16] K-major in shared memory; sums start
// from zero unless `add`. `rs`: A in registers, B[16, N] MN-major; always adds.
template <int N>
struct Wgmma;

// PTX names every register of a sum by itself: the lists, for sums of 16, 32, ... floats, and the
// operands d[i], d[i + 1], ... that go with them.
// clang-format off
#define TANDEM_SUMS_4 "%0, %1, %2, %3"
#define TANDEM_SUMS_8 TANDEM_SUMS_4 ", %4, %5, %6, %7"
#define TANDEM_SUMS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TANDEM_SUMS_32 TANDEM_SUMS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TANDEM_SUMS_48 TANDEM_SUMS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TANDEM_SUMS_64 TANDEM_SUMS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TANDEM_SUMS_80 TANDEM_SUMS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TANDEM_SUMS_96 TANDEM_SUMS_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TANDEM_SUMS_112 TANDEM_SUMS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define TANDEM_SUMS_128 TANDEM_SUMS_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TANDEM_D_4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define TANDEM_D_8(i) TANDEM_D_4(i), TANDEM_D_4((i) + 4)
#define TANDEM_D_16(i) TANDEM_D_4(i), TANDEM_D_4((i) + 4), TANDEM_D_4((i) + 8), TANDEM_D_4((i) + 12)
#define TANDEM_D_32(i) TANDEM_D_16(i), TANDEM_D_16((i) + 16)
#define TANDEM_D_64(i) TANDEM_D_32(i), TANDEM_D_32((i) + 32)
// clang-format on

template <>
struct Wgmma<64> {
  static __device__ void ss(float (&d)[32], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TANDEM_SUMS_32
        "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
        : TANDEM_D_32(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
  static __device__ void rs(float (&d)[32], const uint32_t* a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TANDEM_SUMS_32
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
        : TANDEM_D_32(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<96> {
  static __device__ void rs(float (&d)[48], const uint32_t* a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" TANDEM_SUMS_48
        "}, {%48, %49, %50, %51}, %52, p, 1, 1, 1;\n}\n"
        : TANDEM_D_32(0), TANDEM_D_16(32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<128> {
  static __device__ void ss(float (&d)[64], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TANDEM_SUMS_64
        "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : TANDEM_D_64(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
  static __device__ void rs(float (&d)[64], const uint32_t* a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TANDEM_SUMS_64
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
        : TANDEM_D_64(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<192> {
  static __device__ void rs(float (&d)[96], const uint32_t* a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" TANDEM_SUMS_96
        "}, {%96, %97, %98, %99}, %100, p, 1, 1, 1;\n}\n"
        : TANDEM_D_64(0), TANDEM_D_32(64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <>
struct Wgmma<256> {
  static __device__ void rs(float (&d)[128], const uint32_t* a, uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" TANDEM_SUMS_128
        "}, {%128, %129, %130, %131}, %132, p, 1, 1, 1;\n}\n"
        : TANDEM_D_64(0), TANDEM_D_64(64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

// Few columns; B[N, 16] K-major in shared memory, A there too (`ss`) or in registers (`rs`); always
// add. A0 .. and B name the operands that follow the sums.
template <int N>
struct WgmmaNarrow;

// clang-format off
#define TANDEM_NARROW(N, SUMS, D, A0, A1, A2, A3, B)                                                    \
  template <>                                                                                           \
  struct WgmmaNarrow<N> {                                                                               \
    static __device__ __forceinline__ void ss(float (&d)[N / 2], uint64_t a, uint64_t b) {              \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                           \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" SUMS "}, " A0 ", " A1   \
                   ", p, 1, 1, 0, 0;\n}\n"                                                              \
                   : D : "l"(a), "l"(b));                                                               \
    }                                                                                                   \
    static __device__ __forceinline__ void rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                           \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" SUMS "}, {" A0 ", " A1  \
                   ", " A2 ", " A3 "}, " B ", p, 1, 1, 0;\n}\n"                                         \
                   : D : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                           \
    }                                                                                                   \
  };
#define TANDEM_D_ALL_12 TANDEM_D_8(0), TANDEM_D_4(8)
#define TANDEM_D_ALL_24 TANDEM_D_16(0), TANDEM_D_8(16)
TANDEM_NARROW(8, TANDEM_SUMS_4, TANDEM_D_4(0), "%4", "%5", "%6", "%7", "%8")
TANDEM_NARROW(16, TANDEM_SUMS_8, TANDEM_D_8(0), "%8", "%9", "%10", "%11", "%12")
TANDEM_NARROW(24, TANDEM_SUMS_8 ", %8, %9, %10, %11", TANDEM_D_ALL_12, "%12", "%13", "%14", "%15", "%16")
TANDEM_NARROW(32, TANDEM_SUMS_16, TANDEM_D_16(0), "%16", "%17", "%18", "%19", "%20")
TANDEM_NARROW(48, TANDEM_SUMS_16 ", %16, %17, %18, %19, %20, %21, %22, %23", TANDEM_D_ALL_24, "%24", "%25", "%26", "%27", "%28")
TANDEM_NARROW(64, TANDEM_SUMS_32, TANDEM_D_32(0), "%32", "%33", "%34", "%35", "%36")
#undef TANDEM_NARROW
#undef TANDEM_D_ALL_12
#undef TANDEM_D_ALL_24
// clang-format on

#undef TANDEM_SUMS_4
#undef TANDEM_SUMS_8
#undef TANDEM_SUMS_16
#undef TANDEM_SUMS_32
#undef TANDEM_SUMS_48
#undef TANDEM_SUMS_64
#undef TANDEM_SUMS_80
#undef TANDEM_SUMS_96
#undef TANDEM_SUMS_112
#undef TANDEM_SUMS_128
#undef TANDEM_D_4
#undef TANDEM_D_8
#undef TANDEM_D_16
#undef TANDEM_D_32
#undef TANDEM_D_64

}  // namespace tandem::cuda

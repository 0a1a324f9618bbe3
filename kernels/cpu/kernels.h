#pragma once

#include <cstdint>

// The contract of the CPU kernels: raw pointers in, raw pointers out, one thread, no allocation.
// Only plain types here: these headers are compiled with different instruction-set flags, and an
// inline function of the standard library emitted under one of them could be linked into all.
//
// Reduction order. Every result that belongs to one row (of activations, of queries) is computed by
// an order of operations that depends on that row alone: never on how many rows come with it, on
// how the outputs are split over threads, or on tile sizes. That is what makes a request's tokens
// independent of its batch company and of how its prompt was cut. Between instruction sets results
// differ by rounding.
namespace tandem::cpu {

enum class CpuIsa : uint8_t;  // dispatch.h

inline constexpr int kPanel = 16;           // outputs in one packed panel of weights
inline constexpr int kPageTokens = 16;      // rows of one KV page
inline constexpr int kPartitionKeys = 128;  // keys between two rescalings of the running softmax
inline constexpr int kAttendRows = 8;       // query rows that share the loads of keys and values
inline constexpr int kValueGroup = 32;      // channels per scale in four-bit values

// ---- linear ----
// Packed weights: panels of 16 outputs, one after another.
//   f32:  float[in][16]
//   bf16: bf16[(in+1)/2][16][2], two consecutive inputs of one output side by side
// Inputs beyond `in` and outputs beyond the last are zero.
[[nodiscard]] constexpr int64_t panel_elements_f32(int64_t in) { return in * kPanel; }
[[nodiscard]] constexpr int64_t panel_elements_bf16(int64_t in) {
  return (in + 1) / 2 * 2 * kPanel;
}

// c[r][16*p + i] = sum over k of x[r][k] * panel p's output i, summed in the order of k.
struct LinearTask {
  // float, or bf16 for LinearKernels::bf16_rounded. For bf16 weights rows are padded to an even
  // count with a zero.
  const void* x = nullptr;
  int64_t x_stride = 0;  // elements from row to row
  int64_t rows = 0;
  const void* panels = nullptr;
  int64_t panel_count = 0;
  int64_t in = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
};

// ---- KV pages ----
// How one head's keys (or values) of a page are stored; sections as in common/kv/layout.h.
enum class KvElement : uint8_t { kF32, kBf16, kInt8, kInt4, kFp8 };

// ---- attention ----
// Rows attend to up to kPartitionKeys keys; the result is merged into their running state
// (max -inf, sum 0, acc 0 before the first partition).
struct AttendTask {
  const float* q = nullptr;  // [rows][head_dim], scale applied
  int64_t rows = 0;
  const int32_t* first = nullptr;  // [rows] row r sees keys first[r] .. last[r]-1 of the partition;
  const int32_t* last = nullptr;   //        none if last[r] <= first[r]
  const float* keys = nullptr;     // [pages][head_dim][16]
  const float* values = nullptr;   // [keys][value_stride], zero beyond head_dim
  int64_t head_dim = 0;
  int64_t value_stride = 0;  // head_dim rounded up to 16
  float* scratch = nullptr;  // attend_scratch(value_stride) floats
  float* max = nullptr;      // [rows]
  float* sum = nullptr;      // [rows]
  float* acc = nullptr;      // [rows][value_stride]
};

[[nodiscard]] constexpr int64_t attend_scratch(int64_t value_stride) {
  return kAttendRows * (kPartitionKeys + value_stride);
}
[[nodiscard]] constexpr int64_t value_stride(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

struct LinearKernels {
  void (*f32)(const LinearTask&);
  void (*bf16)(const LinearTask&);
  // bf16 weights with activations rounded to bf16: twice as fast where the instruction set
  // multiplies such pairs, null elsewhere.
  void (*bf16_rounded)(const LinearTask&);
};

struct RowKernels {
  // out = x / sqrt(mean(x^2) + eps) * scale
  void (*rms_norm)(const float* x, const float* scale, float eps, int64_t n, float* out);
  // To nearest even; an odd n is padded with one zero.
  void (*round_to_bf16)(const float* x, int64_t n, uint16_t* out);
  // out = a + bias; bias may be null
  void (*store)(const float* a, const float* bias, int64_t n, float* out);
  // x += a + bias; bias may be null
  void (*add)(const float* a, const float* bias, int64_t n, float* x);
  // out = silu(gate + gate_bias) * (up + up_bias); biases may be null
  void (*silu_mul)(const float* gate, const float* up, const float* gate_bias, const float* up_bias,
                   int64_t n, float* out);
  // out += weight * a
  void (*axpy)(const float* a, float weight, int64_t n, float* out);
  // Rotates pairs (i, i + half) in place.
  void (*rope)(float* x, const float* cos, const float* sin, int64_t half);
};

// Rows of a panel from and to float.
struct PackKernels {
  // `count` <= 16 rows, `stride` floats apart; the panel's other rows become zero.
  void (*pack_f32)(const float* rows, int64_t stride, int64_t count, int64_t in, float* panel);
  void (*pack_bf16)(const float* rows, int64_t stride, int64_t count, int64_t in, uint16_t* panel);
  void (*unpack_f32)(const float* panel, int64_t lane, int64_t in, float* out);
  void (*unpack_bf16)(const uint16_t* panel, int64_t lane, int64_t in, float* out);
};

// One head's section of one page. The bytes and the numbers are those of common/kv/codec.h.
struct KvKernels {
  // out[head_dim][16]: keys come out transposed. Tokens from `valid` on are zeros, whatever the
  // page holds there.
  void (*load_keys)(KvElement e, const void* section, int64_t head_dim, int64_t valid, float* out);
  // out[16][value_stride], zeros beyond head_dim and from `valid` on.
  void (*load_values)(KvElement e, const void* section, int64_t head_dim, int64_t valid,
                      float* out);
  // Encodes one token's row; not for kInt4 keys, which need the whole page.
  void (*store_key)(KvElement e, const float* row, int64_t head_dim, int64_t token, void* section);
  void (*store_value)(KvElement e, const float* row, int64_t head_dim, int64_t token,
                      void* section);
  // Encodes 16 rows, `stride` floats apart, as kInt4 keys.
  void (*store_keys_int4)(const float* rows, int64_t stride, int64_t head_dim, void* section);
};

struct AttentionKernels {
  void (*attend)(const AttendTask&);
  // Merges a partial (max, sum, acc) of one row into its running state; n == value_stride.
  void (*merge)(float part_max, float part_sum, const float* part_acc, int64_t n, float* max,
                float* sum, float* acc);
  // out = acc / sum
  void (*finish)(const float* acc, float sum, int64_t n, float* out);
};

struct KernelTable {
  CpuIsa isa;
  const LinearKernels& linear;
  const RowKernels& rows;
  const PackKernels& pack;
  const KvKernels& kv;
  const AttentionKernels& attention;
};

// The table of a variant; the caller has asked supported_isas() that this machine runs it.
[[nodiscard]] const KernelTable& kernels(CpuIsa isa);

// Where the kernels of each operation are defined: one translation unit per operation and
// instruction set, with its own compiler flags. tables.cc puts them together.
extern const LinearKernels kLinearReference;
extern const RowKernels kRowsReference;
extern const PackKernels kPackReference;
extern const KvKernels kKvReference;
extern const AttentionKernels kAttentionReference;

extern const LinearKernels kLinearAvx2;
extern const RowKernels kRowsAvx2;
extern const PackKernels kPackAvx2;
extern const KvKernels kKvAvx2;
extern const AttentionKernels kAttentionAvx2;

extern const LinearKernels kLinearAvx512;
extern const RowKernels kRowsAvx512;
extern const AttentionKernels kAttentionAvx512;

extern const LinearKernels kLinearAvx512Bf16;

}  // namespace tandem::cpu

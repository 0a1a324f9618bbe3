#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/kv/layout.h"

// What one step looks like to the kernels. All pointers are device memory whose addresses stay the
// same for the engine's lifetime, so that a recorded graph sees each step's contents. Launchers in
// this folder take raw pointers and a stream, enqueue, and return cudaGetLastError(); they never
// allocate or synchronize.
namespace tandem::cuda {

// What these kernels take, for engines to refuse the rest before they load it. kv_write counts rows
// along y, eight or more a block; plain kernels count rows times heads in 32 bits, as tiles of
// prefill do; units of decode attention count columns, rows times heads of a group, in 16.
inline constexpr uint32_t kMaxHeadDim = 256;
inline constexpr uint32_t kMaxHeads = 4096;  // of queries
inline constexpr uint32_t kMaxStepRows = 1U << 18;

// One sequence's part of a step (engine::SequenceView on the device).
struct SequenceSlot {
  uint32_t first_row = 0;    // in the packed batch
  uint32_t rows = 0;         // new tokens; 0: a padding slot
  uint32_t start = 0;        // position of its first new token
  uint32_t first_block = 0;  // its block table begins here in DeviceStep::blocks
  uint32_t tail = 0;         // tail slot, layouts with needs_tail()
};

// A ragged batch. `rows` and `sequences` are what is launched: the real counts, or in a recorded
// graph the bucket's, filled up with padding rows (row_sequence -1) and padding slots (rows 0).
// Kernels write nothing for padding rows but may leave anything in their activations.
struct DeviceStep {
  const int32_t* tokens = nullptr;        // [rows]
  const int32_t* positions = nullptr;     // [rows]
  const int32_t* row_sequence = nullptr;  // [rows]
  const SequenceSlot* slots = nullptr;    // [sequences]
  const uint32_t* blocks = nullptr;       // block tables, back to back
  uint32_t rows = 0;
  uint32_t sequences = 0;
  uint32_t max_rows = 0;     // most new rows of one sequence (launch bound)
  uint32_t max_context = 0;  // longest start + rows (launch bound)
};

// The KV pool on the device; addressing as engine::KvPages, bytes as common/kv/codec.h defines.
struct DeviceKv {
  kv::KvLayout layout;
  std::byte* pages = nullptr;
  uint32_t blocks = 0;
  std::byte* tail = nullptr;
  uint32_t tails = 0;
};

// cos/sin of rotary embedding as [max_positions][rotary_dim / 2] pairs; "rotate half" convention.
struct DeviceRope {
  const float2* cos_sin = nullptr;
  uint32_t max_positions = 0;
  uint32_t rotary_dim = 0;
};

}  // namespace tandem::cuda

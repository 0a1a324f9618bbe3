#pragma once

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/kv_page.cuh"

// The variants behind attention_decode(), which chooses among them.
namespace tandem::cuda {

// Any head dim up to 256, every format, any rows, after kv_write: a warp a query, plain arithmetic,
// no plan.
cudaError_t attention_decode_plain(const DeviceStep& step, const DeviceKv& kv,
                                   const DecodeAttention& task, cudaStream_t stream);

// Tensor cores, the step's keys and values written as well unless they are already
// (attention_decode_block.cuh); one file a format. cudaErrorInvalidValue for head dims that they
// are not made for.
namespace decode {

struct Args {
  DeviceStep step;
  LayerPages layer;
  QkvColumns columns;
  DeviceRope rope;
  const float* q_norm;
  const float* k_norm;
  float norm_eps;
  const Bf16* qkv;
  Bf16* out;
  const DecodeUnit* units;
  const uint32_t* ranges;
  float* partials;
  uint32_t* counters;
  uint32_t heads;
  uint32_t group;
  uint32_t window;
  float scale_log2;
  bool written;  // DecodeAttention's
};

using Launch = cudaError_t (*)(const Args& args, uint32_t head_dim, uint32_t blocks,
                               cudaStream_t stream);
cudaError_t attention_bf16(const Args& args, uint32_t head_dim, uint32_t blocks,
                           cudaStream_t stream);
cudaError_t attention_fp8(const Args& args, uint32_t head_dim, uint32_t blocks,
                          cudaStream_t stream);
cudaError_t attention_int8(const Args& args, uint32_t head_dim, uint32_t blocks,
                           cudaStream_t stream);
cudaError_t attention_k8v4(const Args& args, uint32_t head_dim, uint32_t blocks,
                           cudaStream_t stream);
cudaError_t attention_int4(const Args& args, uint32_t head_dim, uint32_t blocks,
                           cudaStream_t stream);

}  // namespace decode
}  // namespace tandem::cuda

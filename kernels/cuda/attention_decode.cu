#include "kernels/cuda/attention_decode.h"

#include "kernels/cuda/attention_decode_kernels.h"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/kv_write.h"

namespace tandem::cuda {
namespace {

// The tensor-core variant of a format and head dim, or null.
decode::Launch launch_of(kv::KvFormat format, uint32_t head_dim) {
  const bool whole = head_dim == 64 || head_dim == 128 || head_dim == 256;
  const bool thirds = head_dim == 96 || head_dim == 192;
  switch (format) {
    case kv::KvFormat::kF32:
      return nullptr;
    case kv::KvFormat::kBf16:
      return whole || thirds ? decode::attention_bf16 : nullptr;
    case kv::KvFormat::kFp8E4M3:
      return whole || thirds ? decode::attention_fp8 : nullptr;
    case kv::KvFormat::kInt8:
      return whole || thirds ? decode::attention_int8 : nullptr;
    case kv::KvFormat::kK8V4:
      return whole ? decode::attention_k8v4 : nullptr;
    case kv::KvFormat::kInt4:
      return whole ? decode::attention_int4 : nullptr;
  }
  return nullptr;
}

cudaError_t write_and_attend(const DeviceStep& step, const DeviceKv& kv,
                             const DecodeAttention& task, cudaStream_t stream) {
  if (task.written) return attention_decode_plain(step, kv, task, stream);
  KvWrite write;
  write.layer = task.layer;
  write.heads = task.shape.heads;
  write.rope = task.rope;
  write.q_norm = task.q_norm;
  write.k_norm = task.k_norm;
  write.norm_eps = task.norm_eps;
  write.qkv = task.qkv;
  write.kept = task.kept;
  const cudaError_t error = kv_write(step, kv, write, stream);
  return error != cudaSuccess ? error : attention_decode_plain(step, kv, task, stream);
}

}  // namespace

cudaError_t attention_decode(const DeviceStep& step, const DeviceKv& kv,
                             const DecodeAttention& task, cudaStream_t stream) {
  constexpr float kLog2e = 1.44269504F;
  const DecodeShape& shape = task.shape;
  if (step.max_rows > (task.written ? kDecodeRows : 1) || shape.head_dim == 0 ||
      shape.head_dim % 2 != 0 || shape.head_dim > kMaxHeadDim ||
      task.rope.rotary_dim > shape.head_dim)
    return cudaErrorInvalidValue;
  if (step.rows == 0) return cudaSuccess;
  const decode::Launch launch = launch_of(kv.layout.format, shape.head_dim);
  if (launch == nullptr) return write_and_attend(step, kv, task, stream);
  const decode::Args args{step,
                          LayerPages(kv, task.layer, task.kept),
                          QkvColumns(shape.heads, shape.kv_heads, shape.head_dim),
                          task.rope,
                          task.q_norm,
                          task.k_norm,
                          task.norm_eps,
                          task.qkv,
                          task.out,
                          task.units,
                          task.ranges,
                          static_cast<float*>(task.partials),
                          task.counters,
                          shape.heads,
                          shape.group(),
                          shape.window,
                          task.scale * kLog2e,
                          task.written};
  return launch(args, shape.head_dim, task.blocks, stream);
}

}  // namespace tandem::cuda

#include "kernels/cuda/attention_decode_kernels.h"
#include "kernels/cuda/kv_page.cuh"

namespace tandem::cuda {
namespace {

// The tensor-core variant of a format and head dim, or null.
paged::Launch paged_launch(kv::KvFormat format, uint32_t head_dim) {
  const bool whole = head_dim == 64 || head_dim == 128 || head_dim == 256;
  const bool thirds = head_dim == 96 || head_dim == 192;
  switch (format) {
    case kv::KvFormat::kF32:
      return nullptr;
    case kv::KvFormat::kBf16:
      return whole || thirds ? paged::attention_decode_bf16 : nullptr;
    case kv::KvFormat::kFp8E4M3:
      return whole || thirds ? paged::attention_decode_fp8 : nullptr;
    case kv::KvFormat::kInt8:
      return whole || thirds ? paged::attention_decode_int8 : nullptr;
    case kv::KvFormat::kK8V4:
      return whole ? paged::attention_decode_k8v4 : nullptr;
    case kv::KvFormat::kInt4:
      return whole ? paged::attention_decode_int4 : nullptr;
  }
  return nullptr;
}

}  // namespace

cudaError_t attention_decode(const DeviceStep& step, const DeviceKv& kv,
                             const DecodeAttention& task, cudaStream_t stream) {
  const uint32_t head_dim = task.shape.head_dim;
  if (step.max_rows > kDecodeMaxRows || head_dim == 0 || head_dim % 2 != 0 ||
      head_dim > kMaxHeadDim)
    return cudaErrorInvalidValue;
  if (step.rows == 0) return cudaSuccess;
  const paged::Launch launch = paged_launch(kv.layout.format, head_dim);
  if (launch == nullptr) return attention_decode_plain(step, kv, task, stream);
  constexpr float kLog2e = 1.44269504F;
  const paged::Args args{step,
                         LayerPages(kv, task.layer, const_cast<void*>(task.kept)),
                         QkvColumns(task.shape.heads, task.shape.kv_heads, head_dim),
                         task.qkv,
                         task.out,
                         task.units,
                         task.ranges,
                         static_cast<float*>(task.partials),
                         task.counters,
                         task.shape.heads,
                         task.shape.group(),
                         task.shape.window,
                         task.scale * kLog2e,
                         0};
  return launch(args, head_dim, decode_columns(task.shape, step.max_rows), task.blocks, stream);
}

}  // namespace tandem::cuda

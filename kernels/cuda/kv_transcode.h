#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/kv/layout.h"

// Rewrites KV pages of one format as another on their way: from scattered pages of a pool into one
// message, from a message into pages, or straight into the mapped pages of a peer, in one pass. The
// bytes are those that common/kv/codec.h gives for the decoded floats.
namespace tandem::cuda {

inline constexpr uint32_t kMostTranscodePages = 512;

// Passed to the kernel by value, so it need not outlive the call.
struct KvTranscode {
  struct Page {
    const std::byte* from = nullptr;  // one page each (layout.page_bytes()), 16-byte aligned
    std::byte* to = nullptr;
  };
  Page pages[kMostTranscodePages];
  uint32_t count = 0;
};

// One of the layouts is bf16; both have the same heads and head_dim, which is at most 256. A target
// with needs_tail() wants full pages. `blocks` bounds the multiprocessors that it takes; others
// keep computing beside it. Enqueues; neither allocates nor waits. cudaErrorInvalidValue for
// layouts that do not fit.
cudaError_t kv_transcode(const kv::KvLayout& from, const kv::KvLayout& to, const KvTranscode& task,
                         uint32_t blocks, cudaStream_t stream);

}  // namespace tandem::cuda

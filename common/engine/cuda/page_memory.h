#pragma once

#include <memory>
#include <string>

#include "common/cuda/memory.h"
#include "common/kv/page_memory.h"

namespace tandem::engine {

// KV pages in memory of one device, with a copy stream of its own. `pages` and `tails` hold a pool
// of `layout`; the memory is plain cudaMalloc memory, which other processes can map.
[[nodiscard]] Result<std::unique_ptr<kv::PageMemory>> create_cuda_page_memory(
    int device, cuda::DeviceBuffer pages, cuda::DeviceBuffer tails);

}  // namespace tandem::engine

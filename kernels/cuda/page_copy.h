#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// Copies and checks KV pages for transports: gather, scatter, pull from a peer's mapped memory, or
// only checksum, in one pass over the bytes.
namespace tandem::cuda {

// The unit of work of one block: this many bytes of one piece.
inline constexpr size_t kPageCopyItem = 64u << 10;
inline constexpr uint32_t kMostPageCopyPieces = 512;

// Pieces of one length. Passed to the kernel by value, so it need not outlive the call.
struct PageCopy {
  struct Piece {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;  // null: checksum only
  };
  Piece pieces[kMostPageCopyPieces];
  uint32_t count = 0;
  size_t bytes = 0;  // of each piece; a multiple of 4; at full speed a multiple of 16, as addresses
  // [count * page_copy_items(bytes)], written once each; the sum of a piece's items is its checksum
  // (transport::piece_checksum). Memory that the device can write: pinned host memory will do.
  uint64_t* sums = nullptr;
};
[[nodiscard]] constexpr uint32_t page_copy_items(size_t bytes) {
  return static_cast<uint32_t>((bytes + kPageCopyItem - 1) / kPageCopyItem);
}

// `blocks` bounds the multiprocessors that it takes; others keep computing beside it.
cudaError_t page_copy(const PageCopy& task, uint32_t blocks, cudaStream_t stream);

}  // namespace tandem::cuda

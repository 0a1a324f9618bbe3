#include "common/cuda/stream_flags.h"

#include <atomic>
#include <string>

namespace tandem::cuda {

Result<StreamFlags> StreamFlags::create(size_t count) {
  StreamFlags flags;
  TANDEM_ASSIGN(flags.words_, PinnedBuffer::create(count * sizeof(uint32_t)));
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  TANDEM_CUDA_TRY(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &function, 12000,
                                                   cudaEnableDefault, &found));
  if (found == cudaDriverEntryPointSuccess) flags.write_ = reinterpret_cast<Write>(function);
  return flags;
}

Status StreamFlags::write(const Stream& stream, size_t index, uint32_t value) const {
  if (!usable()) return {};
  const auto address = reinterpret_cast<unsigned long long>(words_.as<uint32_t>() + index);
  const int error = write_(stream.get(), address, value, 0);
  if (error == 0) return {};
  return fail(ErrorCode::kInternal, "cuStreamWriteValue32: error " + std::to_string(error));
}

uint32_t StreamFlags::read(size_t index) const {
  return std::atomic_ref(words_.as<uint32_t>()[index]).load(std::memory_order_acquire);
}

}  // namespace tandem::cuda

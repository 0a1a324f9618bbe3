#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <utility>

#include "common/base/unique_handle.h"
#include "common/cuda/cuda_status.h"
#include "common/cuda/stream.h"

// Owners of memory. Made at load only: allocating and freeing synchronize the device.
namespace tandem::cuda {

// Owns one allocation of the kind that Memory makes: allocate(bytes) and free(data). Empty (null)
// for 0 bytes.
template <typename Memory>
class Buffer {
 public:
  [[nodiscard]] static Result<Buffer> create(size_t bytes) {
    Buffer result;
    if (bytes == 0) return result;
    TANDEM_ASSIGN(std::byte * data, Memory::allocate(bytes));
    result.handle_.reset(data);
    result.bytes_ = bytes;
    return result;
  }
  Buffer() = default;

  [[nodiscard]] std::byte* data() const { return handle_.get(); }
  [[nodiscard]] size_t bytes() const { return bytes_; }
  template <typename T>
  [[nodiscard]] T* as(size_t byte_offset = 0) const {
    return reinterpret_cast<T*>(data() + byte_offset);
  }

 private:
  struct Traits {
    using Handle = std::byte*;
    static Handle invalid() { return nullptr; }
    static void close(Handle data) noexcept { Memory::free(data); }
  };
  UniqueHandle<Traits> handle_;
  size_t bytes_ = 0;
};

// Device memory, uninitialized, 256-byte aligned.
struct DeviceMemory {
  [[nodiscard]] static Result<std::byte*> allocate(size_t bytes);
  static void free(std::byte* data) noexcept;
};
using DeviceBuffer = Buffer<DeviceMemory>;

// Page-locked host memory, zeroed; what copies run at full speed and without blocking from and to.
struct PinnedMemory {
  [[nodiscard]] static Result<std::byte*> allocate(size_t bytes);
  static void free(std::byte* data) noexcept;
};
using PinnedBuffer = Buffer<PinnedMemory>;

// Locks somebody else's host memory (a mapped checkpoint, a KV pool) for as long as it lives; the
// memory must outlive it.
class PinnedRegistration {
 public:
  [[nodiscard]] static Result<PinnedRegistration> create(std::span<std::byte> memory);
  PinnedRegistration() = default;

 private:
  struct Traits {
    using Handle = std::byte*;
    static Handle invalid() { return nullptr; }
    static void close(Handle data) noexcept {
      report_failure(cudaHostUnregister(data), "cudaHostUnregister");
    }
  };
  UniqueHandle<Traits> handle_;
};

// Enqueue a copy; source and target must stay valid until the stream has passed it. To be
// asynchronous the host side must be pinned; pageable memory is read before the call returns.
[[nodiscard]] Status copy_to_device(void* device, const void* host, size_t bytes,
                                    const Stream& stream);
[[nodiscard]] Status copy_to_host(void* host, const void* device, size_t bytes,
                                  const Stream& stream);
[[nodiscard]] Status copy_on_device(void* to, const void* from, size_t bytes, const Stream& stream);

}  // namespace tandem::cuda

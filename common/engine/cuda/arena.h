#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/cuda/memory.h"
#include "common/cuda/memory_plan.h"

namespace tandem::engine {

// The device memory of one engine, made at load and kept to its end. Knows what each part takes, so
// that running out names all of them. Device thread only.
class DeviceArena {
 public:
  // Chunks of the arena that small allocations share.
  static constexpr size_t kChunkBytes = size_t{64} << 20;

  // One piece of memory that all allocations then share, as far as it goes. Before the first.
  [[nodiscard]] Status reserve(size_t bytes);
  // 256-byte aligned, zeroed by the caller if it matters. `part` is a word for messages: weights,
  // activations, workspace, KV pool, …
  [[nodiscard]] Result<std::byte*> allocate(size_t bytes, std::string_view part);
  // The same as an owner of its own, for memory that may outlive the arena.
  [[nodiscard]] Result<cuda::DeviceBuffer> allocate_apart(size_t bytes, std::string_view part);

  [[nodiscard]] size_t bytes() const { return reserved_; }
  [[nodiscard]] size_t bytes_of(std::string_view part) const;
  // For planning the KV pool: what is taken and how to take less.
  [[nodiscard]] std::vector<cuda::MemoryPart> parts() const;
  // "weights 15.2 GB, activations 0.1 GB"
  [[nodiscard]] std::string describe() const;

 private:
  void count(std::string_view part, size_t bytes);
  [[nodiscard]] Error out_of_memory(const Error& cause, size_t bytes, std::string_view part) const;

  std::vector<cuda::DeviceBuffer> chunks_;
  size_t used_ = 0;  // of the last shared chunk
  size_t room_ = 0;
  std::byte* shared_ = nullptr;
  size_t reserved_ = 0;
  std::vector<std::pair<std::string, size_t>> parts_;
};

// "1.50 GB"
[[nodiscard]] std::string gigabytes(size_t bytes);

}  // namespace tandem::engine

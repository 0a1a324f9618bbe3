#include "common/engine/cuda/arena.h"

#include <algorithm>
#include <cstdio>

namespace tandem::engine {
namespace {

constexpr size_t kAlign = 256;

}  // namespace

std::string gigabytes(size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB", static_cast<double>(bytes) * 1e-9);
  return text;
}

Status DeviceArena::reserve(size_t bytes) {
  auto chunk = cuda::DeviceBuffer::create(bytes);
  if (!chunk) return fail(out_of_memory(chunk.error(), bytes, "the engine"));
  shared_ = chunk->data();
  room_ = bytes;
  used_ = 0;
  reserved_ += bytes;
  chunks_.push_back(std::move(*chunk));
  return {};
}

Result<std::byte*> DeviceArena::allocate(size_t bytes, std::string_view part) {
  bytes = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  if (bytes <= room_ - used_) {
    std::byte* at = shared_ + used_;
    used_ += bytes;
    count(part, bytes);
    return at;
  }
  const bool shares = bytes < kChunkBytes / 2;
  auto chunk = cuda::DeviceBuffer::create(shares ? kChunkBytes : bytes);
  if (!chunk) return fail(out_of_memory(chunk.error(), bytes, part));
  std::byte* at = chunk->data();
  reserved_ += chunk->bytes();
  if (shares) {
    shared_ = at;
    room_ = kChunkBytes;
    used_ = bytes;
  }
  chunks_.push_back(std::move(*chunk));
  count(part, bytes);
  return at;
}

Result<cuda::DeviceBuffer> DeviceArena::allocate_apart(size_t bytes, std::string_view part) {
  auto buffer = cuda::DeviceBuffer::create(bytes);
  if (!buffer) return fail(out_of_memory(buffer.error(), bytes, part));
  reserved_ += bytes;
  count(part, bytes);
  return buffer;
}

void DeviceArena::count(std::string_view part, size_t bytes) {
  for (auto& [name, sum] : parts_) {
    if (name != part) continue;
    sum += bytes;
    return;
  }
  parts_.emplace_back(part, bytes);
}

size_t DeviceArena::bytes_of(std::string_view part) const {
  for (const auto& [name, sum] : parts_)
    if (name == part) return sum;
  return 0;
}

std::vector<cuda::MemoryPart> DeviceArena::parts() const {
  std::vector<cuda::MemoryPart> result;
  for (const auto& [name, sum] : parts_) {
    cuda::MemoryPart part;
    part.name = name;
    part.bytes = sum;
    if (name == "activations") part.remedy = "lower max_batch_tokens";
    if (name == "workspace") part.remedy = "lower max_sequences or model.max_context";
    result.push_back(std::move(part));
  }
  return result;
}

std::string DeviceArena::describe() const {
  std::string text;
  for (const auto& [name, sum] : parts_) {
    if (!text.empty()) text += ", ";
    text += name + " " + gigabytes(sum);
  }
  return text.empty() ? "nothing" : text;
}

Error DeviceArena::out_of_memory(const Error& cause, size_t bytes, std::string_view part) const {
  if (cause.code != ErrorCode::kResourceExhausted) return cause;
  return make_error(cause.code,
                    "no room for " + gigabytes(bytes) + " of " + std::string(part) + " beside " +
                        describe() + " of this process (" + cause.detail +
                        "); free the card of other processes, or lower kv.memory, "
                        "gpu_memory_utilization, max_batch_tokens or max_context, or use a card "
                        "with more memory");
}

}  // namespace tandem::engine

#include "common/engine/cpu/weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "common/engine/cpu/thread_pool.h"

namespace tandem::engine {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// Small tensors share a mapping of this size; what is not touched costs no memory.
constexpr size_t kChunk = size_t{64} << 20;
constexpr size_t kAlign = 64;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

std::string shape_of(const model::HostTensor& t) {
  std::string s = "[";
  for (const int64_t d : t.shape) s += (s.size() > 1 ? ", " : "") + std::to_string(d);
  return s + "]";
}

Status check_matrix(const model::HostTensor& t, int64_t in) {
  if (t.shape.size() != 2 || t.rows() <= 0 || t.cols() <= 0)
    return fail(ErrorCode::kMismatch,
                "tensor '" + t.name + "' must be a matrix, its shape is " + shape_of(t));
  if (t.cols() != in)
    return fail(ErrorCode::kMismatch, "tensor '" + t.name + "' of shape " + shape_of(t) +
                                          " must have " + std::to_string(in) +
                                          " columns, as the one it is fused with");
  const size_t need =
      static_cast<size_t>(t.rows()) * model::storage_bytes(t.type, static_cast<size_t>(t.cols()));
  if (t.bytes.size() < need)
    return fail(ErrorCode::kCorruptData, "tensor '" + t.name + "' holds " +
                                             std::to_string(t.bytes.size()) + " bytes, its shape " +
                                             shape_of(t) + " needs " + std::to_string(need));
  return {};
}

}  // namespace

CpuArena::~CpuArena() {
  for (const Chunk& c : chunks_) munmap(c.data, c.size);
}

Result<std::byte*> CpuArena::allocate(size_t bytes) {
  const size_t size = round_up(std::max<size_t>(bytes, 1), kAlign);
  for (Chunk& c : chunks_) {
    if (c.size - c.used < size) continue;
    std::byte* p = c.data + c.used;
    c.used += size;
    return p;
  }
  const size_t mapped = round_up(std::max(size, kChunk), kHugePage);
  // One huge page more, to start on the boundary of one.
  void* raw = mmap(nullptr, mapped + kHugePage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED)
    return fail(ErrorCode::kResourceExhausted, "cannot map " + std::to_string(mapped) +
                                                   " bytes for weights: " + std::strerror(errno));
  auto* start = static_cast<std::byte*>(raw);
  const size_t head =
      round_up(reinterpret_cast<uintptr_t>(start), kHugePage) - reinterpret_cast<uintptr_t>(start);
  if (head != 0) munmap(start, head);
  if (head != kHugePage) munmap(start + head + mapped, kHugePage - head);
  // Advice only: without huge pages everything works, a little slower.
  madvise(start + head, mapped, MADV_HUGEPAGE);
  chunks_.push_back({start + head, mapped, size});
  return chunks_.back().data;
}

void WeightLoader::pack(const model::HostTensor& part, const LinearPart& place, CpuLinear& weight) {
  auto* base = const_cast<std::byte*>(weight.panels);  // of this loader's arena, still being filled
  const auto in = static_cast<size_t>(weight.in);
  pool_.split(place.panels, 1, [&](uint32_t, int64_t begin, int64_t end) {
    std::vector<float> rows(in * cpu::kPanel);
    for (int64_t p = begin; p < end; ++p) {
      const int64_t count = std::min<int64_t>(cpu::kPanel, place.out - p * cpu::kPanel);
      for (int64_t i = 0; i < count; ++i)
        model::read_row(part, p * cpu::kPanel + i,
                        std::span(rows).subspan(static_cast<size_t>(i) * in, in));
      std::byte* panel = base + static_cast<size_t>(place.panel_begin + p) * weight.panel_bytes;
      if (weight.type == DType::kF32)
        kernels_.pack.pack_f32(rows.data(), weight.in, count, weight.in,
                               reinterpret_cast<float*>(panel));
      else
        kernels_.pack.pack_bf16(rows.data(), weight.in, count, weight.in,
                                reinterpret_cast<uint16_t*>(panel));
    }
  });
}

Result<const float*> WeightLoader::bias(std::span<const model::HostTensor* const> biases,
                                        const CpuLinear& weight) {
  if (std::ranges::all_of(biases, [](const auto* b) { return b == nullptr; })) return nullptr;
  if (biases.size() != weight.parts.size())
    return fail(ErrorCode::kInternal,
                "a fused projection of " + std::to_string(weight.parts.size()) +
                    " parts was given " + std::to_string(biases.size()) + " biases");
  TANDEM_ASSIGN(std::byte * memory,
                arena_.allocate(static_cast<size_t>(weight.out) * sizeof(float)));
  auto* values = reinterpret_cast<float*>(memory);
  for (size_t i = 0; i < biases.size(); ++i) {
    if (biases[i] == nullptr) continue;
    const LinearPart& place = weight.parts[i];
    if (biases[i]->elements() != place.out)
      return fail(ErrorCode::kMismatch, "bias '" + biases[i]->name + "' of shape " +
                                            shape_of(*biases[i]) + " must have " +
                                            std::to_string(place.out) + " values");
    model::read_row(*biases[i], 0,
                    std::span(values + place.out_begin, static_cast<size_t>(place.out)));
  }
  bytes_ += static_cast<size_t>(weight.out) * sizeof(float);
  return values;
}

Result<std::unique_ptr<CpuLinear>> WeightLoader::linear(
    std::span<const model::HostTensor* const> parts,
    std::span<const model::HostTensor* const> biases, DType type) {
  if (parts.empty()) return fail(ErrorCode::kInternal, "a projection needs at least one tensor");
  auto weight = std::make_unique<CpuLinear>();
  weight->type = type;
  weight->in = parts[0]->cols();
  for (const model::HostTensor* part : parts) {
    TANDEM_TRY(check_matrix(*part, weight->in));
    const int64_t panels = (part->rows() + cpu::kPanel - 1) / cpu::kPanel;
    weight->parts.push_back({weight->panel_count, panels, weight->out, part->rows()});
    weight->panel_count += panels;
    weight->out += part->rows();
  }
  weight->panel_bytes =
      static_cast<size_t>(type == DType::kF32 ? 4 * cpu::panel_elements_f32(weight->in)
                                              : 2 * cpu::panel_elements_bf16(weight->in));
  const size_t total = weight->panel_bytes * static_cast<size_t>(weight->panel_count);
  TANDEM_ASSIGN(weight->panels, arena_.allocate(total));
  bytes_ += total;
  for (size_t i = 0; i < parts.size(); ++i) pack(*parts[i], weight->parts[i], *weight);
  TANDEM_ASSIGN(weight->bias, bias(biases, *weight));
  return weight;
}

Result<const float*> WeightLoader::vector(const model::HostTensor& values) {
  const auto n = static_cast<size_t>(values.elements());
  if (values.shape.size() > 1 || n == 0)
    return fail(ErrorCode::kMismatch,
                "tensor '" + values.name + "' must be a vector, its shape is " + shape_of(values));
  TANDEM_ASSIGN(std::byte * memory, arena_.allocate(n * sizeof(float)));
  auto* out = reinterpret_cast<float*>(memory);
  model::read_row(values, 0, std::span(out, n));
  bytes_ += n * sizeof(float);
  return out;
}

}  // namespace tandem::engine

#include "common/engine/cuda/weights.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>

#include "common/engine/cuda/fp8_row.h"

namespace tandem::engine {
namespace {

constexpr size_t kStagingBytes = size_t{32} << 20;
// Converting is what loading waits for: one thread writes a few GB/s, the bus takes 55.
constexpr size_t kThreads = 8;
constexpr size_t kBytesPerThread = size_t{1} << 20;

// Row of a matrix as bf16. Row-major bf16 checkpoints are copied, the rest goes through float32.
void write_row(const model::HostTensor& t, int64_t row, std::byte* to,
               std::vector<float>& scratch) {
  const auto cols = static_cast<size_t>(t.shape.back());
  if (t.type == model::StorageType::kBf16) {
    const auto stored = static_cast<size_t>(t.shape.size() < 2 ? 0 : stored_row(t, row));
    std::memcpy(to, t.bytes.data() + stored * cols * sizeof(Bf16), cols * sizeof(Bf16));
    return;
  }
  scratch.resize(cols);
  model::read_row(t, row, scratch);
  auto* out = reinterpret_cast<Bf16*>(to);
  for (size_t i = 0; i < cols; ++i) out[i] = to_bf16(scratch[i]);
}

Status check_parts(std::span<const model::HostTensor* const> parts,
                   std::span<const model::HostTensor* const> biases) {
  if (parts.empty()) return fail(ErrorCode::kInternal, "a projection without parts");
  for (const model::HostTensor* part : parts)
    if (part->shape.size() != 2 || part->cols() != parts.front()->cols())
      return fail(ErrorCode::kMismatch,
                  part->name + " has another number of columns than " + parts.front()->name);
  if (!biases.empty() && biases.size() != parts.size())
    return fail(ErrorCode::kMismatch, "a projection has " + std::to_string(parts.size()) +
                                          " parts and " + std::to_string(biases.size()) +
                                          " biases");
  for (size_t i = 0; i < biases.size(); ++i)
    if (biases[i] != nullptr && biases[i]->elements() != parts[i]->rows())
      return fail(ErrorCode::kMismatch, biases[i]->name + " does not fit " + parts[i]->name);
  return {};
}

// Which part and which of its rows is row `row` of the whole.
struct Place {
  size_t part = 0;
  int64_t row = 0;
};
Place place_of(std::span<const model::HostTensor* const> parts, int64_t row, bool interleave) {
  if (interleave) {
    const auto n = static_cast<int64_t>(parts.size());
    return {static_cast<size_t>(row % n), row / n};
  }
  size_t part = 0;
  while (row >= parts[part]->rows()) row -= parts[part++]->rows();
  return {part, row};
}

}  // namespace

Result<CudaWeightLoader::Staging*> CudaWeightLoader::next_staging() {
  Staging& s = staging_[turn_++ % 2];
  if (s.memory.bytes() == 0) {
    TANDEM_ASSIGN(s.memory, cuda::PinnedBuffer::create(kStagingBytes));
    TANDEM_ASSIGN(s.sent, cuda::Event::create());
  }
  if (s.in_flight) {
    TANDEM_TRY(s.sent.synchronize());
    s.in_flight = false;
  }
  return &s;
}

Status CudaWeightLoader::finish() {
  TANDEM_TRY(stream_->synchronize());
  for (Staging& s : staging_) s = {};
  return {};
}

Result<std::byte*> CudaWeightLoader::device_memory(size_t bytes) {
  TANDEM_ASSIGN(std::byte * memory, arena_->allocate(bytes, "weights"));
  bytes_ += bytes;
  return memory;
}

Status CudaWeightLoader::upload(std::byte* device, int64_t rows, size_t row_bytes,
                                const RowWriter& row) {
  if (row_bytes > kStagingBytes)
    return fail(ErrorCode::kUnsupported, "a weight has rows of " + std::to_string(row_bytes) +
                                             " bytes, the loader takes " +
                                             std::to_string(kStagingBytes));
  const auto batch = static_cast<int64_t>(kStagingBytes / row_bytes);
  for (int64_t begin = 0; begin < rows; begin += batch) {
    const int64_t count = std::min(batch, rows - begin);
    TANDEM_ASSIGN(Staging * staging, next_staging());
    const size_t bytes = static_cast<size_t>(count) * row_bytes;
    const auto threads = static_cast<int64_t>(
        std::clamp<size_t>(bytes / kBytesPerThread, 1,
                           std::min<size_t>(kThreads, std::thread::hardware_concurrency() + 1)));
    const auto work = [&](int64_t t) {
      for (int64_t r = count * t / threads; r < count * (t + 1) / threads; ++r)
        row(begin + r, staging->memory.data() + static_cast<size_t>(r) * row_bytes);
    };
    std::vector<std::jthread> others;
    for (int64_t t = 1; t < threads; ++t) others.emplace_back(work, t);
    work(0);
    others.clear();
    TANDEM_TRY(cuda::copy_to_device(device + static_cast<size_t>(begin) * row_bytes,
                                    staging->memory.data(), bytes, *stream_));
    TANDEM_TRY(staging->sent.record(*stream_));
    staging->in_flight = true;
  }
  return {};
}

Result<const std::byte*> CudaWeightLoader::upload_bytes(const void* host, size_t bytes) {
  TANDEM_ASSIGN(std::byte * device, device_memory(bytes));
  TANDEM_TRY(
      upload(device, 1, bytes, [&](int64_t, std::byte* to) { std::memcpy(to, host, bytes); }));
  return device;
}

Result<std::unique_ptr<CudaLinear>> CudaWeightLoader::linear(
    std::span<const model::HostTensor* const> parts,
    std::span<const model::HostTensor* const> biases, bool interleave, Precision precision) {
  TANDEM_TRY(check_parts(parts, biases));
  auto weight = std::make_unique<CudaLinear>();
  weight->in = parts.front()->cols();
  for (const model::HostTensor* part : parts) weight->out += part->rows();
  const bool fp8 = precision == Precision::kFp8;
  if (fp8) TANDEM_TRY(check_fp8_shape(weight->in, weight->out));
  const size_t row_bytes = static_cast<size_t>(weight->in) * (fp8 ? 1 : sizeof(Bf16));
  TANDEM_ASSIGN(std::byte * memory, device_memory(static_cast<size_t>(weight->out) * row_bytes));
  std::vector<float> scales(fp8 ? static_cast<size_t>(weight->out) : 0);
  TANDEM_TRY(upload(memory, weight->out, row_bytes, [&](int64_t row, std::byte* to) {
    thread_local std::vector<float> scratch;
    const Place place = place_of(parts, row, interleave);
    if (!fp8) return write_row(*parts[place.part], place.row, to, scratch);
    scratch.resize(static_cast<size_t>(weight->in));
    model::read_row(*parts[place.part], place.row, scratch);
    scales[static_cast<size_t>(row)] = quantize_fp8_row(scratch, reinterpret_cast<uint8_t*>(to));
  }));
  if (fp8) {
    weight->fp8 = reinterpret_cast<const uint8_t*>(memory);
    TANDEM_ASSIGN(const std::byte* device_scales,
                  upload_bytes(scales.data(), scales.size() * sizeof(float)));
    weight->scales = reinterpret_cast<const float*>(device_scales);
  } else {
    weight->weight = reinterpret_cast<const Bf16*>(memory);
  }
  if (std::ranges::all_of(biases, [](const auto* b) { return b == nullptr; })) return weight;

  std::vector<Bf16> values(static_cast<size_t>(weight->out));
  std::vector<std::vector<float>> floats(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    floats[i].assign(static_cast<size_t>(parts[i]->rows()), 0.0F);
    if (biases[i] != nullptr) model::read_row(*biases[i], 0, floats[i]);
  }
  for (int64_t r = 0; r < weight->out; ++r) {
    const Place place = place_of(parts, r, interleave);
    values[static_cast<size_t>(r)] = to_bf16(floats[place.part][static_cast<size_t>(place.row)]);
  }
  TANDEM_ASSIGN(const std::byte* bias, upload_bytes(values.data(), values.size() * sizeof(Bf16)));
  weight->bias = reinterpret_cast<const Bf16*>(bias);
  return weight;
}

Result<const float*> CudaWeightLoader::floats(const model::HostTensor& values) {
  const auto cols = static_cast<size_t>(values.shape.empty() ? 1 : values.shape.back());
  const int64_t rows = values.elements() / static_cast<int64_t>(cols);
  const size_t row_bytes = cols * sizeof(float);
  TANDEM_ASSIGN(std::byte * memory, device_memory(static_cast<size_t>(rows) * row_bytes));
  TANDEM_TRY(upload(memory, rows, row_bytes, [&](int64_t row, std::byte* to) {
    model::read_row(values, row, {reinterpret_cast<float*>(to), cols});
  }));
  return reinterpret_cast<const float*>(memory);
}

Result<std::unique_ptr<CudaMoe>> CudaWeightLoader::moe(
    const MoeShape& shape, const model::HostTensor& router,
    std::span<const model::HostTensor* const> gate, std::span<const model::HostTensor* const> up,
    std::span<const model::HostTensor* const> down) {
  const auto experts = static_cast<int64_t>(shape.experts);
  const int64_t hidden = router.cols();
  const int64_t inner = shape.intermediate;
  auto moe = std::make_unique<CudaMoe>();
  TANDEM_ASSIGN(moe->router, floats(router));
  const size_t in_bytes = static_cast<size_t>(hidden) * sizeof(Bf16);
  const size_t out_bytes = static_cast<size_t>(inner) * sizeof(Bf16);
  TANDEM_ASSIGN(std::byte * in, device_memory(static_cast<size_t>(experts * 2 * inner) * in_bytes));
  TANDEM_TRY(upload(in, experts * 2 * inner, in_bytes, [&](int64_t row, std::byte* to) {
    thread_local std::vector<float> scratch;
    const auto expert = static_cast<size_t>(row / (2 * inner));
    const int64_t r = row % (2 * inner);
    write_row(r % 2 == 0 ? *gate[expert] : *up[expert], r / 2, to, scratch);
  }));
  TANDEM_ASSIGN(std::byte * out, device_memory(static_cast<size_t>(experts * hidden) * out_bytes));
  TANDEM_TRY(upload(out, experts * hidden, out_bytes, [&](int64_t row, std::byte* to) {
    thread_local std::vector<float> scratch;
    write_row(*down[static_cast<size_t>(row / hidden)], row % hidden, to, scratch);
  }));
  moe->gate_up = reinterpret_cast<const Bf16*>(in);
  moe->down = reinterpret_cast<const Bf16*>(out);
  return moe;
}

}  // namespace tandem::engine

#include "common/engine/cpu/linear.h"

#include <algorithm>

#include "common/base/check.h"

namespace tandem::engine {
namespace {

// Up to here every thread prepares all rows for itself, which is cheaper than waiting for each
// other, and panels are handed out one by one. Such steps are bound by reading the weights.
constexpr int64_t kNarrowRows = 16;
// A wide block: its weights (8 panels of 1.5k inputs: 400 KB of bf16) and its activations (128
// rows: as much again) fit a 1 MiB L2 side by side.
constexpr int64_t kBlockRows = 128;
constexpr int64_t kBlockPanels = 8;
// Raw results of a block, gate and up side by side.
constexpr int64_t kSumsStride = 2 * kBlockPanels * cpu::kPanel;

size_t element_bytes(bool rounded) { return rounded ? sizeof(uint16_t) : sizeof(float); }

// Rows are padded to an even count and start on cache lines.
size_t row_bytes(int64_t in, bool rounded) {
  const size_t bytes = static_cast<size_t>((in + 1) / 2 * 2) * element_bytes(rounded);
  return (bytes + 63) / 64 * 64;
}

}  // namespace

LinearRunner::LinearRunner(ThreadPool& pool, const cpu::KernelTable& kernels)
    : pool_(pool), kernels_(kernels), scratch_(pool.threads()) {
  for (Scratch& s : scratch_) s.sums.resize(static_cast<size_t>(kBlockRows * kSumsStride));
}

// Which projections take activations rounded to bf16. Over the 28 golden models the mean error of
// the logits (0.0053 with bf16 weights alone) grows by 1 % when the input of gate | up is rounded,
// which is half of all multiplications; by 39 % for q | k | v, whose error the softmax multiplies,
// and by 5 to 12 % for the output, down and head projections.
bool LinearRunner::rounds(const CpuLinear& weight, Epilogue epilogue) const {
  return weight.type == DType::kBf16 && epilogue == Epilogue::kSiluMul &&
         kernels_.linear.bf16_rounded != nullptr;
}

void LinearRunner::prepare(const LinearInput& in, int64_t row, const CpuLinear& weight, bool round,
                           Scratch& scratch, std::byte* to) const {
  const float* x = in.row(row);
  if (in.norm != nullptr) {
    scratch.normed.resize(static_cast<size_t>(weight.in));
    float* normed = round ? scratch.normed.data() : reinterpret_cast<float*>(to);
    kernels_.rows.rms_norm(x, in.norm, in.eps, weight.in, normed);
    x = normed;
  } else if (!round) {
    std::copy_n(x, weight.in, reinterpret_cast<float*>(to));
  }
  if (round)
    kernels_.rows.round_to_bf16(x, weight.in, reinterpret_cast<uint16_t*>(to));
  else if (weight.in % 2 != 0)
    reinterpret_cast<float*>(to)[weight.in] = 0;
}

void LinearRunner::run(int64_t rows, const LinearInput& in, const CpuLinear& weight,
                       const LinearOutput& out) {
  if (out.epilogue == Epilogue::kSiluMul)
    TANDEM_CHECK(weight.parts.size() == 2 && weight.parts[0].out == weight.parts[1].out,
                 "SiLU needs a gate and an up projection of the same size");
  if (rows <= kNarrowRows)
    run_narrow(rows, in, weight, out);
  else
    run_wide(rows, in, weight, out);
}

void LinearRunner::run_narrow(int64_t rows, const LinearInput& in, const CpuLinear& weight,
                              const LinearOutput& out) {
  const int64_t panels =
      out.epilogue == Epilogue::kSiluMul ? weight.parts[0].panels : weight.panel_count;
  const bool round = rounds(weight, out.epilogue);
  const size_t bytes = row_bytes(weight.in, round);
  const auto stride = static_cast<int64_t>(bytes / element_bytes(round));
  // Whole tiles of the kernels, which read eight panels side by side for one row.
  const int64_t grain = std::clamp<int64_t>(panels / int64_t{pool_.threads()}, 1, kBlockPanels);
  for (Scratch& scratch : scratch_) scratch.prepared = false;
  pool_.stream(panels, grain, [&](uint32_t thread, int64_t begin, int64_t end) {
    Scratch& scratch = scratch_[thread];
    if (!scratch.prepared) {
      scratch.rows.resize(std::max(scratch.rows.size(), bytes * static_cast<size_t>(rows)));
      for (int64_t r = 0; r < rows; ++r)
        prepare(in, r, weight, round, scratch,
                scratch.rows.data() + static_cast<size_t>(r) * bytes);
      scratch.prepared = true;
    }
    for (int64_t p = begin; p < end; p += kBlockPanels)
      compute({scratch.rows.data(), stride, round}, weight,
              {0, rows, p, std::min(kBlockPanels, end - p)}, scratch, out);
  });
}

void LinearRunner::run_wide(int64_t rows, const LinearInput& in, const CpuLinear& weight,
                            const LinearOutput& out) {
  const bool round = rounds(weight, out.epilogue);
  Activations a{in.x, in.stride, false};
  const bool pads = weight.type == DType::kBf16 && weight.in % 2 != 0;
  if (round || in.norm != nullptr || !in.rows.empty() || pads) {
    const size_t bytes = row_bytes(weight.in, round);
    activations_.resize(std::max(activations_.size(), bytes * static_cast<size_t>(rows)));
    pool_.split(rows, 4, [&](uint32_t thread, int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        prepare(in, r, weight, round, scratch_[thread],
                activations_.data() + static_cast<size_t>(r) * bytes);
    });
    a = {activations_.data(), static_cast<int64_t>(bytes / element_bytes(round)), round};
  }
  const int64_t panels =
      out.epilogue == Epilogue::kSiluMul ? weight.parts[0].panels : weight.panel_count;
  const int64_t row_blocks = (rows + kBlockRows - 1) / kBlockRows;
  // Narrower blocks when there are too few of them to keep all threads busy to the end.
  const int64_t fair = panels * row_blocks / (8 * int64_t{pool_.threads()});
  const int64_t width = std::clamp<int64_t>(fair / 2 * 2, 2, kBlockPanels);
  const int64_t panel_blocks = (panels + width - 1) / width;
  // Neighbours in this order share their weights.
  pool_.split(row_blocks * panel_blocks, 1, [&](uint32_t thread, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i % row_blocks * kBlockRows;
      const int64_t panel = i / row_blocks * width;
      compute(a, weight,
              {row, std::min(kBlockRows, rows - row), panel, std::min(width, panels - panel)},
              scratch_[thread], out);
    }
  });
}

void LinearRunner::multiply(const Activations& a, const CpuLinear& weight, const Block& block,
                            float* sums, int64_t sums_stride) const {
  cpu::LinearTask task;
  task.x = static_cast<const std::byte*>(a.data) +
           block.row_begin * a.stride * static_cast<int64_t>(element_bytes(a.rounded));
  task.x_stride = a.stride;
  task.rows = block.rows;
  task.panels = weight.panel(block.panel_begin);
  task.panel_count = block.panels;
  task.in = weight.in;
  task.c = sums;
  task.c_stride = sums_stride;
  const cpu::LinearKernels& kernels = kernels_.linear;
  (weight.type == DType::kF32 ? kernels.f32
   : a.rounded                ? kernels.bf16_rounded
                              : kernels.bf16)(task);
}

void LinearRunner::compute(const Activations& a, const CpuLinear& weight, const Block& block,
                           Scratch& scratch, const LinearOutput& out) const {
  float* sums = scratch.sums.data();
  multiply(a, weight, block, sums, kSumsStride);
  if (out.epilogue == Epilogue::kSiluMul) {
    Block up = block;
    up.panel_begin += weight.parts[1].panel_begin;
    multiply(a, weight, up, sums + kSumsStride / 2, kSumsStride);
    finish_silu(weight, block, sums, out);
    return;
  }
  for (const LinearPart& part : weight.parts) finish(weight, part, block, sums, out);
}

// Adds bias and residual to the outputs that the block and the part share.
void LinearRunner::finish(const CpuLinear& weight, const LinearPart& part, const Block& block,
                          const float* sums, const LinearOutput& out) const {
  const int64_t begin = std::max(block.panel_begin, part.panel_begin);
  const int64_t end = std::min(block.panel_begin + block.panels, part.panel_begin + part.panels);
  if (begin >= end) return;
  const int64_t first = (begin - part.panel_begin) * cpu::kPanel;
  const int64_t count = std::min((end - part.panel_begin) * cpu::kPanel, part.out) - first;
  const int64_t column = part.out_begin + first;
  const float* bias = weight.bias == nullptr ? nullptr : weight.bias + column;
  const auto apply = out.epilogue == Epilogue::kAdd ? kernels_.rows.add : kernels_.rows.store;
  for (int64_t r = 0; r < block.rows; ++r)
    apply(sums + r * kSumsStride + (begin - block.panel_begin) * cpu::kPanel, bias, count,
          out.data + (block.row_begin + r) * out.stride + column);
}

void LinearRunner::finish_silu(const CpuLinear& weight, const Block& block, const float* sums,
                               const LinearOutput& out) const {
  const LinearPart& gate = weight.parts[0];
  const LinearPart& up = weight.parts[1];
  const int64_t column = block.panel_begin * cpu::kPanel;
  const int64_t count = std::min(block.panels * cpu::kPanel, gate.out - column);
  const float* bias = weight.bias;
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* row = sums + r * kSumsStride;
    kernels_.rows.silu_mul(row, row + kSumsStride / 2, bias == nullptr ? nullptr : bias + column,
                           bias == nullptr ? nullptr : bias + up.out_begin + column, count,
                           out.data + (block.row_begin + r) * out.stride + column);
  }
}

}  // namespace tandem::engine

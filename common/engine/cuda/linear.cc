#include "common/engine/cuda/linear.h"

#include <algorithm>

#include "common/cuda/cuda_status.h"
#include "kernels/cuda/fp8_rows.h"
#include "kernels/cuda/linear_batch.h"
#include "kernels/cuda/linear_fp8.h"
#include "kernels/cuda/rows.h"

namespace tandem::engine {
namespace {

// Gate and up of a long step are made this many rows at a time: 2048 rows already run at the full
// rate, and longer ones would need a larger buffer (155 MB for Qwen2-7B). Parts that stay in the L2
// cache are slower, 512 rows by a tenth.
constexpr uint32_t kGateUpRows = 2048;

// Parts are multiples of this many rows: whatever they read and write is aligned as the whole is.
constexpr uint32_t kPartRows = 16;

constexpr size_t kFactorBytes = 256;
static_assert(kGateUpRows % kPartRows == 0);
static_assert(own_rows(false).batch <= cuda::kBatchRows &&
              own_rows(true).batch <= cuda::kBatchRows);
static_assert(kFactorBytes >= cuda::kSmallRows * sizeof(float));

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

size_t row_capacity(const LinearRunner::Limits& limits) {
  return std::max(limits.max_rows, cuda::kSmallRows);
}

size_t normed_bytes(const LinearRunner::Limits& limits) {
  return aligned(row_capacity(limits) * static_cast<size_t>(limits.max_hidden) * sizeof(Bf16));
}

size_t gate_up_bytes(const LinearRunner::Limits& limits) {
  const size_t rows = std::min(limits.max_rows, kGateUpRows);
  return aligned(rows * static_cast<size_t>(limits.max_gate_up) * sizeof(Bf16));
}

size_t fp8_row_bytes(const LinearRunner::Limits& limits) {
  return aligned(row_capacity(limits) * static_cast<size_t>(limits.max_fp8_in));
}

size_t fp8_scale_bytes(const LinearRunner::Limits& limits) {
  return limits.max_fp8_in == 0 ? 0 : aligned(row_capacity(limits) * sizeof(float));
}

bool is_batch(uint32_t rows, const LinearRef& weight) {
  const bool fp8 = weight.fp8 != nullptr;
  const OwnRows own = own_rows(fp8);
  return rows > own.small && rows <= own.batch && weight.in % (fp8 ? 16 : 8) == 0;
}

// Whether own kernels take it.
bool is_own(uint32_t rows, const LinearRef& weight) {
  return rows <= cuda::kSmallRows || is_batch(rows, weight);
}

cuda::SmallEpilogue small_epilogue(WideOutput output) {
  switch (output) {
    case WideOutput::kStore:
      return cuda::SmallEpilogue::kStore;
    case WideOutput::kAdd:
      return cuda::SmallEpilogue::kAdd;
    case WideOutput::kStoreFloat:
      return cuda::SmallEpilogue::kStoreFloat;
  }
  return cuda::SmallEpilogue::kStore;
}

cuda::SmallLinear small_task(uint32_t rows, const LinearRef& weight, cuda::SmallEpilogue epilogue,
                             void* result) {
  cuda::SmallLinear task;
  task.weight = weight.weight;
  task.fp8 = weight.fp8;
  task.scales = weight.scales;
  task.bias = weight.bias;
  task.in = weight.in;
  task.out = weight.out;
  task.rows = rows;
  task.epilogue = epilogue;
  task.result = result;
  return task;
}

cuda::SmallLinear small_normed_task(uint32_t rows, const NormInput& x, const LinearRef& weight,
                                    cuda::SmallEpilogue epilogue, void* result) {
  cuda::SmallLinear task = small_task(rows, weight, epilogue, result);
  task.residual = x.x;
  task.index = x.index;
  task.norm = x.norm;
  task.eps = x.eps;
  return task;
}

}  // namespace

size_t LinearRunner::scratch_bytes(const Limits& limits) {
  return WideLinear::kWorkspaceBytes + normed_bytes(limits) + gate_up_bytes(limits) + kFactorBytes +
         fp8_row_bytes(limits) + 2 * fp8_scale_bytes(limits);
}

LinearRunner::LinearRunner(Deps deps, WideLinear wide)
    : deps_(std::move(deps)), wide_(std::move(wide)) {
  std::byte* at = deps_.scratch + WideLinear::kWorkspaceBytes;
  normed_ = reinterpret_cast<Bf16*>(at);
  at += normed_bytes(deps_.limits);
  gate_up_ = reinterpret_cast<Bf16*>(at);
  at += gate_up_bytes(deps_.limits);
  factors_ = reinterpret_cast<float*>(at);
  at += kFactorBytes;
  fp8_rows_ = reinterpret_cast<uint8_t*>(at);
  at += fp8_row_bytes(deps_.limits);
  fp8_scales_ = reinterpret_cast<float*>(at);
  at += fp8_scale_bytes(deps_.limits);
  gated_scales_ = reinterpret_cast<float*>(at);
}

Result<LinearRunner> LinearRunner::create(Deps deps) {
  TANDEM_CUDA_TRY(cuda::prepare_small_linear());
  TANDEM_CUDA_TRY(cuda::prepare_batch_linear());
  if (deps.limits.max_fp8_in > 0) TANDEM_CUDA_TRY(cuda::prepare_fp8_rows());
  TANDEM_ASSIGN(WideLinear wide,
                WideLinear::create({deps.lt, deps.scratch, WideLinear::kWorkspaceBytes, deps.gpu,
                                    deps.cache_path}));
  return LinearRunner(std::move(deps), std::move(wide));
}

Status LinearRunner::prepare(const Shapes& shapes, const Scratch& scratch,
                             const cuda::Stream& stream) {
  const auto tasks = [&](const std::vector<LinearRef>& refs, WideOutput output, uint32_t rows) {
    std::vector<WideTask> result;
    for (const LinearRef& ref : refs) {
      WideTask task;
      task.weight = ref.weight;
      if (ref.fp8 != nullptr) {
        task.weight = ref.fp8;
        task.weight_scales = ref.scales;
        task.x_scales = fp8_scales_;
      }
      task.bias = output == WideOutput::kStore ? ref.bias : nullptr;
      task.in = ref.in;
      task.out = ref.out;
      task.x = scratch.input;
      task.output = output;
      task.result = scratch.result;
      const size_t bytes = static_cast<size_t>(rows) * static_cast<size_t>(ref.out) *
                           (output == WideOutput::kStore ? sizeof(Bf16) : sizeof(float));
      if (bytes <= scratch.result_bytes) result.push_back(task);
    }
    return result;
  };
  const uint32_t rows = deps_.limits.max_rows;
  if (rows > cuda::kSmallRows) {
    TANDEM_TRY(wide_.prepare(tasks(shapes.store, WideOutput::kStore, rows), rows, stream));
    TANDEM_TRY(wide_.prepare(tasks(shapes.add, WideOutput::kAdd, rows), rows, stream));
    std::vector<WideTask> gate_up = tasks(shapes.gate_up, WideOutput::kStore, 0);
    for (WideTask& task : gate_up) task.result = gate_up_;
    TANDEM_TRY(wide_.prepare(gate_up, std::min(rows, kGateUpRows), stream));
  }
  if (shapes.head_rows > cuda::kSmallRows)
    TANDEM_TRY(wide_.prepare(tasks(shapes.head, WideOutput::kStoreFloat, shapes.head_rows),
                             shapes.head_rows, stream));
  return wide_.save();
}

Status LinearRunner::own(const cuda::SmallLinear& task, cudaStream_t stream) const {
  cuda::SmallLinear with_scratch = task;
  with_scratch.scratch = normed_;
  with_scratch.scratch_factors = factors_;
  const LinearRef weight{task.weight, task.bias, task.in, task.out, task.fp8, task.scales};
  if (is_batch(task.rows, weight)) {
    cuda::BatchDevice device;
    device.multiprocessors = deps_.multiprocessors;
    TANDEM_CUDA_TRY(
        cuda::linear_batch(with_scratch, cuda::plan_batch_linear(with_scratch, device), stream));
    return {};
  }
  cuda::SmallDevice device;
  device.multiprocessors = deps_.multiprocessors;
  TANDEM_CUDA_TRY(
      cuda::linear_small(with_scratch, cuda::plan_small_linear(with_scratch, device), stream));
  return {};
}

Status LinearRunner::norm_rows(uint32_t rows, const NormInput& x, int64_t hidden,
                               cudaStream_t stream) const {
  TANDEM_CUDA_TRY(cuda::rms_norm({x.x, x.index, x.norm, x.eps, rows, hidden, normed_}, stream));
  return {};
}

Status LinearRunner::multiply(const WideTask& task, cudaStream_t stream) {
  Status status = wide_.run(task, stream);
  if (status || status.error().code != ErrorCode::kUnsupported) return status;
  if (task.fp8()) {
    TANDEM_CUDA_TRY(cuda::linear_fp8_plain(
        {static_cast<const uint8_t*>(task.weight), task.weight_scales, task.bias,
         static_cast<const uint8_t*>(task.x), task.x_scales, task.in, task.out, task.rows,
         small_epilogue(task.output), task.result},
        stream));
    return {};
  }
  const LinearRef weight{static_cast<const Bf16*>(task.weight), task.bias, task.in, task.out};
  cuda::SmallLinear plain = small_task(task.rows, weight, small_epilogue(task.output), task.result);
  plain.x = static_cast<const Bf16*>(task.x);
  TANDEM_CUDA_TRY(cuda::linear_plain(plain, stream));
  return {};
}

Status LinearRunner::quantize_normed(uint32_t rows, const NormInput& x, int64_t hidden,
                                     cudaStream_t stream) const {
  TANDEM_CUDA_TRY(cuda::quantize_normed(
      {x.x, x.index, x.norm, x.eps, rows, hidden, {fp8_rows_, fp8_scales_}}, stream));
  return {};
}

Status LinearRunner::project(const LinearRef& weight, uint32_t rows, const Bf16* x,
                             WideOutput output, void* result, cudaStream_t stream) {
  const Bf16* bias = output == WideOutput::kStore ? weight.bias : nullptr;
  return multiply({weight.weight, bias, weight.in, weight.out, rows, x, output, result}, stream);
}

Status LinearRunner::project_fp8(const LinearRef& weight, uint32_t rows, Fp8Input x,
                                 WideOutput output, void* result, cudaStream_t stream) {
  const Bf16* bias = output == WideOutput::kStore ? weight.bias : nullptr;
  return multiply({weight.fp8, bias, weight.in, weight.out, rows, x.rows, output, result,
                   weight.scales, x.scales},
                  stream);
}

Status LinearRunner::norm_linear(uint32_t rows, const NormInput& x, const LinearRef& weight,
                                 Bf16* out, cudaStream_t stream) {
  if (is_own(rows, weight))
    return own(small_normed_task(rows, x, weight, cuda::SmallEpilogue::kStore, out), stream);
  if (weight.fp8 != nullptr) {
    TANDEM_TRY(quantize_normed(rows, x, weight.in, stream));
    return project_fp8(weight, rows, {fp8_rows_, fp8_scales_}, WideOutput::kStore, out, stream);
  }
  TANDEM_TRY(norm_rows(rows, x, weight.in, stream));
  return project(weight, rows, normed_, WideOutput::kStore, out, stream);
}

Status LinearRunner::linear_add(uint32_t rows, const Bf16* in, const LinearRef& weight, float* x,
                                cudaStream_t stream) {
  if (is_own(rows, weight)) {
    cuda::SmallLinear task = small_task(rows, weight, cuda::SmallEpilogue::kAdd, x);
    task.x = in;
    return own(task, stream);
  }
  if (weight.bias != nullptr)
    TANDEM_CUDA_TRY(cuda::add_bias(rows, weight.out, weight.bias, x, stream));
  if (weight.fp8 == nullptr) return project(weight, rows, in, WideOutput::kAdd, x, stream);
  if (in == gated_)
    return project_fp8(weight, rows, {reinterpret_cast<const uint8_t*>(in), gated_scales_},
                       WideOutput::kAdd, x, stream);
  TANDEM_CUDA_TRY(cuda::quantize_rows({in, rows, weight.in, {fp8_rows_, fp8_scales_}}, stream));
  return project_fp8(weight, rows, {fp8_rows_, fp8_scales_}, WideOutput::kAdd, x, stream);
}

Status LinearRunner::norm_gate_up(uint32_t rows, const NormInput& x, const LinearRef& weight,
                                  Bf16* out, cudaStream_t stream) {
  const bool fp8 = weight.fp8 != nullptr && !is_own(rows, weight);
  gated_ = fp8 ? out : nullptr;
  if (is_own(rows, weight))
    return own(small_normed_task(rows, x, weight, cuda::SmallEpilogue::kSiluMul, out), stream);
  TANDEM_TRY(fp8 ? quantize_normed(rows, x, weight.in, stream)
                 : norm_rows(rows, x, weight.in, stream));
  const int64_t inner = weight.out / 2;
  const uint32_t parts = (rows + kGateUpRows - 1) / kGateUpRows;
  const uint32_t each = ((rows + parts - 1) / parts + kPartRows - 1) / kPartRows * kPartRows;
  for (uint32_t first = 0; first < rows; first += each) {
    const uint32_t count = std::min(each, rows - first);
    const int64_t from = int64_t{first} * weight.in;
    if (!fp8) {
      TANDEM_TRY(project(weight, count, normed_ + from, WideOutput::kStore, gate_up_, stream));
      TANDEM_CUDA_TRY(cuda::silu_mul(count, inner, gate_up_, out + int64_t{first} * inner, stream));
      continue;
    }
    TANDEM_TRY(project_fp8(weight, count, {fp8_rows_ + from, fp8_scales_ + first},
                           WideOutput::kStore, gate_up_, stream));
    const cuda::Fp8Out to{reinterpret_cast<uint8_t*>(out) + int64_t{first} * inner,
                          gated_scales_ + first};
    TANDEM_CUDA_TRY(cuda::quantize_silu({gate_up_, count, inner, to}, stream));
  }
  return {};
}

Status LinearRunner::logits(uint32_t rows, const NormInput& x, const LinearRef& head, float* out,
                            cudaStream_t stream) {
  if (head.fp8 != nullptr) return fail(ErrorCode::kUnsupported, "the head is not kept in FP8");
  if (is_own(rows, head))
    return own(small_normed_task(rows, x, head, cuda::SmallEpilogue::kStoreFloat, out), stream);
  TANDEM_TRY(norm_rows(rows, x, head.in, stream));
  return project(head, rows, normed_, WideOutput::kStoreFloat, out, stream);
}

}  // namespace tandem::engine

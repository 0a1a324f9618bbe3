#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/cuda/card_monitor.h"
#include "common/cuda/device_info.h"
#include "common/engine/cuda/buckets.h"
#include "common/engine/cuda/cuda_ops_impl.h"
#include "common/engine/cuda/fp8_row.h"
#include "common/engine/cuda/page_memory.h"
#include "common/engine/cuda/supported_model.h"
#include "kernels/cuda/kv_write.h"
#include "kernels/cuda/rows.h"

namespace tandem::engine {
namespace {

// What the driver, recorded graphs and cuBLASLt take beside what this process allocates itself.
constexpr size_t kReserveBytes = size_t{768} << 20;

NormInput norm_input(Activation x, const VectorWeight& norm, float eps) {
  return {static_cast<const float*>(x.data), nullptr, static_cast<const CudaVector&>(norm).data,
          eps};
}

LinearRef ref_of(const LinearWeight& weight) {
  return static_cast<const CudaLinear&>(weight).ref();
}

double bytes_of(const LinearWeight& weight) {
  return static_cast<double>(weight.in) * static_cast<double>(weight.out) *
         static_cast<double>(static_cast<const CudaLinear&>(weight).element_bytes());
}

// What a layer's attention reads of the pool.
double context_bytes(const StepView& view, const kv::KvLayout& layout) {
  double positions = 0;
  for (const SequenceView& s : view.sequences) positions += s.start + s.rows;
  return positions * static_cast<double>(layout.page_bytes()) / kv::kBlockTokens;
}

// Rows of sequences with one row, which decode, or of the others.
uint32_t rows_of(const StepView& view, bool single) {
  uint32_t rows = 0;
  for (const SequenceView& s : view.sequences) rows += (s.rows == 1) == single ? s.rows : 0;
  return rows;
}

// What a layer's RoPE reads of so many rows and puts back, and what it writes to the pool.
double written_bytes(uint32_t rows, const AttentionShape& shape, const kv::KvLayout& layout) {
  const double head = static_cast<double>(shape.head_dim) * sizeof(Bf16);
  const double rotated = 2 * head * (shape.heads + shape.kv_heads) + head * shape.kv_heads;
  return rows * (rotated + static_cast<double>(layout.page_bytes()) / kv::kBlockTokens);
}

}  // namespace

CudaOps::CudaOps(const CudaOptions& options, const model::ModelConfig& model, cuda::Device device,
                 cuda::Stream stream, cuda::CublasLt lt)
    : options_(options),
      model_(model),
      device_(std::move(device)),
      stream_(std::move(stream)),
      lt_(std::move(lt)),
      name_("cuda-sm" + std::to_string(device_.info().major * 10 + device_.info().minor) +
            (options.quantization == Quantization::kFp8 ? "-fp8" : "")),
      step_sequences_(2 * options.max_sequences),
      max_context_(options.max_context == 0 ? model.max_positions
                                            : std::min(options.max_context, model.max_positions)),
      loader_(arena_, stream_),
      stages_(stream_, options.profile),
      attention_(arena_, stream_),
      outputs_(arena_, stream_, stages_) {}

CudaOps::~CudaOps() { (void)stream_.synchronize(); }

// ---- load time

void CudaOps::plan_linear(const CudaLinear& weight, std::vector<LinearRef>& shapes) {
  const bool known = std::ranges::any_of(
      shapes, [&](const LinearRef& s) { return s.in == weight.in && s.out == weight.out; });
  if (!known) shapes.push_back(weight.ref());
  longest_input_ = std::max(longest_input_, weight.in);
}

Result<std::unique_ptr<LinearWeight>> CudaOps::load_linear(
    std::span<const model::HostTensor* const> parts,
    std::span<const model::HostTensor* const> biases) {
  // Several parts are a fused QKV projection, a whole vocabulary is the head, the rest is added to
  // the residual stream. A wrong guess would only cost the first use of a shape some time.
  const bool head =
      parts.size() == 1 && parts[0]->rows() == model_.vocab && parts[0]->cols() == model_.hidden;
  TANDEM_ASSIGN(auto weight,
                loader_.linear(parts, biases, false, head ? Precision::kBf16 : precision()));
  plan_linear(*weight, parts.size() > 1 ? shapes_.store : head ? shapes_.head : shapes_.add);
  return weight;
}

Result<std::unique_ptr<LinearWeight>> CudaOps::load_gate_up(
    std::span<const model::HostTensor* const> parts,
    std::span<const model::HostTensor* const> biases) {
  if (parts.size() != 2 || parts[0]->rows() != parts[1]->rows())
    return fail(ErrorCode::kMismatch, "gate and up projection differ in shape");
  TANDEM_ASSIGN(auto weight, loader_.linear(parts, biases, true, precision()));
  plan_linear(*weight, shapes_.gate_up);
  return weight;
}

Result<std::unique_ptr<VectorWeight>> CudaOps::load_vector(const model::HostTensor& values) {
  auto v = std::make_unique<CudaVector>();
  v->size = values.elements();
  TANDEM_ASSIGN(v->data, loader_.floats(values));
  return v;
}

Result<std::unique_ptr<EmbeddingWeight>> CudaOps::load_embedding(const model::HostTensor& table) {
  const model::HostTensor* const parts[] = {&table};
  TANDEM_ASSIGN(const auto rows, loader_.linear(parts, {}, false));
  auto e = std::make_unique<CudaEmbedding>();
  e->vocab = rows->out;
  e->hidden = rows->in;
  e->table = rows->weight;
  return e;
}

Result<std::unique_ptr<LinearWeight>> CudaOps::load_tied_head(const EmbeddingWeight& table) {
  auto head = std::make_unique<CudaLinear>();
  head->in = table.hidden;
  head->out = table.vocab;
  head->weight = static_cast<const CudaEmbedding&>(table).table;
  plan_linear(*head, shapes_.head);
  return head;
}

Result<std::unique_ptr<MoeWeight>> CudaOps::load_moe(
    const MoeShape& shape, const model::HostTensor& router,
    std::span<const model::HostTensor* const> gate, std::span<const model::HostTensor* const> up,
    std::span<const model::HostTensor* const> down) {
  const cuda::MoeShapes shapes{model_.hidden, shape.intermediate, shape.experts,
                               shape.experts_per_token, shape.normalize_top_k};
  moe_ = shapes;
  return loader_.moe(shape, router, gate, up, down);
}

Status CudaOps::load_rope(const std::function<RopeTable()>& whole) {
  const RopeTable table = whole();
  const size_t pairs = size_t{table.max_positions} * table.rotary_dim / 2;
  std::vector<float2> both(pairs);
  for (size_t i = 0; i < pairs; ++i) both[i] = {table.cos[i], table.sin[i]};
  TANDEM_ASSIGN(std::byte * memory, arena_.allocate(pairs * sizeof(float2), "workspace"));
  TANDEM_TRY(cuda::copy_to_device(memory, both.data(), pairs * sizeof(float2), stream_));
  rope_ = {reinterpret_cast<const float2*>(memory), table.max_positions, table.rotary_dim};
  return loader_.finish();  // weights are all there by now
}

Result<Activation> CudaOps::allocate(int64_t rows, int64_t cols) {
  const auto bytes = static_cast<size_t>(rows * cols) * sizeof(Bf16);
  TANDEM_ASSIGN(std::byte * data, arena_.allocate(bytes, "activations"));
  // Padding rows are computed like others: whatever they hold must be numbers.
  TANDEM_CUDA_TRY(cudaMemsetAsync(data, 0, bytes, stream_.get()));
  return Activation{data, rows, cols};
}

Result<Activation> CudaOps::allocate_residual(int64_t rows, int64_t cols) {
  const auto bytes = static_cast<size_t>(rows * cols) * sizeof(float);
  TANDEM_ASSIGN(std::byte * data, arena_.allocate(bytes, "activations"));
  TANDEM_CUDA_TRY(cudaMemsetAsync(data, 0, bytes, stream_.get()));
  return Activation{data, rows, cols};
}

Status CudaOps::plan_memory(const kv::KvLayout& layout) {
  if (planned_) {
    TANDEM_CHECK(layout == layout_, "an engine's KV layout does not change");
    return {};
  }
  if (layout.format == kv::KvFormat::kF32)
    return fail(ErrorCode::kUnsupported,
                "the CUDA engine keeps no float32 KV cache: use bf16 (kv.format)", "kv.format");
  const EngineLimits limits(options_, model_, layout, device_.info());
  few_ = limits.few;
  TANDEM_TRY(attention_.prepare(limits.attention));
  TANDEM_ASSIGN(std::byte * scratch,
                arena_.allocate(LinearRunner::scratch_bytes(limits.linear), "workspace"));
  TANDEM_ASSIGN(const cuda::CudaVersions versions, cuda::cuda_versions());
  TANDEM_ASSIGN(
      linear_,
      LinearRunner::create({&lt_, scratch, limits.linear, device_.info().name,
                            static_cast<uint32_t>(device_.info().multiprocessors),
                            wide_cache_path(options_.cache_dir, device_.info().name,
                                            cuda::version_text(versions.driver), lt_.version())}));
  if (moe_) {
    TANDEM_CUDA_TRY(cuda::prepare_moe());
    TANDEM_ASSIGN(moe_memory_,
                  arena_.allocate(cuda::moe_buffer_bytes(*moe_, options_.max_rows), "activations"));
  }
  TANDEM_TRY(outputs_.prepare(*linear_, model_.vocab, limits.logit_rows, max_context_));
  TANDEM_ASSIGN(area_, StepArea::create(arena_, StepLayout(limits.step).bytes));
  for (uint32_t i = 0; i < model_.layers; ++i) {
    TANDEM_ASSIGN(auto event, cuda::Event::create());
    layer_events_.push_back(std::move(event));
  }
  layout_ = layout;
  planned_ = true;
  return {};
}

Status CudaOps::reserve_memory() {
  const kv::KvLayout& layout = *options_.kv_layout;
  const EngineLimits limits(options_, model_, layout, device_.info());
  std::vector<cuda::MemoryPart> parts = footprint(options_, model_, limits);
  TANDEM_ASSIGN(const kv::PageBytes tails, kv::page_bytes_of(layout, 1, options_.kv_tails));
  const uint64_t bytes = cuda::bytes_of(parts);
  TANDEM_ASSIGN(cuda::MemoryRequest request,
                memory_request(layout, options_.kv_blocks, tails.tails, std::move(parts)));
  request.taken = false;
  TANDEM_TRY(plan_blocks(request));
  return arena_.reserve(bytes);
}

Result<cuda::MemoryRequest> CudaOps::memory_request(const kv::KvLayout& layout, uint64_t blocks,
                                                    uint64_t tail_bytes,
                                                    std::vector<cuda::MemoryPart> parts) const {
  TANDEM_ASSIGN(const auto memory, device_.memory());
  cuda::MemoryRequest request;
  request.device =
      "device " + std::to_string(device_.info().index) + " (" + device_.info().name + ")";
  request.total_bytes = memory.total;
  request.free_bytes = memory.free;
  request.utilization = options_.memory_utilization;
  request.reserve_bytes = kReserveBytes;
  request.parts = std::move(parts);
  request.later = options_.later;
  request.kv_block_bytes = layout.block_bytes();
  request.kv_tail_bytes = tail_bytes;
  request.kv_blocks = blocks;
  return request;
}

// Who else uses the card is for messages only: asking takes NVML longer than all the rest.
Result<uint64_t> CudaOps::plan_blocks(cuda::MemoryRequest& request) const {
  auto blocks = plan_kv_blocks(request);
  if (blocks) return blocks;
  request.neighbours = neighbours();
  return plan_kv_blocks(request);
}

// Nothing where NVML does not tell.
std::vector<cuda::MemoryNeighbour> CudaOps::neighbours() const {
  std::vector<cuda::MemoryNeighbour> result;
  auto monitor = cuda::CardMonitor::open(options_.libraries);
  if (!monitor) return result;
  const auto card = monitor->read(device_.info().uuid);
  if (!card) return result;
  for (const cuda::CardHealth::Process& process : card->processes) {
    // Without a name: of another container, or this process as its host counts it.
    if (process.name.empty() || process.pid == static_cast<uint32_t>(getpid())) continue;
    result.push_back({.pid = process.pid, .name = process.name, .bytes = process.bytes});
  }
  return result;
}

Result<std::optional<uint64_t>> CudaOps::kv_memory_limit(const kv::KvLayout& layout) {
  TANDEM_TRY(plan_memory(layout));
  TANDEM_ASSIGN(cuda::MemoryRequest request, memory_request(layout, 0, 0, arena_.parts()));
  TANDEM_ASSIGN(const uint64_t blocks, plan_blocks(request));
  return blocks * layout.block_bytes();
}

Result<std::unique_ptr<kv::PageMemory>> CudaOps::create_kv_memory(const kv::KvLayout& layout,
                                                                  uint32_t blocks, uint32_t tails) {
  TANDEM_TRY(plan_memory(layout));
  TANDEM_ASSIGN(const kv::PageBytes bytes, kv::page_bytes_of(layout, blocks, tails));
  TANDEM_ASSIGN(cuda::MemoryRequest request,
                memory_request(layout, blocks, bytes.tails, arena_.parts()));
  TANDEM_TRY(plan_blocks(request));
  auto allocated = arena_.allocate_apart(bytes.pages, "KV pool");
  if (!allocated) {
    if (allocated.error().code != ErrorCode::kResourceExhausted)
      return fail(std::move(allocated).error());
    const auto now = device_.memory();
    request.neighbours = neighbours();
    return fail(cuda::lost_race(request, blocks, now ? now->free : 0));
  }
  cuda::DeviceBuffer pages = std::move(*allocated);
  TANDEM_ASSIGN(auto open_pages, arena_.allocate_apart(bytes.tails, "KV pool"));
  TANDEM_CUDA_TRY(cudaMemsetAsync(pages.data(), 0, bytes.pages, stream_.get()));
  if (bytes.tails > 0)
    TANDEM_CUDA_TRY(cudaMemsetAsync(open_pages.data(), 0, bytes.tails, stream_.get()));
  TANDEM_TRY(stream_.synchronize());
  return create_cuda_page_memory(device_.info().index, std::move(pages), std::move(open_pages));
}

// ---- one step; each op enqueues and returns

void CudaOps::note(Status status) {
  if (!status && status_) status_ = std::move(status);
}

cuda::SmallDevice CudaOps::small_device() const {
  cuda::SmallDevice device;
  device.multiprocessors = static_cast<uint32_t>(device_.info().multiprocessors);
  return device;
}

void CudaOps::embed(const StepView& view, const EmbeddingWeight& table, Activation out) {
  const double row = static_cast<double>(table.hidden) * (sizeof(Bf16) + sizeof(float));
  const Stages::Scope stage(stages_, "embed", view.rows() * row);
  note(cuda::cuda_status(cuda::embed(step_, static_cast<const CudaEmbedding&>(table).table,
                                     table.hidden, static_cast<float*>(out.data), stream_.get()),
                         "embed"));
}

void CudaOps::norm_linear(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                          const LinearWeight& weight, Activation out) {
  const Stages::Scope stage(stages_, "norm + qkv", bytes_of(weight));
  note(linear_->norm_linear(rows, norm_input(x, norm, eps), ref_of(weight),
                            static_cast<Bf16*>(out.data), stream_.get()));
}

void CudaOps::write_kv(const StepView& view, uint32_t layer, const QkvParams& params,
                       Activation qkv, const KvPages&) {
  // Where everybody decodes nothing happens here: attention writes on its way.
  const uint32_t written = attention_.run_writes() ? rows_of(view, false) : view.rows();
  std::optional<Stages::Scope> stage;
  if (written > 0) {
    stage.emplace(stages_, "RoPE + KV write", written_bytes(written, params.shape, kv_.layout));
  }
  const auto scale = [](const VectorWeight* v) {
    return v == nullptr ? nullptr : static_cast<const CudaVector*>(v)->data;
  };
  cuda::KvWrite task;
  task.layer = layer;
  task.heads = params.shape.heads;
  task.rope = rope_;
  task.q_norm = scale(params.q_norm);
  task.k_norm = scale(params.k_norm);
  task.norm_eps = params.norm_eps;
  task.qkv = static_cast<Bf16*>(qkv.data);
  note(attention_.write(kv_, task));
}

void CudaOps::layer_written(uint32_t layer) {
  if (hook_ != nullptr && !attention_.run_writes()) note(layer_events_[layer].record(stream_));
}

void CudaOps::attention(const StepView& view, uint32_t layer, const AttentionShape& shape,
                        Activation qkv, const KvPages&, Activation out) {
  const uint32_t written = attention_.run_writes() ? rows_of(view, true) : 0;
  const Stages::Scope stage(
      stages_, "attention",
      context_bytes(view, kv_.layout) + written_bytes(written, shape, kv_.layout));
  note(attention_.run(layer, shape, kv_, qkv, out));
  if (hook_ != nullptr && attention_.run_writes()) note(layer_events_[layer].record(stream_));
}

void CudaOps::linear_add(uint32_t rows, Activation in, const LinearWeight& weight, Activation x) {
  const bool down = weight.in == model_.intermediate && weight.in != weight.out;
  const Stages::Scope stage(stages_, down ? "down + residual" : "o + residual", bytes_of(weight));
  note(linear_->linear_add(rows, static_cast<const Bf16*>(in.data), ref_of(weight),
                           static_cast<float*>(x.data), stream_.get()));
}

void CudaOps::norm_gate_up(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                           const LinearWeight& gate_up, Activation out) {
  const Stages::Scope stage(stages_, "norm + gate|up + SiLU", bytes_of(gate_up));
  note(linear_->norm_gate_up(rows, norm_input(x, norm, eps), ref_of(gate_up),
                             static_cast<Bf16*>(out.data), stream_.get()));
}

void CudaOps::norm_moe(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                       const MoeShape&, const MoeWeight& weight) {
  // Of the experts at most as many as rows ask for.
  const auto touched = std::min<uint64_t>(uint64_t{rows} * moe_->experts_per_token, moe_->experts);
  const Stages::Scope stage(stages_, "norm + experts",
                            static_cast<double>(touched) * 3 * sizeof(Bf16) *
                                static_cast<double>(moe_->hidden * moe_->intermediate));
  const auto& w = static_cast<const CudaMoe&>(weight);
  cuda::Moe task;
  task.shapes = *moe_;
  task.weights = {w.router, w.gate_up, w.down};
  task.buffers = cuda::moe_buffers(*moe_, options_.max_rows, moe_memory_);
  task.rows = rows;
  task.row_sequence = step_.row_sequence;
  task.x = static_cast<float*>(x.data);
  task.norm = static_cast<const CudaVector&>(norm).data;
  task.eps = eps;
  note(cuda::cuda_status(cuda::moe(task, small_device(), stream_.get()), "moe"));
}

Result<std::unique_ptr<Ops>> create_cuda_ops(const CudaOptions& options,
                                             const model::ModelConfig& model) {
  TANDEM_TRY(check_supported(options, model));
  TANDEM_ASSIGN(auto device, cuda::Device::open(options.device));
  TANDEM_ASSIGN(auto stream, cuda::Stream::create());
  TANDEM_ASSIGN(auto lt, cuda::CublasLt::create(options.libraries));
  if (options.quantization == Quantization::kFp8)
    TANDEM_TRY(check_fp8(device.info(), lt.version()));
  auto ops = std::make_unique<CudaOps>(options, model, std::move(device), std::move(stream),
                                       std::move(lt));
  if (options.kv_layout) TANDEM_TRY(ops->reserve_memory());
  return ops;
}

}  // namespace tandem::engine

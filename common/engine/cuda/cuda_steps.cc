#include <algorithm>
#include <string>
#include <utility>

#include "common/engine/cuda/buckets.h"
#include "common/engine/cuda/cuda_ops_impl.h"

// How CudaOps runs, records and replays steps.
namespace tandem::engine {
namespace {

bool same(const KvPages& a, const KvPages& b) {
  return a.pages == b.pages && a.blocks == b.blocks && a.tail == b.tail && a.tails == b.tails &&
         a.layout == b.layout;
}

size_t table_entries(const StepView& view) {
  size_t entries = 0;
  for (const SequenceView& s : view.sequences) entries += s.blocks.size();
  return entries;
}

}  // namespace

Status CudaOps::run_step(const StepRequest& request, const StepBody& body,
                         std::span<RowResult> results) {
  TANDEM_TRY(plan_memory(request.kv.layout));
  status_ = {};
  kv_ = {request.kv.layout, request.kv.pages, request.kv.blocks, request.kv.tail, request.kv.tails};
  const Recording* recording = recording_for(request);
  Status status = recording != nullptr ? replay(request, *recording, results)
                                       : run_eagerly(request, body, results);
  if (status) return {};
  outputs_.forget();
  // What was enqueued still runs, on pages that the caller will give to others.
  if (const Status drained = stream_.synchronize(); !drained) return drained;
  return status;
}

const CudaOps::Recording* CudaOps::recording_for(const StepRequest& request) const {
  if (request.hook != nullptr || !same(request.kv, recorded_kv_)) return nullptr;
  // Of what is wanted, a graph has room for one thing a row.
  if (request.outputs.size() > request.view.rows() ||
      std::ranges::any_of(request.outputs, [](const RowOutput& o) { return o.scored.has_value(); }))
    return nullptr;
  const auto choice = recorded_.choose(request.view);
  if (!choice) return nullptr;
  const std::vector<Recording>& recordings =
      choice->verifies ? verify_recordings_ : decode_recordings_;
  // Fewer than shapes: none were recorded.
  return choice->index < recordings.size() ? &recordings[choice->index] : nullptr;
}

size_t CudaOps::recorded_nodes(uint32_t rows, bool verifying) const {
  const std::vector<Recording>& recordings = verifying ? verify_recordings_ : decode_recordings_;
  const size_t bucket = bucket_of(verifying ? recorded_.verifying() : recorded_.decoding(), rows);
  return bucket < recordings.size() ? recordings[bucket].graph.nodes() : 0;
}

Status CudaOps::describe(const StepRequest& request, const StepCounts& counts) {
  if (counts.sequences > step_sequences_)
    return fail(ErrorCode::kResourceExhausted, "a step has " + std::to_string(counts.sequences) +
                                                   " sequences, the engine was made for " +
                                                   std::to_string(step_sequences_) +
                                                   ": raise max_sequences");
  const SlotOrder order(request.view, few_);
  TANDEM_TRY(area_.fill(request.view, order, request.outputs, counts));
  TANDEM_TRY(area_.upload(stream_));
  step_ = area_.step();
  const auto real = static_cast<uint32_t>(order.sequence.size());
  if (order.several)
    return attention_.begin(area_.slots().first(real), order.decoding, true, step_);
  return attention_.begin(area_.slots(), order.decoding + counts.sequences - real, false, step_);
}

Status CudaOps::replay(const StepRequest& request, const Recording& recording,
                       std::span<RowResult> results) {
  const StepCounts counts{recording.rows, recording.sequences, recording.rows,
                          table_entries(request.view)};
  TANDEM_TRY(describe(request, counts));
  TANDEM_TRY(outputs_.describe(request.outputs, recording.rows));
  {
    const Stages::Scope stage(stages_, "recorded step", 0);
    TANDEM_TRY(recording.graph.launch(stream_));
  }
  return outputs_.collect(request.outputs, results);
}

Status CudaOps::run_eagerly(const StepRequest& request, const StepBody& body,
                            std::span<RowResult> results) {
  const StepCounts counts{request.view.rows(), static_cast<uint32_t>(request.view.sequences.size()),
                          static_cast<uint32_t>(request.outputs.size()),
                          table_entries(request.view)};
  TANDEM_TRY(describe(request, counts));
  wanted_ = request.outputs;
  results_ = results;
  hook_ = request.hook;
  body(request.view, request.kv);
  if (status_) note(walk_hook());
  hook_ = nullptr;
  if (status_) note(stream_.synchronize());
  if (status_) note(stages_.end_step());
  return std::exchange(status_, {});
}

// Once everything is enqueued and before anything waits for the end of the step: layers are pushed
// away while later ones still run.
Status CudaOps::walk_hook() {
  if (hook_ == nullptr) return {};
  const LayerHook& hook = *std::exchange(hook_, nullptr);
  for (uint32_t layer = 0; layer < model_.layers; ++layer) {
    TANDEM_TRY(layer_events_[layer].synchronize());
    hook(layer);
  }
  return {};
}

void CudaOps::outputs(Activation x, const VectorWeight& norm, float eps, const LinearWeight& head) {
  const auto& scale = static_cast<const CudaVector&>(norm);
  const auto& weight = static_cast<const CudaLinear&>(head);
  if (recording_) {
    note(outputs_.enqueue(step_.rows, area_.outputs(), x, scale, eps, weight));
    return;
  }
  for (size_t begin = 0; begin < wanted_.size() && status_; begin += outputs_.batch()) {
    const size_t count = std::min<size_t>(outputs_.batch(), wanted_.size() - begin);
    const auto part = wanted_.subspan(begin, count);
    note(outputs_.describe(part, 0));
    if (!status_) return;
    note(outputs_.enqueue(static_cast<uint32_t>(count), area_.outputs() + begin, x, scale, eps,
                          weight));
    if (status_) note(walk_hook());
    if (status_) note(outputs_.collect(part, results_.subspan(begin, count)));
  }
}

Status CudaOps::warm(const KvPages& kv, const DummyShape& shape, const StepBody& body) {
  std::vector<BlockId> blocks;
  for (uint32_t b = 0; b * kv::kBlockTokens < shape.each; ++b)
    blocks.push_back(BlockId{b % kv.blocks});
  const DummyStep dummy(shape, blocks);
  std::vector<RowResult> results(dummy.outputs.size());
  StepRequest request;
  request.view = dummy.view();
  request.kv = kv;
  request.outputs = dummy.outputs;
  kv_ = {kv.layout, kv.pages, kv.blocks, kv.tail, kv.tails};
  status_ = {};
  return run_eagerly(request, body, results);
}

Result<CudaOps::Recording> CudaOps::record(const KvPages& kv, const DummyShape& shape,
                                           const StepBody& body) {
  TANDEM_TRY(warm(kv, shape, body));
  const std::vector<BlockId> blocks{BlockId{0}};
  const DummyStep dummy(shape, blocks);
  const uint32_t rows = shape.rows;
  const uint32_t sequences = recorded_.sequences(rows);
  StepRequest request;
  request.view = dummy.view();
  request.kv = kv;
  request.outputs = dummy.outputs;
  TANDEM_TRY(describe(request, {rows, sequences, rows, table_entries(request.view)}));
  TANDEM_TRY(outputs_.describe(request.outputs, rows));
  TANDEM_TRY(stream_.synchronize());
  // Padding slots of a replayed step have no context, real ones up to the longest there is.
  step_.max_context = max_context_;
  status_ = {};
  hook_ = nullptr;
  recording_ = true;
  auto graph = cuda::GraphExec::record(stream_, [&]() -> Status {
    body(request.view, kv);
    return std::exchange(status_, {});
  });
  recording_ = false;
  if (!graph) return fail(graph.error());
  TANDEM_TRY(graph->upload(stream_));
  return Recording{rows, sequences, std::move(*graph)};
}

// Times on the pool's memory, which means nothing yet.
Status CudaOps::choose_algorithms(const KvPages& kv) {
  const size_t bytes = size_t{kv.blocks} * kv.layout.block_bytes();
  size_t input = std::max<size_t>(options_.max_rows, outputs_.batch()) *
                 static_cast<size_t>(longest_input_) * sizeof(Bf16);
  input = (input + 255) / 256 * 256;
  if (input >= bytes) return {};  // a pool of a few blocks: the library's own choice will do
  shapes_.head_rows = outputs_.batch();
  const LinearRunner::Scratch scratch{kv.pages, kv.pages + input, bytes - input};
  return linear_->prepare(shapes_, scratch, stream_);
}

Status CudaOps::prepare(const KvPages& kv, uint32_t sequences, const StepBody& body) {
  TANDEM_TRY(plan_memory(kv.layout));
  const uint32_t most =
      std::clamp(sequences, 1U, std::min(options_.max_sequences, outputs_.batch()));
  TANDEM_TRY(choose_algorithms(kv));
  // Kernels are loaded when first used.
  const uint32_t longest =
      std::min({options_.max_rows, max_context_, kv.blocks * kv::kBlockTokens});
  TANDEM_TRY(warm(kv, {1, 1, 1}, body));
  // Every matrix product's algorithm is a kernel of its own.
  for (uint32_t rows = cuda::kSmallRows + 1; rows < longest; rows = wide_bucket(rows) + 1) {
    const uint32_t most_rows = std::min(wide_bucket(rows), longest);
    TANDEM_TRY(warm(kv, {most_rows, most_rows, longest}, body));
  }
  if (longest > 1) TANDEM_TRY(warm(kv, {longest, longest, longest}, body));
  decode_recordings_.clear();
  verify_recordings_.clear();
  if (stages_.profiling()) return stream_.synchronize();  // steps then run stage by stage
  recorded_ = RecordedSteps({.decoding = most,
                             .few = few_,
                             .sequences = step_sequences_,
                             .rows = std::min(options_.max_rows, outputs_.batch())});
  for (const uint32_t rows : recorded_.decoding()) {
    TANDEM_ASSIGN(auto recording, record(kv, RecordedSteps::decode_shape(rows), body));
    decode_recordings_.push_back(std::move(recording));
  }
  for (const uint32_t rows : recorded_.verifying()) {
    TANDEM_ASSIGN(auto recording, record(kv, recorded_.verify_shape(rows), body));
    verify_recordings_.push_back(std::move(recording));
  }
  recorded_kv_ = kv;
  outputs_.forget();
  return stream_.synchronize();
}

}  // namespace tandem::engine

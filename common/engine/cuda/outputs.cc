#include "common/engine/cuda/outputs.h"

#include <algorithm>
#include <utility>

#include "common/cuda/cuda_status.h"

namespace tandem::engine {
namespace {

// Alternatives of a token that the device picks; requests for more are rare and sampled on the
// host. OpenAI's limit is 20.
constexpr uint32_t kTopCapacity = 32;
constexpr uint32_t kBiasCapacity = 16384;  // entries of all logit_bias of a batch
constexpr size_t kHistoryStaging = size_t{1} << 20;

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

// Twice as many entries as rows: a row may be scored and draw.
OutputLayout::OutputLayout(uint32_t vocab, uint32_t batch, uint32_t max_context)
    : logits_bytes(size_t{batch} * vocab * sizeof(float)),
      biases_at(2 * size_t{batch} * sizeof(cuda::SampleRow)),
      description_bytes(biases_at + kBiasCapacity * sizeof(cuda::SampleBias)),
      top_at(2 * size_t{batch} * (sizeof(int32_t) + sizeof(float))),
      results_bytes(top_at + 2 * size_t{batch} * kTopCapacity * sizeof(cuda::SampleTop)),
      history_stride(max_context + 1),
      history_bytes(size_t{batch} * history_stride * sizeof(int32_t)) {}

size_t OutputLayout::workspace_bytes() const {
  return aligned(description_bytes) + aligned(results_bytes) + aligned(history_bytes);
}

Status CudaOutputs::prepare(LinearRunner& linear, uint32_t vocab, uint32_t batch,
                            uint32_t max_context) {
  linear_ = &linear;
  vocab_ = vocab;
  batch_ = batch;
  sampling_ = cuda::plan_sampling(vocab);
  if (sampling_.cluster != 0) TANDEM_CUDA_TRY(cuda::prepare_sampling(sampling_));
  const OutputLayout layout(vocab, batch, max_context);
  TANDEM_ASSIGN(std::byte * logits, arena_.allocate(layout.logits_bytes, "logits"));
  logits_ = reinterpret_cast<float*>(logits);

  const size_t entries = 2 * size_t{batch};
  biases_at_ = layout.biases_at;
  TANDEM_ASSIGN(description_, cuda::PinnedBuffer::create(layout.description_bytes));
  TANDEM_ASSIGN(device_description_, arena_.allocate(layout.description_bytes, "workspace"));
  rows_ = std::make_unique<SampleBatch>(
      vocab, kTopCapacity, std::span(description_.as<cuda::SampleRow>(), entries),
      std::span(description_.as<cuda::SampleBias>(biases_at_), kBiasCapacity));

  top_at_ = layout.top_at;
  TANDEM_ASSIGN(results_, cuda::PinnedBuffer::create(layout.results_bytes));
  TANDEM_ASSIGN(device_results_, arena_.allocate(layout.results_bytes, "workspace"));

  TANDEM_ASSIGN(std::byte * history, arena_.allocate(layout.history_bytes, "workspace"));
  TANDEM_ASSIGN(history_staging_, cuda::PinnedBuffer::create(kHistoryStaging));
  histories_ = std::make_unique<HistorySlots>(batch, layout.history_stride);

  device_.rows = reinterpret_cast<const cuda::SampleRow*>(device_description_);
  device_.biases = reinterpret_cast<const cuda::SampleBias*>(device_description_ + biases_at_);
  device_.history = reinterpret_cast<int32_t*>(history);
  device_.history_stride = layout.history_stride;
  device_.tokens = reinterpret_cast<int32_t*>(device_results_);
  device_.logprobs = reinterpret_cast<float*>(device_results_ + entries * sizeof(int32_t));
  device_.top = reinterpret_cast<cuda::SampleTop*>(device_results_ + top_at_);
  device_.top_capacity = kTopCapacity;
  return {};
}

void CudaOutputs::forget() { histories_->forget(); }

Status CudaOutputs::stage_history(const HistoryUpload& upload) {
  size_t at = size_t{upload.slot} * device_.history_stride + upload.from;
  std::span<const TokenId> rest = upload.tokens;
  while (!rest.empty()) {
    const size_t room = kHistoryStaging / sizeof(TokenId) - history_staged_;
    if (room == 0) {
      TANDEM_TRY(send_history());
      TANDEM_TRY(stream_.synchronize());
      history_staged_ = 0;
      continue;
    }
    // Rows that verify guesses add a token each: one copy for all of them.
    if (at != unsent_.at + unsent_.count) TANDEM_TRY(send_history());
    if (unsent_.count == 0) unsent_ = {at, history_staged_, 0};
    const size_t count = std::min(room, rest.size());
    std::copy_n(rest.begin(), count,
                history_staging_.as<TokenId>(history_staged_ * sizeof(TokenId)));
    unsent_.count += count;
    history_staged_ += count;
    at += count;
    rest = rest.subspan(count);
  }
  return {};
}

Status CudaOutputs::send_history() {
  const Unsent part = std::exchange(unsent_, {});
  if (part.count == 0) return {};
  return cuda::copy_to_device(device_.history + part.at,
                              history_staging_.as<TokenId>(part.staged * sizeof(TokenId)),
                              part.count * sizeof(TokenId), stream_);
}

Result<CudaOutputs::Plan> CudaOutputs::plan(const RowOutput& output, uint32_t source) {
  Plan plan;
  const auto fits = [&](const Status& status) -> Result<bool> {
    if (status) return true;
    // More than the device's buffers were made for: not an error of the request's.
    const ErrorCode code = status.error().code;
    if (code == ErrorCode::kResourceExhausted || code == ErrorCode::kInvalidArgument) return false;
    return fail(status.error());
  };
  const bool any = output.scored || output.sampling != nullptr;
  if (any && sampling_.cluster == 0) plan.on_host = true;
  if (!any || plan.on_host) return plan;
  if (output.scored) {
    const auto entry = static_cast<int32_t>(rows_->rows().size());
    TANDEM_ASSIGN(const bool added,
                  fits(rows_->add_score(source, *output.scored, output.score_top)));
    plan.on_host = !added;
    if (added) plan.score = entry;
  }
  if (output.sampling == nullptr || plan.on_host) return plan;
  uint32_t slot = cuda::kNoHistory;
  if (needs_history(*output.sampling)) {
    TANDEM_ASSIGN(const HistoryUpload upload, histories_->acquire(output.history));
    TANDEM_TRY(stage_history(upload));
    slot = upload.slot;
  }
  const auto entry = static_cast<int32_t>(rows_->rows().size());
  TANDEM_ASSIGN(const bool added, fits(rows_->add(source, *output.sampling, output.history, slot)));
  plan.on_host = !added;
  if (added) plan.token = entry;
  if (!added && slot != cuda::kNoHistory) histories_->forget();
  return plan;
}

Status CudaOutputs::describe(std::span<const RowOutput> outputs, uint32_t padded) {
  rows_->clear();
  histories_->begin_step();
  plans_.clear();
  history_staged_ = 0;
  unsent_ = {};
  wants_top_ = false;
  for (uint32_t i = 0; i < outputs.size(); ++i) {
    TANDEM_ASSIGN(const Plan p, plan(outputs[i], i));
    plans_.push_back(p);
    wants_top_ = wants_top_ || outputs[i].score_top > 0 ||
                 (outputs[i].sampling != nullptr && outputs[i].sampling->logprobs > 0);
  }
  TANDEM_TRY(send_history());
  rows_->pad(padded);
  const size_t rows = rows_->rows().size();
  const size_t biases = rows_->biases().size();
  if (rows == 0) return {};
  if (biases == 0)
    return cuda::copy_to_device(device_description_, description_.data(),
                                rows * sizeof(cuda::SampleRow), stream_);
  return cuda::copy_to_device(device_description_, description_.data(),
                              biases_at_ + biases * sizeof(cuda::SampleBias), stream_);
}

Status CudaOutputs::enqueue(uint32_t rows, const uint32_t* index, Activation x,
                            const CudaVector& norm, float eps, const CudaLinear& head) {
  const NormInput input{static_cast<const float*>(x.data), index, norm.data, eps};
  {
    const double bytes =
        static_cast<double>(head.in) * static_cast<double>(head.out) * sizeof(Bf16);
    const Stages::Scope stage(stages_, "norm + head", bytes);
    TANDEM_TRY(linear_->logits(rows, input, head.ref(), logits_, stream_.get()));
  }
  const auto entries = static_cast<uint32_t>(rows_->rows().size());
  if (entries == 0 || sampling_.cluster == 0) return {};
  const Stages::Scope stage(stages_, "sampling",
                            static_cast<double>(entries) * vocab_ * sizeof(float));
  TANDEM_CUDA_TRY(
      cuda::launch_sampling(sampling_, logits_, vocab_, entries, device_, true, stream_.get()));
  return {};
}

SampledToken CudaOutputs::read_entry(int32_t entry, TokenId id, int32_t top) const {
  const auto at = static_cast<size_t>(entry);
  const size_t entries = 2 * size_t{batch_};
  SampledToken token;
  token.id = id;
  if (top < 0) return token;
  token.logprob = results_.as<float>(entries * sizeof(int32_t))[at];
  const auto* best = results_.as<cuda::SampleTop>(top_at_) + at * kTopCapacity;
  for (uint32_t i = 0; i < rows_->top_count(top); ++i)
    token.top.push_back({best[i].id, best[i].logprob});
  return token;
}

Status CudaOutputs::emit_on_host(const RowOutput& output, const float* logits,
                                 RowResult& result) const {
  std::vector<float> row(vocab_);
  TANDEM_TRY(cuda::copy_to_host(row.data(), logits, row.size() * sizeof(float), stream_));
  TANDEM_TRY(stream_.synchronize());
  if (output.scored) result.score = score(row, *output.scored, output.score_top);
  if (output.sampling != nullptr) result.token = sample(row, *output.sampling, output.history);
  return {};
}

Status CudaOutputs::collect(std::span<const RowOutput> outputs, std::span<RowResult> results) {
  const size_t entries = rows_->rows().size();
  const size_t capacity = 2 * size_t{batch_};
  if (entries > 0) {
    TANDEM_TRY(cuda::copy_to_host(results_.data(), device_results_,
                                  capacity * (sizeof(int32_t) + sizeof(float)), stream_));
    if (wants_top_) {
      TANDEM_TRY(cuda::copy_to_host(results_.data() + top_at_, device_results_ + top_at_,
                                    entries * kTopCapacity * sizeof(cuda::SampleTop), stream_));
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].logits != nullptr)
      TANDEM_TRY(cuda::copy_to_host(outputs[i].logits, logits_ + i * vocab_, vocab_ * sizeof(float),
                                    stream_));
  TANDEM_TRY(stream_.synchronize());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const RowOutput& wanted = outputs[i];
    const Plan& plan = plans_[i];
    if (plan.on_host) {
      TANDEM_TRY(emit_on_host(wanted, logits_ + i * vocab_, results[i]));
      continue;
    }
    if (plan.score >= 0)
      results[i].score = read_entry(plan.score, *wanted.scored, wanted.score_top);
    if (plan.token < 0) continue;
    const TokenId id = results_.as<int32_t>()[plan.token];
    results[i].token = read_entry(plan.token, id, wanted.sampling->logprobs);
    const cuda::SampleRow& row = rows_->rows()[static_cast<size_t>(plan.token)];
    if (row.appends != 0) histories_->drawn(row.history, id);
  }
  return {};
}

}  // namespace tandem::engine

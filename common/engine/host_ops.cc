#include "common/engine/host_ops.h"

#include <algorithm>
#include <vector>

namespace tandem::engine {
namespace {

// Logits are made for at most this many rows at once, and in at most this much memory.
constexpr size_t kLogitRows = 64;
constexpr size_t kLogitBytes = 32u << 20;

// `logits` is scratch.
void emit(const RowOutput& wanted, std::span<float> logits, RowResult& result) {
  if (wanted.logits != nullptr) std::copy(logits.begin(), logits.end(), wanted.logits);
  if (wanted.scored) result.score = score(logits, *wanted.scored, wanted.score_top);
  if (wanted.sampling != nullptr) result.token = sample(logits, *wanted.sampling, wanted.history);
}

}  // namespace

Result<std::unique_ptr<kv::PageMemory>> HostOps::create_kv_memory(const kv::KvLayout& layout,
                                                                  uint32_t blocks, uint32_t tails) {
  return kv::create_host_page_memory(layout, blocks, tails, {});
}

Status HostOps::prepare(const KvPages&, uint32_t, const StepBody&) { return {}; }

Status HostOps::run_step(const StepRequest& request, const StepBody& body,
                         std::span<RowResult> results) {
  request_ = &request;
  results_ = results;
  body(request.view, request.kv);
  request_ = nullptr;
  return {};
}

void HostOps::layer_written(uint32_t layer) {
  if (request_->hook != nullptr) (*request_->hook)(layer);
}

void HostOps::outputs(Activation x, const VectorWeight& norm, float eps, const LinearWeight& head) {
  const std::span<const RowOutput> wanted = request_->outputs;
  const auto vocab = static_cast<size_t>(head.out);
  const size_t chunk = std::clamp<size_t>(kLogitBytes / (vocab * sizeof(float)), 1, kLogitRows);
  std::vector<float> scratch(std::min(chunk, wanted.size()) * vocab);
  std::vector<uint32_t> rows;
  for (size_t begin = 0; begin < wanted.size(); begin += chunk) {
    const size_t n = std::min(chunk, wanted.size() - begin);
    rows.clear();
    for (size_t i = 0; i < n; ++i) rows.push_back(wanted[begin + i].row);
    logits(rows, x, norm, eps, head, scratch.data());
    for (size_t i = 0; i < n; ++i)
      emit(wanted[begin + i], std::span(scratch).subspan(i * vocab, vocab), results_[begin + i]);
  }
}

}  // namespace tandem::engine

#include "tests/support/engine_harness.h"

#include <algorithm>

namespace tandem::testing {
namespace {

// What a step reads before anybody wrote it must show.
Status soil(kv::PageMemory& memory, std::byte* at, size_t bytes) {
  if (bytes == 0) return {};
  std::vector<std::byte> dirt(bytes, std::byte{0xa5});
  const kv::PageMemory::Piece piece{at, dirt.data(), bytes};
  return memory.from_host({&piece, 1});
}

}  // namespace

Result<std::unique_ptr<EngineHarness>> EngineHarness::create(const model::Checkpoint& checkpoint,
                                                             std::unique_ptr<engine::Ops> ops,
                                                             const Options& options) {
  std::unique_ptr<EngineHarness> h(new EngineHarness);
  h->ops_ = std::move(ops);
  TANDEM_ASSIGN(h->engine_, engine::Engine::create(checkpoint, *h->ops_, {options.max_rows, 0}));
  const model::ModelConfig& config = checkpoint.config();
  const uint32_t per_sequence = (options.positions + kv::kBlockTokens - 1) / kv::kBlockTokens;
  engine::KvPages& pages = h->pages_;
  pages.layout = {config.layers, config.kv_heads, config.head_dim, options.format};
  pages.blocks = per_sequence * options.sequences + 1;
  pages.tails = pages.layout.needs_tail() ? options.sequences : 0;
  TANDEM_ASSIGN(h->memory_, h->ops_->create_kv_memory(pages.layout, pages.blocks, pages.tails));
  pages.pages = h->memory_->pages();
  pages.tail = h->memory_->tails();
  TANDEM_TRY(h->engine_->prepare(pages, options.sequences));
  TANDEM_TRY(soil(*h->memory_, pages.pages, pages.blocks * pages.layout.block_bytes()));
  TANDEM_TRY(soil(*h->memory_, pages.tail, pages.tails * pages.layout.tail_layout().block_bytes()));
  h->blocks_.resize(options.sequences);
  for (uint32_t b = 0; b < per_sequence * options.sequences; ++b)
    h->blocks_[b % options.sequences].push_back(BlockId(per_sequence * options.sequences - b));
  return h;
}

Result<std::vector<float>> EngineHarness::logits(std::span<const TokenId> tokens, uint32_t chunk,
                                                 uint32_t sequence) {
  if (chunk == 0) chunk = engine_->max_rows();
  std::vector<float> all;
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    engine::SequenceInput in;
    in.tokens = tokens.subspan(at, std::min<size_t>(chunk, tokens.size() - at));
    in.start = static_cast<uint32_t>(at);
    in.blocks = blocks_[sequence];
    in.tail = sequence;
    in.output = engine::StepOutput::kLogits;
    TANDEM_ASSIGN(auto out, engine_->step({&in, 1}, pages_));
    all.insert(all.end(), out[0].logits.begin(), out[0].logits.end());
  }
  return all;
}

Result<std::vector<TokenId>> EngineHarness::generate(std::span<const TokenId> prompt, size_t count,
                                                     const engine::SamplingParams& sampling,
                                                     bool stop_at_eos, uint32_t sequence) {
  std::vector<TokenId> all(prompt.begin(), prompt.end());
  size_t done = 0;
  const auto& eos = engine_->config().eos;
  while (all.size() < prompt.size() + count) {
    engine::SequenceInput in;
    const size_t rows = std::min<size_t>(engine_->max_rows(), all.size() - done);
    in.tokens = std::span(all).subspan(done, rows);
    in.start = static_cast<uint32_t>(done);
    in.blocks = blocks_[sequence];
    in.tail = sequence;
    done += rows;
    in.output = done == all.size() ? engine::StepOutput::kSample : engine::StepOutput::kNone;
    in.sampling = &sampling;
    in.history = {all, prompt.size()};
    TANDEM_ASSIGN(auto out, engine_->step({&in, 1}, pages_));
    if (!out[0].token) continue;
    all.push_back(out[0].token->id);
    if (stop_at_eos && std::find(eos.begin(), eos.end(), all.back()) != eos.end()) break;
  }
  return std::vector<TokenId>(all.begin() + static_cast<std::ptrdiff_t>(prompt.size()), all.end());
}

}  // namespace tandem::testing

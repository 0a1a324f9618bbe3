#include "tests/sim/ledger_engine.h"

#include <algorithm>
#include <cstring>

namespace tandem::sim {
namespace {

constexpr uint32_t kBlock = kv::kBlockTokens;

// What a row leaves in a page: 8 bytes a token, at the start of the page.
struct Cell {
  TokenId token = 0;
  uint32_t position = 0;
};

uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15U + (h << 6) + (h >> 2);
  h *= 0xff51afd7ed558ccdU;
  return h ^ (h >> 33);
}

}  // namespace

TokenId ledger_token(std::span<const TokenId> tokens, uint64_t seed, uint32_t vocab) {
  uint64_t h = mix(seed, tokens.size());
  for (const TokenId t : tokens) h = mix(h, static_cast<uint64_t>(t));
  return static_cast<TokenId>(h % vocab);
}

std::vector<TokenId> ledger_answer(const LedgerRequest& r, uint32_t vocab, uint32_t max_context) {
  std::vector<TokenId> tokens = r.prompt;
  std::vector<TokenId> answer;
  while (answer.size() < r.max_new_tokens) {
    const TokenId next = ledger_token(tokens, r.seed, vocab);
    const bool stop = std::ranges::find(r.stop_tokens, next) != r.stop_tokens.end();
    if (stop && answer.size() >= r.min_new_tokens) break;
    answer.push_back(next);
    tokens.push_back(next);
    if (tokens.size() >= max_context) break;
  }
  return answer;
}

std::byte* LedgerEngine::cell(const engine::SequenceInput& input, uint32_t layer, uint32_t position,
                              bool open_page) const {
  const size_t offset = (position % kBlock) * sizeof(Cell);
  if (open_page) return pages_.open_page(layer, input.tail).data() + offset;
  return pages_.page(layer, input.blocks[position / kBlock]).data() + offset;
}

// With a tail layout rows go to the open page, which is encoded into its block when it is full.
void LedgerEngine::write(const engine::SequenceInput& input, uint32_t layer) {
  const bool tail = pages_.layout.needs_tail();
  for (uint32_t i = 0; i < input.tokens.size(); ++i) {
    const uint32_t position = input.start + i;
    const Cell value{.token = input.tokens[i], .position = position};
    std::memcpy(cell(input, layer, position, tail), &value, sizeof value);
    if (!tail || position % kBlock != kBlock - 1) continue;
    std::memcpy(cell(input, layer, position - (kBlock - 1), false),
                cell(input, layer, position - (kBlock - 1), true), kBlock * sizeof(Cell));
  }
}

std::vector<TokenId> LedgerEngine::read(const engine::SequenceInput& input, uint32_t layer) {
  const auto end = input.start + static_cast<uint32_t>(input.tokens.size());
  std::vector<TokenId> tokens(end);
  for (uint32_t position = 0; position < end; ++position) {
    const bool open_page = pages_.layout.needs_tail() && position / kBlock == end / kBlock;
    Cell value;
    std::memcpy(&value, cell(input, layer, position, open_page), sizeof value);
    tokens[position] = value.position == position ? value.token : -1;
    if (tokens[position] != input.history.tokens[position]) ++mismatches_;
  }
  return tokens;
}

Result<std::vector<engine::SequenceOutput>> LedgerEngine::step(
    std::span<const engine::SequenceInput> sequences, const engine::LayerHook& hook) {
  ++steps_;
  const auto error = fault ? fault(sequences) : std::nullopt;
  std::vector<uint64_t> hashes(sequences.size(), 0);
  for (uint32_t layer = 0; layer < pages_.layout.layers; ++layer) {
    if (error && layer == fault_layers) return fail(*error);
    for (const auto& input : sequences) write(input, layer);
    if (hook) hook(layer);
  }
  std::vector<engine::SequenceOutput> outputs(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto& input = sequences[i];
    // Layers must agree; one that does not spoils the token like any other wrong KV.
    std::vector<TokenId> tokens = read(input, 0);
    for (uint32_t layer = 1; layer < pages_.layout.layers; ++layer) {
      const auto other = read(input, layer);
      if (other != tokens) tokens = other;
    }
    if (input.output == engine::StepOutput::kScoreRows) {
      for (size_t row = 0; row < input.tokens.size(); ++row) {
        const bool last = row + 1 == input.tokens.size();
        if (last && !input.next_token) break;
        const TokenId next = last ? *input.next_token : input.tokens[row + 1];
        // Stands for "log-probability of `next` after the tokens before it".
        const auto before = std::span(tokens).first(input.start + row + 1);
        outputs[i].scores.push_back(
            {.id = next, .logprob = -static_cast<float>(ledger_token(before, 0, 1000)), .top = {}});
      }
    }
    if (input.sampling != nullptr) {
      outputs[i].token = engine::SampledToken{
          .id = ledger_token(tokens, input.sampling->seed, vocab_), .logprob = 0, .top = {}};
    }
  }
  return outputs;
}

}  // namespace tandem::sim

#include "router/stream/choice_stream.h"

#include <algorithm>
#include <utility>

#include "common/text/tokenizer.h"

namespace tandem::router {

namespace {

LogprobEntry make_entry(const text::Tokenizer& tokenizer, const AnswerToken& token,
                        uint32_t text_offset) {
  LogprobEntry entry;
  entry.text = tokenizer.token_bytes(token.id);
  entry.logprob = token.logprob;
  entry.text_offset = text_offset;
  entry.top.reserve(token.top.size());
  for (const auto& [id, logprob] : token.top) {
    entry.top.emplace_back(tokenizer.token_bytes(id), logprob);
  }
  return entry;
}

}  // namespace

uint32_t count_characters(std::string_view text) {
  return static_cast<uint32_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
  }));
}

ChoiceStream::ChoiceStream(std::shared_ptr<const text::Tokenizer> tokenizer, StreamOptions options)
    : tokenizer_(std::move(tokenizer)),
      detokenizer_(tokenizer_, options.skip_special_tokens),
      stops_(std::move(options.stop), options.include_stop),
      logprobs_(options.logprobs),
      characters_(options.text_offset) {}

void ChoiceStream::push(const AnswerToken& token, StreamDelta& delta) {
  if (ended_) return;
  ++tokens_;
  piece_.clear();
  detokenizer_.push(token.id, piece_);
  if (logprobs_) {
    pending_.push_back({.entry = make_entry(*tokenizer_, token, characters_),
                        .start = decoded_,
                        .end = decoded_ + piece_.size()});
    characters_ += count_characters(piece_);
  }
  add_text(piece_, delta);
}

void ChoiceStream::add_text(std::string_view piece, StreamDelta& delta) {
  decoded_ += piece.size();
  const size_t before = delta.text.size();
  const bool stopped = stops_.push(piece, delta.text);
  released_ += delta.text.size() - before;
  if (stopped) {
    ended_ = true;
    delta.finish = FinishKind::kStop;
  }
  release(delta, stopped);
}

void ChoiceStream::finish(FinishKind kind, StreamDelta& delta) {
  if (ended_) return;
  add_text(detokenizer_.finish(), delta);
  if (ended_) return;  // the last character completed a stop string
  ended_ = true;
  const size_t before = delta.text.size();
  stops_.flush(delta.text);
  released_ += delta.text.size() - before;
  release(delta, true);
  delta.finish = kind;
}

void ChoiceStream::release(StreamDelta& delta, bool at_end) {
  while (!pending_.empty()) {
    const Pending& p = pending_.front();
    // At the end nothing more will be released: a token stays if any of its text did, or if it has
    // none.
    const bool whole = p.end <= released_;
    const bool begun =
        at_end && (p.start < released_ || (p.start == p.end && p.start <= released_));
    if (!whole && !begun) break;
    delta.logprobs.push_back(std::move(pending_.front().entry));
    pending_.pop_front();
  }
  if (at_end) pending_.clear();
}

std::vector<LogprobEntry> prompt_entries(const std::shared_ptr<const text::Tokenizer>& tokenizer,
                                         std::span<const TokenId> prompt,
                                         std::span<const AnswerToken> scores) {
  std::vector<LogprobEntry> entries;
  entries.reserve(prompt.size());
  // Offsets count the text as it is, special tokens included.
  text::IncrementalDetokenizer detokenizer(tokenizer, false);
  uint32_t characters = 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    AnswerToken token{.id = prompt[i], .logprob = 0, .top = {}};
    const bool scored = i > 0 && i - 1 < scores.size();
    if (scored) token = scores[i - 1];
    entries.push_back(make_entry(*tokenizer, token, characters));
    if (!scored) entries.back().logprob.reset();
    characters += count_characters(detokenizer.push(prompt[i]));
  }
  return entries;
}

}  // namespace tandem::router

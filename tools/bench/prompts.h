#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "tools/bench/trace.h"

namespace tandem::bench {

// Makes prompts of exact length out of a pool of ordinary token ids (taken from the server's own
// tokenizer, so that no special token is sent). Requests that share leading hash ids share leading
// tokens; everything else is unique per request index.
class PromptMaker {
 public:
  // `pool` must not be empty. `length_scale` is the trace's: a hash block then stands for that
  // share of its tokens.
  PromptMaker(std::vector<TokenId> pool, uint64_t seed, double length_scale);

  [[nodiscard]] std::vector<TokenId> make(const TraceRequest& request, uint64_t index) const;

 private:
  void append(uint64_t key, uint32_t tokens, std::vector<TokenId>& out) const;

  std::vector<TokenId> pool_;
  uint64_t seed_;
  double length_scale_;
};

}  // namespace tandem::bench

#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/engine/engine.h"
#include "common/kv/block_pool.h"
#include "common/proto/control.pb.h"

namespace tandem::node {

// What a node can serve; a task outside it is refused, never truncated.
struct TaskLimits {
  uint32_t vocab = 0;
  uint32_t max_context = 0;  // positions of prompt and answer together
};

// A checked control::Task in the engine's types. Plain data; `tokens` grows as the answer does and
// is append-only, so spans into it stay valid between steps as long as nobody appends.
struct Task {
  RequestId id;
  std::vector<TokenId> tokens;  // prompt, then the answer so far
  size_t prompt_tokens = 0;
  uint32_t new_tokens_left = 0;  // 0 from the start: score the prompt only
  uint32_t min_new_tokens = 0;   // of the whole answer, a resumed part included
  std::vector<TokenId> stop_tokens;
  engine::SamplingParams sampling;
  int32_t prompt_logprobs = -1;
  size_t predicted_length =
      0;  // of `tokens` when done; a guess that admission and nothing else uses

  [[nodiscard]] size_t answer_tokens() const { return tokens.size() - prompt_tokens; }
  [[nodiscard]] bool scores_prompt() const { return prompt_logprobs >= 0; }
};

// kInvalidArgument names the field. The message came from a peer: every value is checked.
[[nodiscard]] Result<Task> parse_task(const control::Task& message, const TaskLimits& limits);

// Appends the token that was drawn after the last one, unless it ends the answer as a stop token,
// and says whether (and why) the request is finished.
struct Drawn {
  bool kept = false;
  control::FinishReason finish = control::FINISH_NONE;
};
[[nodiscard]] Drawn append_drawn(Task& task, TokenId token, uint32_t max_context);

// The task's next `rows` rows behind the `computed` ones, whose KV lies in `kv`, as the engine
// takes them; the last row of all samples if a token is wanted. With `scores`, every row is scored.
// Holds spans into `task` and `kv`.
[[nodiscard]] engine::SequenceInput step_input(const Task& task, const kv::BlockTable& kv,
                                               uint32_t computed, uint32_t rows, bool scores);

[[nodiscard]] control::Token to_message(const engine::SampledToken& token);

}  // namespace tandem::node

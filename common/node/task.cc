#include "common/node/task.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "common/node/handover.h"

namespace tandem::node {
namespace {

// Expected answer when the router has no prediction.
constexpr uint32_t kUnpredictedTokens = 64;

Status check_token(TokenId token, const char* field, uint32_t vocab) {
  if (token < 0 || static_cast<uint32_t>(token) >= vocab) {
    return fail(ErrorCode::kInvalidArgument,
                std::string(field) + " holds token id " + std::to_string(token) +
                    ", but the model's ids are 0.." + std::to_string(vocab - 1),
                field);
  }
  return {};
}

Status check_finite(float value, float low, float high, const char* field) {
  // NaN fails every comparison, so it is refused here too.
  if (value >= low && value <= high) return {};
  return fail(ErrorCode::kInvalidArgument,
              std::string(field) + " is " + std::to_string(value) + ", allowed are " +
                  std::to_string(low) + " to " + std::to_string(high),
              field);
}

Result<engine::SamplingParams> parse_sampling(const control::Sampling& m, uint32_t vocab) {
  TANDEM_TRY(check_finite(m.temperature(), 0.F, 1e6F, "sampling.temperature"));
  TANDEM_TRY(check_finite(m.top_p(), 0.F, 1.F, "sampling.top_p"));
  TANDEM_TRY(check_finite(m.min_p(), 0.F, 1.F, "sampling.min_p"));
  TANDEM_TRY(check_finite(m.repetition_penalty(), 1e-6F, 1e6F, "sampling.repetition_penalty"));
  TANDEM_TRY(check_finite(m.presence_penalty(), -1e6F, 1e6F, "sampling.presence_penalty"));
  TANDEM_TRY(check_finite(m.frequency_penalty(), -1e6F, 1e6F, "sampling.frequency_penalty"));
  engine::SamplingParams params;
  params.temperature = m.temperature();
  params.top_k = std::max(m.top_k(), 0);
  params.top_p = m.top_p();
  params.min_p = m.min_p();
  params.repetition_penalty = m.repetition_penalty();
  params.presence_penalty = m.presence_penalty();
  params.frequency_penalty = m.frequency_penalty();
  params.seed = m.seed();
  params.logprobs = std::min(std::max(m.logprobs(), -1), static_cast<int32_t>(vocab));
  for (const auto& bias : m.logit_bias()) {
    TANDEM_TRY(check_token(bias.token(), "sampling.logit_bias", vocab));
    TANDEM_TRY(check_finite(bias.bias(), -1e6F, 1e6F, "sampling.logit_bias"));
    params.logit_bias.emplace_back(bias.token(), bias.bias());
  }
  return params;
}

}  // namespace

Result<Task> parse_task(const control::Task& m, const TaskLimits& limits) {
  if (m.request_id() == 0) {
    return fail(ErrorCode::kInvalidArgument, "request_id is 0", "request_id");
  }
  const auto count = static_cast<size_t>(m.tokens_size());
  if (count == 0) return fail(ErrorCode::kInvalidArgument, "the prompt has no tokens", "tokens");
  if (count > limits.max_context) {
    return fail(ErrorCode::kInvalidArgument,
                "the prompt has " + std::to_string(count) +
                    " tokens, but this node's context ends at " +
                    std::to_string(limits.max_context),
                "tokens");
  }
  if (m.prompt_tokens() == 0 || m.prompt_tokens() > count) {
    return fail(ErrorCode::kInvalidArgument,
                "prompt_tokens is " + std::to_string(m.prompt_tokens()) +
                    ", but the task carries " + std::to_string(count) + " tokens",
                "prompt_tokens");
  }
  Task task;
  task.id = RequestId{m.request_id()};
  for (const TokenId token : m.tokens()) {
    TANDEM_TRY(check_token(token, "tokens", limits.vocab));
  }
  // The answer's tokens are appended while spans into the vector are out, so it never reallocates.
  task.tokens.reserve(
      std::min<size_t>(count + size_t{m.max_new_tokens()} + 1, size_t{limits.max_context} + 1));
  task.tokens.assign(m.tokens().begin(), m.tokens().end());
  task.prompt_tokens = m.prompt_tokens();
  task.new_tokens_left = m.max_new_tokens();
  task.min_new_tokens = m.min_new_tokens();
  for (const TokenId token : m.stop_tokens()) {
    TANDEM_TRY(check_token(token, "stop_tokens", limits.vocab));
    task.stop_tokens.push_back(token);
  }
  TANDEM_ASSIGN(task.sampling, parse_sampling(m.sampling(), limits.vocab));
  task.prompt_logprobs =
      std::min(std::max(m.prompt_logprobs(), -1), static_cast<int32_t>(limits.vocab));
  const uint32_t predicted =
      m.predicted_new_tokens() == 0 ? kUnpredictedTokens : m.predicted_new_tokens();
  task.predicted_length =
      std::min<size_t>(count + std::min(predicted, m.max_new_tokens()), limits.max_context);
  return task;
}

Drawn append_drawn(Task& task, TokenId token, uint32_t max_context) {
  const bool stop = std::ranges::find(task.stop_tokens, token) != task.stop_tokens.end();
  if (stop && task.answer_tokens() >= task.min_new_tokens) {
    return {.kept = false, .finish = control::FINISH_STOP};
  }
  task.tokens.push_back(token);
  if (task.new_tokens_left > 0) --task.new_tokens_left;
  const bool full = task.new_tokens_left == 0 || task.tokens.size() >= max_context;
  return {.kept = true, .finish = full ? control::FINISH_LENGTH : control::FINISH_NONE};
}

engine::SequenceInput step_input(const Task& task, const kv::BlockTable& kv, uint32_t computed,
                                 uint32_t rows, bool scores) {
  const std::span<const TokenId> all(task.tokens);
  const uint32_t end = computed + rows;
  const bool last = end == all.size();
  const bool samples = last && task.new_tokens_left > 0;
  engine::SequenceInput input;
  input.tokens = all.subspan(computed, rows);
  input.start = computed;
  input.blocks = kv.ids().first(blocks_for(end));
  input.tail = kv.tail.slot();
  input.history = {
      .tokens = all.first(end), .prompt_tokens = task.prompt_tokens, .sequence = task.id.value};
  input.sampling = samples ? &task.sampling : nullptr;
  input.output = samples ? engine::StepOutput::kSample : engine::StepOutput::kNone;
  if (scores) {
    input.output = engine::StepOutput::kScoreRows;
    input.score_top = task.prompt_logprobs;
    if (!last) input.next_token = all[end];
  }
  return input;
}

control::Token to_message(const engine::SampledToken& token) {
  control::Token m;
  m.set_id(token.id);
  m.set_logprob(token.logprob);
  for (const auto& alternative : token.top) {
    auto& top = *m.add_top();
    top.set_token(alternative.id);
    top.set_logprob(alternative.logprob);
  }
  return m;
}

}  // namespace tandem::node

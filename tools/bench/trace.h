#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace tandem::bench {

inline constexpr uint32_t kHashBlockTokens = 512;  // as the Mooncake traces define it

// One request of a recorded or synthetic load.
struct TraceRequest {
  double at_seconds = 0;  // since the first request of the trace
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  // Prompt content by blocks of hash_block_tokens tokens: equal ids are equal text. Empty: unique
  // text.
  std::vector<uint64_t> hash_ids;
  uint32_t hash_block_tokens = kHashBlockTokens;
};

// Reads these formats, told apart by content:
//   Azure LLM inference traces of 2023 and 2024, CSV: TIMESTAMP,ContextTokens,GeneratedTokens
//   BurstGPT and other CSV whose header names such columns, see trace_csv.h
//   Mooncake traces, JSON lines: {"timestamp": ms, "input_length", "output_length", "hash_ids": []}
//   Bailian (Qwen) traces, the same with "chat_id": timestamps in seconds, blocks of 16 tokens
// Errors name file, line and field. Requests are sorted by time; the first is at 0.
[[nodiscard]] Result<std::vector<TraceRequest>> read_trace(const std::string& path);
[[nodiscard]] Result<std::vector<TraceRequest>> parse_trace(std::string_view text,
                                                            const std::string& name);

struct TraceScale {
  double time = 1;                 // 0.5: arrivals come twice as fast
  double length = 1;               // of prompts and answers, at least one token each
  uint32_t max_prompt_tokens = 0;  // longer prompts are cut; 0: no limit
  uint32_t max_output_tokens = 0;
  size_t limit = 0;  // keep the first N requests; 0: all
};
[[nodiscard]] std::vector<TraceRequest> scale_trace(std::vector<TraceRequest> trace,
                                                    const TraceScale& scale);

// Poisson arrivals at `rate` per second, all of one shape.
[[nodiscard]] std::vector<TraceRequest> poisson_load(double rate, size_t requests,
                                                     uint32_t prompt_tokens, uint32_t output_tokens,
                                                     uint64_t seed);

}  // namespace tandem::bench

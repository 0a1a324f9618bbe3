#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "router/api/json_reader.h"
#include "router/api/request.h"

namespace tandem::router {

// Fields of both generating endpoints, except max_tokens and logprobs, which differ in meaning.
// Faults go to the reader.
void read_generation_fields(ObjectReader& reader, const ApiLimits& limits, GenerationFields& out);

// max_tokens (or another key) in [min, limit].
void read_max_tokens(ObjectReader& reader, std::string_view key, uint32_t min,
                     const ApiLimits& limits, GenerationFields& out);

// Token ids of a JSON array; every element is checked against the vocabulary. `path` names the
// array.
[[nodiscard]] Result<std::vector<TokenId>> read_token_ids(const boost::json::array& array,
                                                          const std::string& path,
                                                          const ApiLimits& limits);

// messages, tools, tool_choice, chat_template_kwargs, …
void read_chat_prompt(ObjectReader& reader, ChatPrompt& out);

}  // namespace tandem::router

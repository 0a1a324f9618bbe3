#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "tools/client/http_fetch.h"

namespace tandem::cli {

// What `tandem chat` asks for; empty values are left to the server.
struct TurnOptions {
  std::string model;
  std::optional<uint32_t> max_tokens;  // empty: kChatMaxTokens, or what the context leaves
  std::optional<double> temperature;
  std::optional<double> top_p;
};

inline constexpr uint32_t kChatMaxTokens = 512;

// Fills in what the flags left open with what the server suggests for chats (chat_sampling_params
// of the model in /v1/models); what it does not tell is left to its own defaults.
void choose_sampling(const boost::json::object& model, TurnOptions& options);

struct Answer {
  std::string text;
  double ttft = 0;
  double seconds = 0;  // request to last byte
  double last = 0;     // request to last piece of text
  uint32_t prompt_tokens = 0, output_tokens = 0;
};

// Prints the answer on standard output as it comes. kCancelled when `cancelled` said so, or when
// standard output takes no more.
[[nodiscard]] Result<Answer> ask(client::HttpFetcher& fetcher, const TurnOptions& options,
                                 const boost::json::array& messages, const Clock& clock,
                                 const std::function<bool()>& cancelled);

}  // namespace tandem::cli

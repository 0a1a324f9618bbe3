#include "router/api/render.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "common/base/json_text.h"
#include "common/net/http_message.h"

namespace tandem::router {

namespace {

std::string_view object_name(Endpoint endpoint, bool chunk) {
  switch (endpoint) {
    case Endpoint::kChat:
      return chunk ? "chat.completion.chunk" : "chat.completion";
    case Endpoint::kCompletion:
      return "text_completion";
  }
  return {};
}

// {"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…
void append_head(std::string& out, const AnswerHead& head, bool chunk) {
  out += "{\"id\":";
  append_json_string(out, head.id);
  out += ",\"object\":";
  append_json_string(out, object_name(head.endpoint, chunk));
  out += ",\"created\":";
  append_json_integer(out, head.created);
  out += ",\"model\":";
  append_json_string(out, head.model);
  out += ",\"system_fingerprint\":";
  append_json_string(out, head.fingerprint);
}

// Minus infinity and other non-numbers are -9999.0, OpenAI's "very unlikely".
void append_logprob(std::string& out, float value) {
  // Through text of the float itself: as a double it would gain digits that it does not have.
  std::array<char, 40> digits;
  const float finite = std::isfinite(value) ? value : -9999.0F;
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), finite);
  out.append(digits.data(), result.ptr);
}

void append_bytes(std::string& out, std::string_view text) {
  out += '[';
  for (size_t i = 0; i < text.size(); ++i) {
    if (i != 0) out += ',';
    append_json_integer(out, static_cast<unsigned char>(text[i]));
  }
  out += ']';
}

void append_chat_token(std::string& out, std::string_view text, float logprob) {
  out += "\"token\":";
  append_json_string(out, text);
  out += ",\"logprob\":";
  append_logprob(out, logprob);
  out += ",\"bytes\":";
  append_bytes(out, text);
}

void append_chat_logprobs(std::string& out, std::span<const LogprobEntry> entries) {
  out += "{\"content\":[";
  for (size_t i = 0; i < entries.size(); ++i) {
    out += i == 0 ? "{" : ",{";
    append_chat_token(out, entries[i].text, entries[i].logprob.value_or(0));
    out += ",\"top_logprobs\":[";
    for (size_t j = 0; j < entries[i].top.size(); ++j) {
      out += j == 0 ? "{" : ",{";
      append_chat_token(out, entries[i].top[j].first, entries[i].top[j].second);
      out += '}';
    }
    out += "]}";
  }
  out += "],\"refusal\":null}";
}

// A JSON object has each key once: tokens whose text is the same once it is valid UTF-8 share the
// best.
void append_top_map(std::string& out, const LogprobEntry& entry) {
  std::vector<std::string> seen;
  out += '{';
  auto add = [&](const std::string& text, float logprob) {
    std::string key;
    append_json_string(key, text);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) return;
    if (!seen.empty()) out += ',';
    out += key;
    out += ':';
    append_logprob(out, logprob);
    seen.push_back(std::move(key));
  };
  for (const auto& [text, logprob] : entry.top) add(text, logprob);
  if (entry.logprob) add(entry.text, *entry.logprob);
  out += '}';
}

template <typename Write>
void append_list(std::string& out, std::string_view key, std::span<const LogprobEntry> entries,
                 Write&& write) {
  append_json_string(out, key);
  out += ":[";
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i != 0) out += ',';
    write(entries[i]);
  }
  out += ']';
}

void append_legacy_logprobs(std::string& out, std::span<const LogprobEntry> entries) {
  out += '{';
  append_list(out, "tokens", entries,
              [&](const LogprobEntry& e) { append_json_string(out, e.text); });
  out += ',';
  append_list(out, "token_logprobs", entries, [&](const LogprobEntry& e) {
    if (e.logprob) {
      append_logprob(out, *e.logprob);
    } else {
      out += "null";
    }
  });
  out += ',';
  append_list(out, "top_logprobs", entries, [&](const LogprobEntry& e) {
    if (e.logprob) {
      append_top_map(out, e);
    } else {
      out += "null";
    }
  });
  out += ',';
  append_list(out, "text_offset", entries,
              [&](const LogprobEntry& e) { append_json_integer(out, e.text_offset); });
  out += '}';
}

}  // namespace

std::string_view route_name(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChat:
      return "chat";
    case Endpoint::kCompletion:
      return "completions";
  }
  return {};
}

std::string_view to_string(FinishKind kind) {
  switch (kind) {
    case FinishKind::kStop:
      return "stop";
    case FinishKind::kLength:
      return "length";
  }
  return {};
}

void append_logprobs(std::string& out, Endpoint endpoint, std::span<const LogprobEntry> entries) {
  switch (endpoint) {
    case Endpoint::kChat:
      append_chat_logprobs(out, entries);
      return;
    case Endpoint::kCompletion:
      append_legacy_logprobs(out, entries);
      return;
  }
}

void append_usage_object(std::string& out, const Usage& usage) {
  out += "{\"prompt_tokens\":";
  append_json_integer(out, static_cast<int64_t>(usage.prompt_tokens));
  out += ",\"completion_tokens\":";
  append_json_integer(out, static_cast<int64_t>(usage.completion_tokens));
  out += ",\"total_tokens\":";
  append_json_integer(out, static_cast<int64_t>(usage.prompt_tokens + usage.completion_tokens));
  out += ",\"prompt_tokens_details\":{\"cached_tokens\":";
  append_json_integer(out, static_cast<int64_t>(usage.cached_tokens));
  out += "}}";
}

ChunkRenderer::ChunkRenderer(const AnswerHead& head, bool usage_field) : endpoint_(head.endpoint) {
  prefix_ = "data: ";
  append_head(prefix_, head, true);
  usage_head_ = prefix_ + ",\"choices\":[],\"usage\":";
  prefix_ += ",\"choices\":[{\"index\":";
  tail_ = usage_field ? "}],\"usage\":null}\n\n" : "}]}\n\n";
}

void ChunkRenderer::append_role(std::string& out, uint32_t index) const {
  out += prefix_;
  append_json_integer(out, index);
  out +=
      ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":"
      "null";
  out += tail_;
}

void ChunkRenderer::append_text(std::string& out, uint32_t index, std::string_view text,
                                const std::vector<LogprobEntry>* logprobs) const {
  out += prefix_;
  append_json_integer(out, index);
  out += endpoint_ == Endpoint::kChat ? ",\"delta\":{\"content\":\"" : ",\"text\":\"";
  append_json_escaped(out, text);
  out += endpoint_ == Endpoint::kChat ? "\"},\"logprobs\":" : "\",\"logprobs\":";
  if (logprobs == nullptr) {
    out += "null";
  } else {
    append_logprobs(out, endpoint_, *logprobs);
  }
  out += ",\"finish_reason\":null";
  out += tail_;
}

void ChunkRenderer::append_finish(std::string& out, uint32_t index, FinishKind kind) const {
  out += prefix_;
  append_json_integer(out, index);
  out += endpoint_ == Endpoint::kChat ? ",\"delta\":{},\"logprobs\":null,\"finish_reason\":"
                                      : ",\"text\":\"\",\"logprobs\":null,\"finish_reason\":";
  append_json_string(out, to_string(kind));
  out += tail_;
}

void ChunkRenderer::append_usage(std::string& out, const Usage& usage) const {
  out += usage_head_;
  append_usage_object(out, usage);
  out += "}\n\n";
}

void append_done(std::string& out) { out += "data: [DONE]\n\n"; }

void append_error_event(std::string& out, const Error& error) {
  out += "data: ";
  out += openai_error_body(error);
  out += "\n\n";
}

std::string render_answer(const AnswerHead& head, std::span<const ChoiceBody> choices,
                          const Usage& usage) {
  std::string out;
  append_head(out, head, false);
  out += ",\"choices\":[";
  for (size_t i = 0; i < choices.size(); ++i) {
    const ChoiceBody& choice = choices[i];
    if (i != 0) out += ',';
    out += "{\"index\":";
    append_json_integer(out, choice.index);
    if (head.endpoint == Endpoint::kChat) {
      out += ",\"message\":{\"role\":\"assistant\",\"content\":";
      append_json_string(out, choice.text);
      out += ",\"refusal\":null}";
    } else {
      out += ",\"text\":";
      append_json_string(out, choice.text);
    }
    out += ",\"logprobs\":";
    if (choice.logprobs) {
      append_logprobs(out, head.endpoint, *choice.logprobs);
    } else {
      out += "null";
    }
    out += ",\"finish_reason\":";
    append_json_string(out, to_string(choice.finish));
    out += '}';
  }
  out += "],\"usage\":";
  append_usage_object(out, usage);
  out += '}';
  return out;
}

}  // namespace tandem::router

#pragma once

// The C side of common/text/rust/src/abi.rs. Private to common/text.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

extern "C" {

struct TandemTokenizer;  // owned by Rust
struct TandemTemplate;   // owned by Rust

// Borrowed bytes, alive for the length of a call.
struct TandemSlice {
  const uint8_t* data;
  size_t size;
};

// Bytes owned by Rust, given back with tandem_buffer_free.
struct TandemBuffer {
  uint8_t* data;
  size_t size;
  size_t capacity;
};

// Token ids owned by Rust, given back with tandem_ids_free.
struct TandemIds {
  uint32_t* data;
  size_t size;
  size_t capacity;
};

struct TandemDecodeScheme {
  uint32_t kind;        // 0 bytes, 1 pieces
  uint32_t strip_left;  // how many leading strip_char are taken off
  uint32_t strip_char;  // code point
};

struct TandemGgufVocabulary {
  TandemSlice model, pre;
  const TandemSlice* tokens;
  size_t token_count;
  const TandemSlice* merges;
  size_t merge_count;
  const float* scores;
  size_t score_count;
  const int32_t* token_types;
  size_t type_count;
  int64_t bos, eos, unk, pad;                  // -1: absent
  int32_t add_bos, add_eos, add_space_prefix;  // -1 absent, 0 false, 1 true
};

struct TandemRenderRequest {
  TandemSlice messages, tools, kwargs;
  bool add_generation_prompt;
  double unix_seconds;
};

// Every function below returns 0 or a TandemStatus, never throws or unwinds, and on a failure fills
// `error` only, which the caller frees. On success the caller owns the out-parameters.
int32_t tandem_tokenizer_from_json(TandemSlice json, TandemSlice config, TandemTokenizer** out,
                                   TandemBuffer* error);
int32_t tandem_tokenizer_from_gguf(const TandemGgufVocabulary* vocabulary, TandemTokenizer** out,
                                   TandemBuffer* error);
int32_t tandem_tokenizer_encode(const TandemTokenizer* tokenizer, TandemSlice text,
                                bool add_special_tokens, bool parse_special, TandemIds* out,
                                TandemBuffer* error);
int32_t tandem_tokenizer_decode(const TandemTokenizer* tokenizer, const uint32_t* ids, size_t count,
                                bool skip_special, TandemBuffer* out, TandemBuffer* error);
int32_t tandem_tokenizer_describe(const TandemTokenizer* tokenizer, TandemDecodeScheme* scheme,
                                  TandemBuffer* vocabulary, TandemBuffer* fingerprint,
                                  TandemBuffer* warnings, TandemBuffer* error);
int32_t tandem_template_from_config(TandemSlice config, TandemSlice jinja, bool has_jinja,
                                    TandemTemplate** out, TandemBuffer* error);
int32_t tandem_template_render(const TandemTemplate* templates, const TandemRenderRequest* request,
                               TandemBuffer* out, TandemBuffer* error);

// Null is fine for all of these.
void tandem_tokenizer_free(TandemTokenizer* tokenizer);
void tandem_template_free(TandemTemplate* templates);
void tandem_buffer_free(TandemBuffer* buffer);
void tandem_ids_free(TandemIds* ids);

}  // extern "C"

namespace tandem::text {

// Owns a TandemBuffer.
class RustBuffer {
 public:
  RustBuffer() = default;
  ~RustBuffer() { tandem_buffer_free(&buffer_); }
  RustBuffer(const RustBuffer&) = delete;
  RustBuffer& operator=(const RustBuffer&) = delete;

  [[nodiscard]] TandemBuffer* out() { return &buffer_; }
  [[nodiscard]] std::string_view view() const {
    return {reinterpret_cast<const char*>(buffer_.data), buffer_.size};
  }

 private:
  TandemBuffer buffer_{nullptr, 0, 0};
};

[[nodiscard]] inline TandemSlice to_slice(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// The error a call's non-zero status stands for.
[[nodiscard]] Error rust_error(int32_t status, const RustBuffer& message,
                               std::source_location location = std::source_location::current());

}  // namespace tandem::text

#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/utf8.h"
#include "common/text/gguf_vocabulary.h"
#include "common/text/incremental_detokenizer.h"
#include "common/text/tokenizer.h"

namespace tandem::text {

inline std::string data_path(const std::string& name) {
  return std::string(TANDEM_TEST_DATA) + "/text/" + name;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline boost::json::value read_json(const std::string& path) {
  return boost::json::parse(read_file(path));
}

inline std::string text_of(const boost::json::value& value) {
  return std::string(value.as_string());
}

inline std::vector<TokenId> ids_of(const boost::json::value& value) {
  return boost::json::value_to<std::vector<TokenId>>(value);
}

template <typename T>
T unwrap(Result<T> result) {
  if (!result) {
    ADD_FAILURE() << result.error().to_string();
    std::abort();
  }
  return *std::move(result);
}

// "chat-6m" is the committed model; every other name is a fixture of generate_tokenizers.py.
inline std::shared_ptr<const Tokenizer> load_fixture(const std::string& name) {
  if (name == "chat-6m") {
    const std::string folder = std::string(TANDEM_MODELS) + "/chat-6m/";
    return unwrap(Tokenizer::from_json(read_file(folder + "tokenizer.json"),
                                       read_file(folder + "tokenizer_config.json")));
  }
  return unwrap(Tokenizer::from_json(read_file(data_path("tokenizers/" + name + ".json")), ""));
}

inline GgufVocabulary load_gguf_fixture(const std::string& name) {
  const boost::json::value root = read_json(data_path("gguf/" + name + ".json"));
  const boost::json::object& object = root.as_object();
  GgufVocabulary vocabulary;
  const auto take = [&](const char* key, auto& out) {
    if (const auto* value = object.if_contains(key)) {
      out = boost::json::value_to<std::remove_reference_t<decltype(out)>>(*value);
    }
  };
  const auto take_id = [&](const char* key, std::optional<int64_t>& out) {
    if (const auto* value = object.if_contains(key)) out = value->to_number<int64_t>();
  };
  take("model", vocabulary.model);
  take("tokens", vocabulary.tokens);
  take("merges", vocabulary.merges);
  take("scores", vocabulary.scores);
  take("token_types", vocabulary.token_types);
  take_id("bos", vocabulary.bos_id);
  take_id("eos", vocabulary.eos_id);
  take_id("unk", vocabulary.unk_id);
  return vocabulary;
}

// What a stream gives for `ids`, checked on the way: every piece is whole characters.
inline std::string stream(const std::shared_ptr<const Tokenizer>& tokenizer,
                          std::span<const TokenId> ids, bool skip_special) {
  IncrementalDetokenizer detokenizer(tokenizer, skip_special);
  std::string joined;
  for (const TokenId id : ids) {
    const std::string piece = detokenizer.push(id);
    EXPECT_TRUE(is_valid_utf8(piece)) << piece;
    joined += piece;
  }
  return joined + detokenizer.finish();
}

}  // namespace tandem::text

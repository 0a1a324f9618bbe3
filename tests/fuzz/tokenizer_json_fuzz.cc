// Any bytes as tokenizer.json, with what follows a NUL as tokenizer_config.json.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const std::string_view config =
      end == std::string_view::npos ? std::string_view() : input.substr(end + 1);
  const auto tokenizer = tandem::text::Tokenizer::from_json(input.substr(0, end), config);
  if (!tokenizer) {
    TANDEM_CHECK(!tokenizer.error().detail.empty(), "an error without a message");
    return 0;
  }
  const auto ids =
      (*tokenizer)->encode("Good old dog <s> 12 \xC3\xA9", {.add_special_tokens = true});
  if (!ids) return 0;
  TANDEM_CHECK(tandem::is_valid_utf8((*tokenizer)->decode(*ids, false)), "not UTF-8");
  return 0;
}

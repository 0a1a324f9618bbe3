#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/net/http_message.h"

namespace tandem {

// Lets requests in that carry a known key as `Authorization: Bearer KEY`. Immutable; any thread.
// The comparison takes the same time whichever key is wrong and wherever.
class ApiKeyGate {
 public:
  // No keys: everybody is let in.
  explicit ApiKeyGate(std::vector<std::string> keys);
  [[nodiscard]] bool open() const { return digests_.empty(); }
  // Error kUnauthenticated; the key itself is in no message.
  [[nodiscard]] Status check(const HttpRequest& request) const;

 private:
  std::vector<std::string> digests_;
};

// Whether a and b are equal, in time that depends on their lengths only.
[[nodiscard]] bool constant_time_equal(std::string_view a, std::string_view b);
[[nodiscard]] std::string hmac_sha256(std::string_view key, std::string_view data);  // 32 bytes
[[nodiscard]] std::string random_bytes(size_t count);  // fit for secrets
// Digits of a name that must not repeat; `bytes` of randomness, at most 64. Not for secrets: a
// thread draws ahead.
[[nodiscard]] std::string random_hex(size_t bytes);

}  // namespace tandem

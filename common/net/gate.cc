#include "common/net/gate.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>

#include "common/base/check.h"
#include "common/base/hex.h"

namespace tandem {
namespace {

constexpr size_t kDigestBytes = 32;

std::string sha256(std::string_view data) {
  std::string digest(kDigestBytes, '\0');
  unsigned int length = 0;
  const int ok =
      EVP_Digest(data.data(), data.size(), reinterpret_cast<unsigned char*>(digest.data()), &length,
                 EVP_sha256(), nullptr);
  TANDEM_CHECK(ok == 1 && length == kDigestBytes, "SHA-256 is always there");
  return digest;
}

}  // namespace

ApiKeyGate::ApiKeyGate(std::vector<std::string> keys) {
  // Digests are equally long, so a comparison tells nothing about a key's length either.
  for (const auto& key : keys) digests_.push_back(sha256(key));
}

Status ApiKeyGate::check(const HttpRequest& request) const {
  if (open()) return {};
  const std::string* header = request.header("authorization");
  constexpr std::string_view kScheme = "bearer ";
  if (header == nullptr) {
    return fail(ErrorCode::kUnauthenticated,
                "no API key was given; send it as 'Authorization: Bearer KEY'");
  }
  if (header->size() <= kScheme.size() ||
      !equal_ignoring_case(std::string_view(*header).substr(0, kScheme.size()), kScheme)) {
    return fail(ErrorCode::kUnauthenticated,
                "the Authorization header is not of the form 'Bearer KEY'");
  }
  std::string_view key = std::string_view(*header).substr(kScheme.size());
  while (!key.empty() && key.front() == ' ') key.remove_prefix(1);
  const std::string digest = sha256(key);
  bool found = false;
  for (const auto& known : digests_) found |= constant_time_equal(digest, known);
  if (!found) return fail(ErrorCode::kUnauthenticated, "the API key is not one of this server's");
  return {};
}

bool constant_time_equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string hmac_sha256(std::string_view key, std::string_view data) {
  std::string digest(kDigestBytes, '\0');
  unsigned int length = 0;
  const auto* ok = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                        reinterpret_cast<const unsigned char*>(data.data()), data.size(),
                        reinterpret_cast<unsigned char*>(digest.data()), &length);
  TANDEM_CHECK(ok != nullptr && length == kDigestBytes, "HMAC-SHA-256 is always there");
  return digest;
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  const int ok =
      RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count));
  TANDEM_CHECK(ok == 1, "the system's random numbers are always there");
  return bytes;
}

std::string random_hex(size_t bytes) {
  constexpr size_t kAhead = 4096;  // a draw of the generator costs more than all that follows it
  thread_local std::string pool;
  TANDEM_CHECK(bytes <= 64, "a name has at most 64 random bytes");
  if (pool.size() < bytes) pool = random_bytes(kAhead);
  std::string hex = to_hex(std::string_view(pool).substr(pool.size() - bytes));
  pool.resize(pool.size() - bytes);
  return hex;
}

}  // namespace tandem

#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tandem::control {
class Challenge;
class Hello;
}  // namespace tandem::control

namespace tandem {

inline constexpr size_t kNonceBytes = 32;

// HMAC-SHA256(key, nonce | role (1 byte) | length of node_id (4 bytes LE) | node_id | generation (8
// bytes LE)): the proof that stands in Hello.authentication.
[[nodiscard]] std::string hello_proof(std::string_view shared_key, std::string_view nonce,
                                      const control::Hello& hello);

// What the router asks of any Hello, whoever sends it: protocol version, role, name, generation
// and, with a shared key, the proof. Errors: kMismatch, kInvalidArgument, kUnauthenticated.
[[nodiscard]] Status check_hello(const control::Hello& hello, std::string_view nonce,
                                 std::string_view shared_key);

}  // namespace tandem

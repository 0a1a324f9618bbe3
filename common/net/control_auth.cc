#include "common/net/control_auth.h"

#include <algorithm>
#include <cctype>

#include "common/net/control_channel.h"
#include "common/net/gate.h"
#include "common/proto/control.pb.h"
#include "common/proto/versions.h"

namespace tandem {
namespace {

void append_little_endian(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
}

bool is_node_id(std::string_view id) {
  constexpr size_t kLongest = 63;
  return !id.empty() && id.size() <= kLongest && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

}  // namespace

std::string hello_proof(std::string_view shared_key, std::string_view nonce,
                        const control::Hello& hello) {
  std::string data(nonce);
  append_little_endian(data, static_cast<uint64_t>(hello.role()), 1);
  append_little_endian(data, hello.node_id().size(), 4);
  data += hello.node_id();
  append_little_endian(data, hello.generation(), 8);
  return hmac_sha256(shared_key, data);
}

Status check_hello(const control::Hello& hello, std::string_view nonce,
                   std::string_view shared_key) {
  // The proof first: a stranger learns nothing else.
  if (!shared_key.empty() &&
      !constant_time_equal(hello.authentication(), hello_proof(shared_key, nonce, hello))) {
    return fail(
        ErrorCode::kUnauthenticated,
        hello.authentication().empty()
            ? "this router asks for a shared key; set router.control.shared_key"
            : "the shared key differs from the router's; set the same router.control.shared_key");
  }
  if (hello.protocol_version() != proto::kControlVersion) {
    return fail(ErrorCode::kMismatch,
                "control protocol version " + std::to_string(hello.protocol_version()) +
                    " differs from the router's " + std::to_string(proto::kControlVersion) +
                    "; run the same release on both",
                "protocol_version");
  }
  if (hello.role() != control::ROLE_PREFILL && hello.role() != control::ROLE_DECODE) {
    return fail(ErrorCode::kInvalidArgument, "a node is either prefill or decode", "role");
  }
  if (!is_node_id(hello.node_id())) {
    return fail(ErrorCode::kInvalidArgument,
                "a node's name has 1 to 63 letters, digits, '-', '_' and '.'", "node_id");
  }
  if (hello.generation() == 0) {
    return fail(ErrorCode::kInvalidArgument, "a node's generation must not be 0", "generation");
  }
  return {};
}

}  // namespace tandem

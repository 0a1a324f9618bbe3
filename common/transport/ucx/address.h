#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tandem::transport {

// What travels as Transport::address(): UCX's worker address is opaque and unpacked without checks,
// so it goes in an envelope that is checked before UCX sees it.
//   "TUCX" | u8 version 3 | u64 host | u32 length | worker address | u32 length | local address |
//   u64 XXH3-64 of all before
// The version also stands for how frames travel: 1 were active messages, 2 were tagged messages
// over UCX's shared memory or TCP, 3 leaves peers of one host to the transport with the local
// address.
struct UcxAddress {
  uint64_t host = 0;  // see this_host()
  std::string worker;
  std::string local = {};  // for peers that it can be reached from (direct/wire_format.h); or empty
};
[[nodiscard]] std::string encode_ucx_address(const UcxAddress& address);
// kInvalidArgument for anything that encode_ucx_address did not make.
[[nodiscard]] Result<UcxAddress> parse_ucx_address(std::string_view bytes);

// Names this boot of this kernel.
[[nodiscard]] uint64_t this_host();

}  // namespace tandem::transport

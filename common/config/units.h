#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/config/schema.h"

namespace tandem {

// "250ms", "1.5s", "2m"; units ns, us, ms, s, m, h. A number without a unit is refused.
[[nodiscard]] Result<Duration> parse_duration(std::string_view text);
// The shortest exact spelling: "3s", "250ms".
[[nodiscard]] std::string format_duration(Duration duration);

// "64MiB", "1.5GiB"; units B, KiB, MiB, GiB, TiB and the decimal KB, MB, GB, TB.
[[nodiscard]] Result<ByteSize> parse_size(std::string_view text);
[[nodiscard]] std::string format_size(ByteSize size);

// For people: "23.4 GiB", "310.0 MiB".
[[nodiscard]] std::string approximate_size(uint64_t bytes);

// Decimal digits only. Errors say whether it is no number or too large.
[[nodiscard]] Result<uint64_t> parse_integer(std::string_view text);
[[nodiscard]] Result<double> parse_number(std::string_view text);

// "cpu", "cuda" (the first card), "cuda:1".
struct DeviceChoice {
  bool cuda = false;
  uint32_t index = 0;  // of the card
  [[nodiscard]] std::string name() const {
    return cuda ? "cuda:" + std::to_string(index) : std::string("cpu");
  }
  friend constexpr bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};
[[nodiscard]] Result<DeviceChoice> parse_device(std::string_view text);

struct HostPort {
  std::string host;
  uint16_t port = 0;
};
// "host:port", "[::1]:7070".
[[nodiscard]] Result<HostPort> parse_host_port(std::string_view text);
[[nodiscard]] std::string format_host_port(std::string_view host, uint16_t port);

}  // namespace tandem

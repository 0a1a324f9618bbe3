#include "common/config/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

namespace tandem {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};

constexpr std::array<Unit, 6> kDurationUnits{{{"h", 3'600'000'000'000},
                                              {"m", 60'000'000'000},
                                              {"s", 1'000'000'000},
                                              {"ms", 1'000'000},
                                              {"us", 1'000},
                                              {"ns", 1}}};
constexpr std::array<Unit, 9> kSizeUnits{{{"TiB", uint64_t{1} << 40},
                                          {"GiB", uint64_t{1} << 30},
                                          {"MiB", uint64_t{1} << 20},
                                          {"KiB", uint64_t{1} << 10},
                                          {"B", 1},
                                          {"TB", 1'000'000'000'000},
                                          {"GB", 1'000'000'000},
                                          {"MB", 1'000'000},
                                          {"KB", 1'000}}};
constexpr size_t kBinarySizeUnits = 5;
constexpr size_t kMaxDecimals = 15;  // 10^15 * 2^40 stays far inside 128 bits

bool is_digit(char c) { return c >= '0' && c <= '9'; }

template <size_t N>
std::string unit_names(const std::array<Unit, N>& units) {
  std::string names;
  for (const Unit& unit : units) {
    if (!names.empty()) names += ", ";
    names += unit.name;
  }
  return names;
}

// Digits, optionally a point and digits, then one of `units`; the value must be a whole number of
// the smallest unit.
template <size_t N>
Result<uint64_t> parse_quantity(std::string_view text, const std::array<Unit, N>& units,
                                std::string_view what) {
  size_t whole_end = 0;
  while (whole_end < text.size() && is_digit(text[whole_end])) ++whole_end;
  size_t end = whole_end;
  if (end < text.size() && text[end] == '.') {
    ++end;
    while (end < text.size() && is_digit(text[end])) ++end;
  }
  std::string_view suffix = text.substr(end);
  while (!suffix.empty() && suffix.front() == ' ') suffix.remove_prefix(1);
  if (whole_end == 0 || end == whole_end + 1) {
    return fail(ErrorCode::kConfig, "'" + std::string(text) + "' is not a " + std::string(what) +
                                        "; write a number and a unit, one of " + unit_names(units));
  }
  const Unit* unit = nullptr;
  for (const Unit& candidate : units) {
    if (candidate.name == suffix) unit = &candidate;
  }
  if (unit == nullptr) {
    return fail(
        ErrorCode::kConfig,
        (suffix.empty() ? "'" + std::string(text) + "' has no unit"
                        : "'" + std::string(suffix) + "' is not a unit of a " + std::string(what)) +
            "; use one of " + unit_names(units));
  }
  using Wide = unsigned __int128;
  const std::string_view decimals =
      end > whole_end ? text.substr(whole_end + 1, end - whole_end - 1) : "";
  TANDEM_ASSIGN(const uint64_t whole, parse_integer(text.substr(0, whole_end)));
  Wide fraction = 0;
  Wide scale = 1;
  for (const char c : decimals.substr(0, kMaxDecimals)) {
    fraction = fraction * 10 + static_cast<Wide>(c - '0');
    scale *= 10;
  }
  fraction *= unit->factor;
  if (decimals.size() > kMaxDecimals || fraction % scale != 0) {
    return fail(ErrorCode::kConfig, "'" + std::string(text) + "' is finer than one " +
                                        (what == "size" ? "byte" : "nanosecond"));
  }
  const Wide value = Wide{whole} * unit->factor + fraction / scale;
  if (value > static_cast<Wide>(std::numeric_limits<int64_t>::max())) {
    return fail(ErrorCode::kConfig, "'" + std::string(text) + "' is too large");
  }
  return static_cast<uint64_t>(value);
}

std::string format_quantity(uint64_t value, const Unit* units, size_t count) {
  if (value != 0) {
    for (size_t i = 0; i < count; ++i) {
      if (value % units[i].factor == 0) {
        return std::to_string(value / units[i].factor) + std::string(units[i].name);
      }
    }
  }
  return std::to_string(value);
}

}  // namespace

Result<Duration> parse_duration(std::string_view text) {
  TANDEM_ASSIGN(const uint64_t nanoseconds, parse_quantity(text, kDurationUnits, "duration"));
  return Duration(static_cast<int64_t>(nanoseconds));
}

std::string format_duration(Duration duration) {
  const auto count = static_cast<uint64_t>(duration.count());
  if (count == 0) return "0s";
  return format_quantity(count, kDurationUnits.data(), kDurationUnits.size());
}

Result<ByteSize> parse_size(std::string_view text) {
  TANDEM_ASSIGN(const uint64_t bytes, parse_quantity(text, kSizeUnits, "size"));
  return ByteSize{bytes};
}

std::string format_size(ByteSize size) {
  if (size.bytes == 0) return "0B";
  return format_quantity(size.bytes, kSizeUnits.data(), kBinarySizeUnits);
}

std::string approximate_size(uint64_t bytes) {
  const bool large = bytes >= gib(1).bytes;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s",
                static_cast<double>(bytes) / static_cast<double>((large ? gib(1) : mib(1)).bytes),
                large ? "GiB" : "MiB");
  return text;
}

Result<uint64_t> parse_integer(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    return fail(ErrorCode::kConfig, "'" + std::string(text) + "' is too large");
  }
  if (error != std::errc{} || end != text.data() + text.size()) {
    return fail(ErrorCode::kConfig, "'" + std::string(text) + "' is not a whole number");
  }
  // Eight for readers of YAML 1.1, ten for those of 1.2.
  if (text.size() > 1 && text.front() == '0') {
    return fail(ErrorCode::kConfig,
                "'" + std::string(text) + "' begins with a zero; write it without");
  }
  return value;
}

Result<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) {
    return fail(ErrorCode::kConfig, "'" + std::string(text) + "' is not a finite number");
  }
  return value;
}

Result<DeviceChoice> parse_device(std::string_view text) {
  constexpr std::string_view kPrefix = "cuda:";
  constexpr uint64_t kMostCards = 1024;
  if (text == "cpu") return DeviceChoice{};
  if (text == "cuda") return DeviceChoice{.cuda = true, .index = 0};
  if (text.starts_with(kPrefix)) {
    const auto index = parse_integer(text.substr(kPrefix.size()));
    if (index && *index < kMostCards)
      return DeviceChoice{.cuda = true, .index = static_cast<uint32_t>(*index)};
  }
  return fail(ErrorCode::kConfig,
              "'" + std::string(text) + "' is not a device; write cpu, cuda or cuda:N");
}

Result<HostPort> parse_host_port(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return fail(ErrorCode::kConfig, "'" + std::string(text) + "' " + std::string(why) +
                                        "; write host:port, for IPv6 [address]:port");
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad("has no port");
  std::string_view host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad("is an IPv6 address without brackets");
  }
  if (host.empty()) return bad("has no host");
  if (host.find_first_of(" /[]@") != std::string_view::npos) return bad("is not a host and port");
  const auto port = parse_integer(text.substr(colon + 1));
  if (!port || *port == 0 || *port > 65535) return bad("has no port between 1 and 65535");
  return HostPort{std::string(host), static_cast<uint16_t>(*port)};
}

std::string format_host_port(std::string_view host, uint16_t port) {
  std::string text;
  if (host.find(':') != std::string_view::npos) {
    text = "[" + std::string(host) + "]";
  } else {
    text = host;
  }
  return text + ":" + std::to_string(port);
}

}  // namespace tandem

#pragma once

#include <boost/json/fwd.hpp>
#include <string>
#include <string_view>

namespace tandem::cli {

// The router's /status (router/status_page/README.md) as a table for a terminal. Members that are
// missing, null or of another type show as "-".
[[nodiscard]] std::string render_status(const boost::json::object& status, std::string_view url);

// "512 B", "1.5 KiB", "20.3 MiB".
[[nodiscard]] std::string human_bytes(double bytes);

// KV hand-overs since the router started.
struct TransferTotals {
  double count = 0;
  double raw_bytes = 0;
  double wire_bytes = 0;
  std::string transport;
};
[[nodiscard]] TransferTotals transfer_totals(const boost::json::object& status);

}  // namespace tandem::cli

#include "tools/cli/status_text.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <initializer_list>
#include <optional>
#include <vector>

namespace tandem::cli {
namespace {

namespace json = boost::json;

const json::value* find(const json::object& object, std::initializer_list<std::string_view> path) {
  const json::object* at = &object;
  const json::value* value = nullptr;
  for (const std::string_view key : path) {
    if (at == nullptr) return nullptr;
    value = at->if_contains(json::string_view(key.data(), key.size()));
    if (value == nullptr) return nullptr;
    at = value->if_object();
  }
  return value;
}

std::optional<double> number(const json::object& object,
                             std::initializer_list<std::string_view> path) {
  const json::value* value = find(object, path);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->to_number<double>();
}

std::string text(const json::object& object, std::initializer_list<std::string_view> path) {
  const json::value* value = find(object, path);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "-";
}

std::string count(const json::object& object, std::initializer_list<std::string_view> path) {
  const auto value = number(object, path);
  return value ? fmt::format("{:.0f}", *value) : "-";
}

std::string rate(const json::object& object, std::initializer_list<std::string_view> path) {
  const auto value = number(object, path);
  return value ? fmt::format("{:.1f}", *value) : "-";
}

std::string percent(const json::object& object, std::initializer_list<std::string_view> path) {
  const auto value = number(object, path);
  return value ? fmt::format("{:.0f} %", *value * 100) : "-";
}

std::string latency(const json::object& status, std::string_view what) {
  std::string out;
  for (const std::string_view quantile : {"p50", "p90", "p99"}) {
    const auto seconds = number(status, {"latency", what, quantile});
    if (!out.empty()) out += " / ";
    out += seconds ? fmt::format("{:.1f}", *seconds * 1e3) : "-";
  }
  return out + " ms";
}

using Row = std::vector<std::string>;

std::string table(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line = "  ";
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

Row node_row(const json::object& node) {
  return {text(node, {"id"}),
          text(node, {"role"}),
          text(node, {"state"}),
          text(node, {"engine"}),
          count(node, {"queued"}),
          count(node, {"running"}),
          count(node, {"kv", "used"}) + "/" + count(node, {"kv", "cached"}) + "/" +
              count(node, {"kv", "total"}),
          percent(node, {"prefix_hit_ratio"}),
          rate(node, {"tokens_per_second"}),
          rate(node, {"heartbeat_age_seconds"}) + " s"};
}

}  // namespace

std::string human_bytes(double bytes) {
  static constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

TransferTotals transfer_totals(const json::object& status) {
  return {.count = number(status, {"transfers", "count"}).value_or(0),
          .raw_bytes = number(status, {"transfers", "raw_bytes"}).value_or(0),
          .wire_bytes = number(status, {"transfers", "wire_bytes"}).value_or(0),
          .transport = text(status, {"transfers", "transport"})};
}

std::string render_status(const json::object& status, std::string_view url) {
  const json::value* ready = find(status, {"ready"});
  const bool is_ready = ready != nullptr && ready->is_bool() && ready->get_bool();
  const TransferTotals transfers = transfer_totals(status);
  std::string out = fmt::format("tandem {} at {}: {}, up {} s, serving {} (context {})\n\n",
                                text(status, {"version"}), url, is_ready ? "ready" : "NOT READY",
                                count(status, {"uptime_seconds"}), text(status, {"model", "id"}),
                                count(status, {"model", "max_context"}));
  out += fmt::format(
      "requests   {} running, {} ended: {} failed, {} rejected, {} left by their clients\n",
      count(status, {"requests", "running"}), count(status, {"requests", "total"}),
      count(status, {"requests", "failed"}), count(status, {"requests", "rejected"}),
      count(status, {"requests", "left"}));
  out +=
      fmt::format("attempts   {} retried, {} prefilled by a decode node past their deadline\n",
                  count(status, {"requests", "retries"}), count(status, {"requests", "failovers"}));
  out += fmt::format("queue      {} of {} waiting for prefill, the oldest for {} s\n",
                     count(status, {"queues", "prefill", "depth"}),
                     count(status, {"queues", "prefill", "capacity"}),
                     rate(status, {"queues", "prefill", "oldest_seconds"}));
  out += fmt::format("tokens/s   prompt {}, output {}\n",
                     rate(status, {"tokens_per_second", "prompt"}),
                     rate(status, {"tokens_per_second", "output"}));
  out += fmt::format("p50/90/99  TTFT {}, ITL {}, E2E {}, prefill to decode {}\n",
                     latency(status, "ttft"), latency(status, "itl"), latency(status, "e2e"),
                     latency(status, "prefill_to_decode"));
  out += fmt::format("transfers  {:.0f}: {} of KV as {} on the wire, exposed {}, over {}\n\n",
                     transfers.count, human_bytes(transfers.raw_bytes),
                     human_bytes(transfers.wire_bytes),
                     percent(status, {"transfers", "exposed_ratio"}), transfers.transport);
  std::vector<Row> rows{{"NODE", "ROLE", "STATE", "ENGINE", "QUEUED", "RUNNING",
                         "KV USED/CACHED/TOTAL", "PREFIX HITS", "TOKENS/S", "HEARD"}};
  if (const json::value* nodes = find(status, {"nodes"}); nodes != nullptr && nodes->is_array()) {
    for (const json::value& node : nodes->get_array()) {
      if (node.is_object()) rows.push_back(node_row(node.get_object()));
    }
  }
  return out + table(rows);
}

}  // namespace tandem::cli

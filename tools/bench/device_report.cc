#include "tools/bench/device_report.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>

#include "tools/number_text.h"

namespace tandem::bench {
namespace {

std::string time_text(double seconds) {
  if (!(seconds > 0)) return "";
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

boost::json::value number(double x) {
  return x != 0 && std::isfinite(x) ? boost::json::value(x) : boost::json::value(nullptr);
}

}  // namespace

std::string verdict(const DeviceRow& row) {
  if (row.target == 0) return "";
  return row.passes() ? "pass" : "short";
}

std::string device_table_header() {
  return fmt::format("{:<36} {:<30} {:>10} {:>16} {:>10} {:<16} {:>6} {:>6}  {}\n", "what", "shape",
                     "time", "rate", "ceiling", "of", "ratio", "target", "");
}

std::string device_table_line(const DeviceRow& row) {
  const bool compared = row.ceiling > 0;
  const bool has_ratio = row.ratio > 0 && (compared || row.target > 0);
  std::string line = fmt::format(
      "{:<36} {:<30} {:>10} {:>16} {:>10} {:<16} {:>6} {:>6}  {}", row.what, row.shape,
      time_text(row.seconds), row.rate > 0 ? three_figures(row.rate) + " " + row.unit : "",
      compared ? three_figures(row.ceiling) : "", compared ? row.against : "",
      has_ratio ? fmt::format("{:.3f}", row.ratio) : "",
      row.target > 0 ? fmt::format("{:.2f}", row.target) : "", verdict(row));
  if (!row.note.empty()) line += "  " + row.note;
  while (line.ends_with(' ')) line.pop_back();
  return line + "\n";
}

std::string device_json(const std::string& device, const std::string& driver,
                        const std::vector<DeviceRow>& rows) {
  boost::json::array list;
  for (const DeviceRow& row : rows) {
    const std::string said = verdict(row);
    list.push_back({
        {"what", row.what},
        {"shape", row.shape},
        {"seconds", number(row.seconds)},
        {"rate", number(row.rate)},
        {"unit", row.unit},
        {"ceiling", number(row.ceiling)},
        {"against", row.against},
        {"ratio", number(row.ratio)},
        {"target", number(row.target)},
        {"target_is", row.target == 0 ? boost::json::value(nullptr)
                                      : boost::json::value(row.at_most ? "at most" : "at least")},
        {"verdict", said.empty() ? boost::json::value(nullptr) : boost::json::value(said)},
        {"note", row.note},
    });
  }
  return boost::json::serialize(
      boost::json::object{{"device", device}, {"cuda_driver", driver}, {"rows", list}});
}

}  // namespace tandem::bench

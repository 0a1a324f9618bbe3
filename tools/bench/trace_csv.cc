#include "tools/bench/trace_csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

namespace tandem::bench {
namespace {

// What published traces call their columns, in lower case without spaces and underscores: Azure,
// BurstGPT, Vidur and the field names of JSON lines.
constexpr std::array<std::string_view, 3> kTimeNames = {"timestamp", "arrivedat", "arrivaltime"};
constexpr std::array<std::string_view, 5> kPromptNames = {
    "contexttokens", "requesttokens", "numprefilltokens", "inputlength", "prompttokens"};
constexpr std::array<std::string_view, 5> kOutputNames = {
    "generatedtokens", "responsetokens", "numdecodetokens", "outputlength", "outputtokens"};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
    text = text.substr(1, text.size() - 2);
  return text;
}

// No comma within quotes: numbers, dates and names of models hold none.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  while (true) {
    const size_t comma = line.find(',');
    cells.emplace_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == ' ' || c == '_') continue;
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

std::optional<size_t> column(const std::vector<std::string>& cells,
                             std::span<const std::string_view> names) {
  for (size_t i = 0; i < cells.size(); ++i) {
    if (std::ranges::find(names, plain(cells[i])) != names.end()) return i;
  }
  return std::nullopt;
}

template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Days since 1970-01-01 of a Gregorian date (H. Hinnant, "chrono-compatible low-level date
// algorithms").
int64_t days_from_civil(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2;
  const int64_t era = (year >= 0 ? year : year - 399) / 400;
  const int64_t year_of_era = year - era * 400;
  const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + day_of_era - 719468;
}

// Takes a number of `digits` digits off the front of `text`, and the character that must follow (0:
// none).
std::optional<int> take(std::string_view& text, size_t digits, char follower) {
  const auto value =
      text.size() < digits ? std::nullopt : parse_number<int>(text.substr(0, digits));
  if (!value || *value < 0) return std::nullopt;
  text.remove_prefix(digits);
  if (follower == 0) return value;
  if (!text.starts_with(follower)) return std::nullopt;
  text.remove_prefix(1);
  return value;
}

// "", "Z", "+01:00", "+0100" or "-08" to seconds east of UTC.
std::optional<double> parse_offset(std::string_view text) {
  if (text.empty() || text == "Z") return 0;
  const bool west = text.front() == '-';
  if (!west && text.front() != '+') return std::nullopt;
  text.remove_prefix(1);
  const auto hours = take(text, 2, 0);
  if (text.starts_with(':')) text.remove_prefix(1);
  const auto minutes = text.empty() ? std::optional<int>(0) : take(text, 2, 0);
  if (!hours || !minutes || *minutes > 59 || !text.empty()) return std::nullopt;
  return (west ? -60.0 : 60.0) * (*hours * 60 + *minutes);
}

// "2023-11-16 18:15:46.6805900", with 'T' for the space, with an offset or without: seconds since
// 1970.
std::optional<double> parse_date(std::string_view text) {
  const auto year = take(text, 4, '-');
  const auto month = take(text, 2, '-');
  const auto day = take(text, 2, 0);
  if (!year || !month || !day || !(text.starts_with(' ') || text.starts_with('T')))
    return std::nullopt;
  text.remove_prefix(1);
  const auto hour = take(text, 2, ':');
  const auto minute = take(text, 2, ':');
  const size_t length = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto second = parse_number<double>(text.substr(0, length));
  if (!hour || !minute || !second) return std::nullopt;
  const auto offset = parse_offset(text.substr(length));
  if (!offset || *month < 1 || *month > 12 || *day < 1 || *day > 31 || *hour > 23 || *minute > 59 ||
      *second >= 61) {
    return std::nullopt;
  }
  return static_cast<double>(days_from_civil(*year, *month, *day)) * 86400.0 + *hour * 3600.0 +
         *minute * 60.0 + *second - *offset;
}

std::optional<double> parse_time(std::string_view text) {
  if (const auto date = parse_date(text)) return date;
  const auto seconds = parse_number<double>(text);
  return seconds && std::isfinite(*seconds) && *seconds >= 0 && *seconds <= 1e12 ? seconds
                                                                                 : std::nullopt;
}

}  // namespace

Status CsvTrace::read_header(const std::vector<std::string>& cells, const std::string& where) {
  const auto need = [&](std::span<const std::string_view> names,
                        const char* what) -> Result<size_t> {
    if (const auto found = column(cells, names)) return *found;
    return fail(ErrorCode::kCorruptData,
                where + "no column of " + what + " among the names of this header");
  };
  TANDEM_ASSIGN(time_, need(kTimeNames, "arrival times (TIMESTAMP)"));
  TANDEM_ASSIGN(prompt_, need(kPromptNames, "prompt lengths (ContextTokens)"));
  TANDEM_ASSIGN(output_, need(kOutputNames, "answer lengths (GeneratedTokens)"));
  count_ = cells.size();
  return {};
}

Result<CsvTrace::Row> CsvTrace::read(std::string_view line, const std::string& where) {
  const std::vector<std::string> cells = cells_of(line);
  if (column(cells, kTimeNames) || column(cells, kPromptNames) || column(cells, kOutputNames)) {
    TANDEM_TRY(read_header(cells, where));
    return Row{};
  }
  if (cells.size() != count_) {
    return fail(
        ErrorCode::kCorruptData,
        where + "expected " +
            (count_ == 3 ? "TIMESTAMP,ContextTokens,GeneratedTokens"
                         : "as many columns as the header names, " + std::to_string(count_)) +
            ", found " + std::to_string(cells.size()) + " columns");
  }
  const auto time = parse_time(cells[time_]);
  const auto prompt = parse_number<uint32_t>(cells[prompt_]);
  const auto output = parse_number<uint32_t>(cells[output_]);
  if (!time) return fail(ErrorCode::kCorruptData, where + "bad TIMESTAMP '" + cells[time_] + "'");
  if (!prompt || *prompt > kMaxTraceTokens)
    return fail(ErrorCode::kCorruptData, where + "bad ContextTokens '" + cells[prompt_] + "'");
  if (!output || *output > kMaxTraceTokens)
    return fail(ErrorCode::kCorruptData, where + "bad GeneratedTokens '" + cells[output_] + "'");
  Row row{.is_request = true, .request = {}};
  row.request.at_seconds = *time;
  row.request.prompt_tokens = *prompt;
  row.request.output_tokens = *output;
  return row;
}

}  // namespace tandem::bench

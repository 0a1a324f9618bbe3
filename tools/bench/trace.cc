#include "tools/bench/trace.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>

namespace tandem::bench {
namespace {

constexpr uint32_t kMaxTokens = 16'000'000;  // of one request: beyond any model, a corrupt file

std::string place(const std::string& name, size_t line) {
  return name + ":" + std::to_string(line) + ": ";
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

// "2023-11-16 18:15:46.6805900" to seconds.
std::optional<double> parse_timestamp(const std::string& text) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, read = 0;
  double second = 0;
  if (std::sscanf(text.c_str(), "%4d-%2d-%2d %2d:%2d:%lf%n", &year, &month, &day, &hour, &minute,
                  &second, &read) != 6 ||
      read != static_cast<int>(text.size()) || month < 1 || month > 12 || day < 1 || day > 31) {
    return std::nullopt;
  }
  return static_cast<double>(days_from_civil(year, month, day)) * 86400.0 + hour * 3600.0 +
         minute * 60.0 + second;
}

Result<TraceRequest> parse_csv_row(const std::string& row, const std::string& where) {
  std::vector<std::string> cells;
  std::stringstream stream(row);
  for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
  if (cells.size() != 3) {
    return fail(ErrorCode::kCorruptData,
                where + "expected TIMESTAMP,ContextTokens,GeneratedTokens, found " +
                    std::to_string(cells.size()) + " columns");
  }
  const auto time = parse_timestamp(cells[0]);
  const auto prompt = parse_number<uint32_t>(cells[1]);
  const auto output = parse_number<uint32_t>(cells[2]);
  if (!time) return fail(ErrorCode::kCorruptData, where + "bad TIMESTAMP '" + cells[0] + "'");
  if (!prompt || *prompt > kMaxTokens)
    return fail(ErrorCode::kCorruptData, where + "bad ContextTokens '" + cells[1] + "'");
  if (!output || *output > kMaxTokens)
    return fail(ErrorCode::kCorruptData, where + "bad GeneratedTokens '" + cells[2] + "'");
  return TraceRequest{*time, *prompt, *output, {}};
}

Result<double> json_number(const boost::json::object& object, std::string_view key,
                           const std::string& where) {
  const boost::json::value* value = object.if_contains(key);
  if (!value || !value->is_number()) {
    return fail(ErrorCode::kCorruptData,
                where + "field '" + std::string(key) + "' is missing or not a number");
  }
  const double number = value->to_number<double>();
  if (!(number >= 0) || number > 1e15) {
    return fail(ErrorCode::kCorruptData,
                where + "field '" + std::string(key) + "' is out of range");
  }
  return number;
}

Result<TraceRequest> parse_json_row(const std::string& row, const std::string& where) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(row, error);
  if (error || !value.is_object())
    return fail(ErrorCode::kCorruptData, where + "not a JSON object: " + error.message());
  const boost::json::object& object = value.get_object();
  TANDEM_ASSIGN(const double milliseconds, json_number(object, "timestamp", where));
  TANDEM_ASSIGN(const double prompt, json_number(object, "input_length", where));
  TANDEM_ASSIGN(const double output, json_number(object, "output_length", where));
  if (prompt > kMaxTokens || output > kMaxTokens)
    return fail(ErrorCode::kCorruptData, where + "more than 16 million tokens in one request");
  TraceRequest request{
      milliseconds / 1000.0, static_cast<uint32_t>(prompt), static_cast<uint32_t>(output), {}};
  if (const boost::json::value* ids = object.if_contains("hash_ids")) {
    if (!ids->is_array())
      return fail(ErrorCode::kCorruptData, where + "field 'hash_ids' is not an array");
    for (const boost::json::value& id : ids->get_array()) {
      boost::system::error_code number_error;
      const auto number = id.is_number() ? id.to_number<uint64_t>(number_error) : uint64_t{0};
      if (!id.is_number() || number_error)
        return fail(ErrorCode::kCorruptData, where + "field 'hash_ids' holds a non-number");
      request.hash_ids.push_back(number);
    }
  }
  return request;
}

uint32_t scale_tokens(uint32_t tokens, double factor, uint32_t limit) {
  const double scaled = std::max(1.0, std::round(static_cast<double>(tokens) * factor));
  const auto result = static_cast<uint32_t>(std::min(scaled, static_cast<double>(kMaxTokens)));
  return limit ? std::min(result, limit) : result;
}

}  // namespace

Result<std::vector<TraceRequest>> parse_trace(std::string_view text, const std::string& name) {
  std::vector<TraceRequest> trace;
  std::istringstream stream{std::string(text)};
  size_t line = 0;
  for (std::string row; std::getline(stream, row);) {
    ++line;
    while (!row.empty() && (row.back() == '\r' || row.back() == ' ')) row.pop_back();
    if (row.empty() || row.starts_with("TIMESTAMP")) continue;
    const std::string where = place(name, line);
    TANDEM_ASSIGN(TraceRequest request,
                  row.front() == '{' ? parse_json_row(row, where) : parse_csv_row(row, where));
    trace.push_back(std::move(request));
  }
  if (trace.empty()) return fail(ErrorCode::kCorruptData, name + ": no request in this trace");
  std::stable_sort(trace.begin(), trace.end(), [](const TraceRequest& a, const TraceRequest& b) {
    return a.at_seconds < b.at_seconds;
  });
  const double start = trace.front().at_seconds;
  for (TraceRequest& request : trace) request.at_seconds -= start;
  return trace;
}

Result<std::vector<TraceRequest>> read_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(ErrorCode::kIo, "cannot read trace file " + path, "--trace");
  std::stringstream text;
  text << file.rdbuf();
  return parse_trace(text.str(), path);
}

std::vector<TraceRequest> scale_trace(std::vector<TraceRequest> trace, const TraceScale& scale) {
  if (scale.limit && trace.size() > scale.limit) trace.resize(scale.limit);
  for (TraceRequest& request : trace) {
    request.at_seconds *= scale.time;
    request.prompt_tokens =
        scale_tokens(request.prompt_tokens, scale.length, scale.max_prompt_tokens);
    request.output_tokens =
        scale_tokens(request.output_tokens, scale.length, scale.max_output_tokens);
  }
  return trace;
}

std::vector<TraceRequest> poisson_load(double rate, size_t requests, uint32_t prompt_tokens,
                                       uint32_t output_tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> gap(rate);
  std::vector<TraceRequest> load;
  double at = 0;
  for (size_t i = 0; i < requests; ++i) {
    load.push_back({at, prompt_tokens, output_tokens, {}});
    at += gap(random);
  }
  return load;
}

}  // namespace tandem::bench

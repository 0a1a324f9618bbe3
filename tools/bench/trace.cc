#include "tools/bench/trace.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>

#include "tools/bench/trace_csv.h"

namespace tandem::bench {
namespace {

// Longer than any recording, and short enough for every clock once --time-scale has stretched it.
constexpr double kMaxSpanSeconds = 10 * 366 * 86400.0;
constexpr double kMaxDueSeconds = 100 * 366 * 86400.0;
constexpr uint32_t kBailianBlockTokens = 16;

std::string place(const std::string& name, size_t line) {
  return name + ":" + std::to_string(line) + ": ";
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

Result<TraceRequest> parse_json_row(std::string_view row, const std::string& where) {
  boost::system::error_code error;
  const boost::json::value value = boost::json::parse(row, error);
  if (error || !value.is_object())
    return fail(ErrorCode::kCorruptData, where + "not a JSON object: " + error.message());
  const boost::json::object& object = value.get_object();
  TANDEM_ASSIGN(const double timestamp, json_number(object, "timestamp", where));
  TANDEM_ASSIGN(const double prompt, json_number(object, "input_length", where));
  TANDEM_ASSIGN(const double output, json_number(object, "output_length", where));
  if (prompt > kMaxTraceTokens || output > kMaxTraceTokens)
    return fail(ErrorCode::kCorruptData, where + "more than 16 million tokens in one request");
  TraceRequest request{
      timestamp / 1000.0, static_cast<uint32_t>(prompt), static_cast<uint32_t>(output), {}};
  if (object.contains("chat_id")) {
    request.at_seconds = timestamp;
    request.hash_block_tokens = kBailianBlockTokens;
  }
  const boost::json::value* ids = object.if_contains("hash_ids");
  if (ids && !ids->is_null()) {
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
  const auto result = static_cast<uint32_t>(std::min(scaled, static_cast<double>(kMaxTraceTokens)));
  return limit ? std::min(result, limit) : result;
}

// What the file is when it is not text that we can read; empty: it may be.
std::string_view not_text(std::string_view text) {
  for (const std::string_view magic : {"\x1f\x8b", "\x28\xb5\x2f\xfd", "PK\x03\x04", "BZh",
                                       "\xfd"
                                       "7zXZ"}) {
    if (text.starts_with(magic)) return "this file is compressed: unpack it first";
  }
  if (text.find('\0') != std::string_view::npos) return "this file is not UTF-8 text";
  return {};
}

Status align(std::vector<TraceRequest>& trace, const std::string& name) {
  std::stable_sort(trace.begin(), trace.end(), [](const TraceRequest& a, const TraceRequest& b) {
    return a.at_seconds < b.at_seconds;
  });
  const double start = trace.front().at_seconds;
  for (TraceRequest& request : trace) request.at_seconds -= start;
  if (trace.back().at_seconds > kMaxSpanSeconds) {
    return fail(ErrorCode::kCorruptData,
                name + ": more than ten years between the first request and the last");
  }
  return {};
}

}  // namespace

Result<std::vector<TraceRequest>> parse_trace(std::string_view text, const std::string& name) {
  if (const std::string_view what = not_text(text); !what.empty())
    return fail(ErrorCode::kCorruptData, name + ": " + std::string(what));
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // the mark some editors write
  std::vector<TraceRequest> trace;
  CsvTrace csv;
  std::optional<bool> is_json;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    row = row.substr(std::min(row.find_first_not_of(" \t\r"), row.size()));
    row = row.substr(0, row.find_last_not_of(" \t\r") + 1);
    if (row.empty()) continue;
    const std::string where = place(name, line);
    if (row.front() == '[')
      return fail(ErrorCode::kCorruptData, where + "a JSON array; expected one object a line");
    if (is_json.value_or(row.front() == '{') != (row.front() == '{'))
      return fail(ErrorCode::kCorruptData, where + "CSV and JSON lines in one file");
    is_json = row.front() == '{';
    if (*is_json) {
      TANDEM_ASSIGN(TraceRequest request, parse_json_row(row, where));
      trace.push_back(std::move(request));
      continue;
    }
    TANDEM_ASSIGN(CsvTrace::Row read, csv.read(row, where));
    if (read.is_request) trace.push_back(std::move(read.request));
  }
  if (trace.empty()) return fail(ErrorCode::kCorruptData, name + ": no request in this trace");
  TANDEM_TRY(align(trace, name));
  return trace;
}

Result<std::vector<TraceRequest>> read_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  if (!file || std::filesystem::is_directory(path, error))
    return fail(ErrorCode::kIo, "cannot read the trace " + path);
  std::stringstream text;
  text << file.rdbuf();
  return parse_trace(text.str(), path);
}

std::vector<TraceRequest> scale_trace(std::vector<TraceRequest> trace, const TraceScale& scale) {
  if (scale.limit && trace.size() > scale.limit) trace.resize(scale.limit);
  for (TraceRequest& request : trace) {
    request.at_seconds = std::min(request.at_seconds * scale.time, kMaxDueSeconds);
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

#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"
#include "tools/bench/trace.h"

namespace tandem::bench {

inline constexpr uint32_t kMaxTraceTokens =
    16'000'000;  // of one request: beyond any model, a corrupt file

// Reads the rows of a CSV trace one by one. Columns go by the names of the header, in any order and
// with any others between them; without a header they are time, prompt tokens, output tokens. A
// time is a date with or without offset from UTC ("2024-05-10 00:00:00.009930+00:00") or a number
// of seconds.
class CsvTrace {
 public:
  // Nothing to add for a header: `is_request` is false then. `where` begins the message of an
  // error.
  struct Row {
    bool is_request = false;
    TraceRequest request;
  };
  [[nodiscard]] Result<Row> read(std::string_view line, const std::string& where);

 private:
  [[nodiscard]] Status read_header(const std::vector<std::string>& cells, const std::string& where);

  size_t count_ = 3;
  size_t time_ = 0;
  size_t prompt_ = 1;
  size_t output_ = 2;
};

}  // namespace tandem::bench

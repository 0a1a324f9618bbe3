#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/log_level.h"
#include "common/base/result.h"

namespace tandem {

// A value of a log field. Text and lists are borrowed for the call.
class LogValue {
 public:
  LogValue(bool v) : value_(v) {}
  template <std::signed_integral T>
  LogValue(T v) : value_(static_cast<int64_t>(v)) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) LogValue(T v) : value_(static_cast<uint64_t>(v)) {}
  LogValue(double v) : value_(v) {}
  LogValue(float v) : value_(static_cast<double>(v)) {}
  LogValue(std::string_view v) : value_(v) {}
  LogValue(const char* v) : value_(std::string_view(v)) {}
  LogValue(const std::string& v) : value_(std::string_view(v)) {}
  LogValue(const std::vector<uint64_t>& v) : value_(std::span<const uint64_t>(v)) {}

  void append_to(std::string& out) const;

 private:
  std::variant<bool, int64_t, uint64_t, double, std::string_view, std::span<const uint64_t>> value_;
};

struct LogField {
  std::string_view key;
  LogValue value;
};
using LogFields = std::initializer_list<LogField>;

// Where lines go. Any thread. Owned by main(), outlives every Logger.
//
// A line is one write of at most kMaxLine bytes, so lines of several processes on one pipe do not
// mix. A reader that does not keep up costs lines, not time: a line that cannot be written within a
// few milliseconds is dropped and counted, and the next one that gets through says how many.
class LogSink {
 public:
  static constexpr size_t kMaxLine = 4096;  // PIPE_BUF: written whole or not at all

  // Appends to `path`, or writes to standard error when it is empty.
  [[nodiscard]] static Result<std::unique_ptr<LogSink>> open(const std::string& path,
                                                             const Clock& clock);
  // Whether open() would succeed, with its error if not. Creates nothing.
  [[nodiscard]] static Status check(const std::string& path);
  // Takes any descriptor: tests.
  LogSink(Fd fd, const Clock& clock);
  ~LogSink();

  [[nodiscard]] uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  friend class Logger;
  void write(std::string_view line) noexcept;

  Fd fd_;
  const Clock& clock_;
  std::mutex mutex_;
  std::atomic<uint64_t> dropped_{0};
  uint64_t unreported_ = 0;  // under mutex_
};

// Writes events as JSON lines:
//   {"time":"2026-01-31T12:00:00.123456Z","level":"info","event":"listening","role":"router",…}
// A cheap value: copy it, pass it by reference. Any thread. Never throws, never blocks for long.
// Long texts are cut so that a line always stays valid JSON. Never log prompts or keys.
class Logger {
 public:
  Logger(LogSink& sink, LogLevel level) : sink_(&sink), level_(level) {}

  // A logger whose lines carry further fields: log.with({{"role", "decode"}, {"node", name}}).
  [[nodiscard]] Logger with(LogFields fields) const;

  void debug(std::string_view event, LogFields fields = {}) const noexcept {
    log(LogLevel::kDebug, event, fields);
  }
  void info(std::string_view event, LogFields fields = {}) const noexcept {
    log(LogLevel::kInfo, event, fields);
  }
  void warning(std::string_view event, LogFields fields = {}) const noexcept {
    log(LogLevel::kWarning, event, fields);
  }
  void error(std::string_view event, LogFields fields = {}) const noexcept {
    log(LogLevel::kError, event, fields);
  }
  // Adds `error`, `error_code`, `param` and the C++ place of origin.
  void error(std::string_view event, const Error& error, LogFields fields = {}) const noexcept;
  void warning(std::string_view event, const Error& error, LogFields fields = {}) const noexcept;

  void log(LogLevel level, std::string_view event, LogFields fields) const noexcept;
  [[nodiscard]] bool enabled(LogLevel level) const { return level >= level_; }

 private:
  void log_error(LogLevel level, std::string_view event, const Error& error,
                 LogFields fields) const noexcept;

  LogSink* sink_;
  LogLevel level_;
  std::string context_;  // ready-made `,"key":value` pairs
};

}  // namespace tandem

#include "common/obs/log.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "common/base/check.h"
#include "common/base/json_text.h"
#include "common/base/utf8.h"

namespace tandem {
namespace {

constexpr int kMaxWaitMs = 5;      // for a slow reader, before a line is dropped
constexpr size_t kMaxText = 1024;  // of one value
constexpr std::string_view kTail = "\"cut\":true}\n";

void append_time(std::string& out, double unix_seconds) {
  const double whole = std::floor(unix_seconds);
  const auto seconds = static_cast<std::time_t>(whole);
  const int micros = static_cast<int>((unix_seconds - whole) * 1e6);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char buffer[48];
  const size_t length = std::strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%S", &parts);
  out.append(buffer, length);
  std::snprintf(buffer, sizeof buffer, ".%06dZ", micros);
  out += buffer;
}

// The longest beginning of at most `limit` bytes that does not end inside a character.
std::string_view cut(std::string_view text, size_t limit) {
  if (text.size() <= limit) return text;
  size_t end = limit;
  while (end > 0 && end > limit - 4 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80)
    --end;
  return text.substr(0, end);
}

void append_field(std::string& out, const LogField& field) {
  append_json_string(out, cut(field.key, kMaxText));
  out += ':';
  field.value.append_to(out);
}

void append_list(std::string& out, std::span<const uint64_t> list) {
  out += '[';
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(list[i]);
  }
  out += ']';
}

}  // namespace

void LogValue::append_to(std::string& out) const {
  if (const auto* flag = std::get_if<bool>(&value_)) {
    out += *flag ? "true" : "false";
  } else if (const auto* integer = std::get_if<int64_t>(&value_)) {
    out += std::to_string(*integer);
  } else if (const auto* natural = std::get_if<uint64_t>(&value_)) {
    out += std::to_string(*natural);
  } else if (const auto* number = std::get_if<double>(&value_)) {
    append_json_number(out, *number);
  } else if (const auto* text = std::get_if<std::string_view>(&value_)) {
    const std::string_view kept = cut(*text, kMaxText);
    append_json_string(out, kept);
    if (kept.size() < text->size()) out.insert(out.size() - 1, "…");
  } else if (const auto* list = std::get_if<std::span<const uint64_t>>(&value_)) {
    append_list(out, *list);
  }
}

namespace {

tl::unexpected<Error> cannot_write(const std::string& path, int reason) {
  return fail(ErrorCode::kConfig,
              "cannot write the log to " + (path.empty() ? "standard error" : path) + ": " +
                  std::strerror(reason) + "; name a file in a folder where this user may write",
              "log.file");
}

}  // namespace

Status LogSink::check(const std::string& path) {
  if (path.empty()) return {};
  // Not waiting for the reader of a pipe.
  const Fd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK));
  if (fd || errno == ENXIO) return {};
  if (errno != ENOENT) return cannot_write(path, errno);
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return {};
  return cannot_write(path, errno);
}

Result<std::unique_ptr<LogSink>> LogSink::open(const std::string& path, const Clock& clock) {
  const int fd = path.empty()
                     ? ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)
                     : ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  if (fd < 0) return cannot_write(path, errno);
  return std::make_unique<LogSink>(Fd(fd), clock);
}

LogSink::LogSink(Fd fd, const Clock& clock) : fd_(std::move(fd)), clock_(clock) {}

LogSink::~LogSink() = default;

void LogSink::write(std::string_view line) noexcept {
  std::lock_guard lock(mutex_);
  std::string extended;
  if (unreported_ > 0 && line.size() + 40 <= kMaxLine) {
    extended.assign(line.substr(0, line.size() - 2));
    extended += ",\"lines_dropped\":" + std::to_string(unreported_) + "}\n";
    line = extended;
  }
  pollfd ready{fd_.get(), POLLOUT, 0};
  const bool writable = ::poll(&ready, 1, kMaxWaitMs) == 1 && (ready.revents & POLLOUT) != 0;
  ssize_t written = -1;
  if (writable) {
    do {
      written = ::write(fd_.get(), line.data(), line.size());
    } while (written < 0 && errno == EINTR);
  }
  if (written == static_cast<ssize_t>(line.size())) {
    if (!extended.empty()) unreported_ = 0;
  } else {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    ++unreported_;
  }
}

Logger Logger::with(LogFields fields) const {
  Logger child = *this;
  for (const LogField& field : fields) {
    child.context_ += ',';
    append_field(child.context_, field);
  }
  return child;
}

void Logger::log(LogLevel level, std::string_view event, LogFields fields) const noexcept {
  if (!enabled(level)) return;
  try {
    std::string line;
    line.reserve(256);
    line += "{\"time\":\"";
    append_time(line, sink_->clock_.unix_seconds());
    line += "\",\"level\":\"";
    line += to_string(level);
    line += "\",\"event\":";
    append_json_string(line, cut(event, kMaxText));
    line += context_;
    for (const LogField& field : fields) {
      const size_t before = line.size();
      line += ',';
      append_field(line, field);
      if (line.size() + kTail.size() + 1 > LogSink::kMaxLine) {
        // Whole fields only: what does not fit is left out, and the line says so.
        line.resize(before);
        line += ',';
        line += kTail;
        sink_->write(line);
        return;
      }
    }
    line += "}\n";
    if (line.size() > LogSink::kMaxLine)
      return;  // a context of several KiB: nothing fits beside it
    sink_->write(line);
  } catch (...) {
    sink_->dropped_.fetch_add(1, std::memory_order_relaxed);  // out of memory
  }
}

void Logger::log_error(LogLevel level, std::string_view event, const Error& error,
                       LogFields fields) const noexcept {
  if (!enabled(level)) return;
  try {
    const std::string place =
        std::string(error.location.file_name()) + ":" + std::to_string(error.location.line());
    Logger child = with(fields);
    if (!error.param.empty()) child = child.with({{"param", error.param}});
    child.log(level, event,
              {{"error_code", error_traits(error.code).label},
               {"error", error.detail},
               {"origin", place}});
  } catch (...) {
    sink_->dropped_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Logger::error(std::string_view event, const Error& error, LogFields fields) const noexcept {
  log_error(LogLevel::kError, event, error, fields);
}

void Logger::warning(std::string_view event, const Error& error, LogFields fields) const noexcept {
  log_error(LogLevel::kWarning, event, error, fields);
}

}  // namespace tandem

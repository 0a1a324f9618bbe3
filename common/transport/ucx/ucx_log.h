#pragma once

#include <functional>
#include <string>

namespace tandem::transport {

// UCX prints its warnings and errors to standard output by itself, in a format of its own. As long
// as one of these lives, they go to `sink` instead, a line at a time, on whichever thread UCX is
// at work; one that repeats the line before it is left out. What UCX_LOG_LEVEL asks for beyond
// warnings is printed as ever. UCX has one log for the whole process: with several of these, the
// newest gets everything.
class UcxLog {
 public:
  using Sink = std::function<void(const std::string& line)>;
  explicit UcxLog(Sink sink);
  ~UcxLog();  // no call of `sink` follows
  UcxLog(const UcxLog&) = delete;
  UcxLog& operator=(const UcxLog&) = delete;

 private:
  Sink sink_;
};

}  // namespace tandem::transport

#include "common/transport/ucx/ucx_log.h"

#include <ucs/debug/log_def.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

namespace tandem::transport {
namespace {

// UCX's handlers get no context of their own.
struct Registry {
  std::recursive_mutex mutex;  // a sink may make UCX log again
  std::vector<UcxLog::Sink*> sinks;
  std::string last;
};
Registry& registry() {
  static Registry one;
  return one;
}

__attribute__((format(printf, 6, 0))) ucs_log_func_rc_t handle(const char*, unsigned, const char*,
                                                               ucs_log_level_t level,
                                                               const ucs_log_component_config_t*,
                                                               const char* format,
                                                               va_list arguments) {
  if (level > UCS_LOG_LEVEL_WARN) return UCS_LOG_FUNC_RC_CONTINUE;
  std::array<char, 1024> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  std::string line(text.data());
  std::replace(line.begin(), line.end(), '\n', ' ');
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.sinks.empty()) return UCS_LOG_FUNC_RC_CONTINUE;
  if (line != all.last) {
    all.last = line;
    (*all.sinks.back())("UCX: " + line);
  }
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

UcxLog::UcxLog(Sink sink) : sink_(std::move(sink)) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (all.sinks.empty()) ucs_log_push_handler(handle);
  all.sinks.push_back(&sink_);
}

UcxLog::~UcxLog() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase(all.sinks, &sink_);
  // Handlers come off as from a stack: another library may have put its own on top meanwhile, and
  // ours lets everything through when there is no sink. So it stays.
}

}  // namespace tandem::transport

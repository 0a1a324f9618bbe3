#include "router/http/text_worker.h"

#include <pthread.h>

namespace tandem::router {

namespace {
constexpr Duration kWait = std::chrono::seconds(1);  // close() ends it at once
}

TextWorker::TextWorker() : thread_([this](const std::stop_token& stop) { loop(stop); }) {
  ::pthread_setname_np(thread_.native_handle(), "text");
}

TextWorker::~TextWorker() {
  thread_.request_stop();
  queue_.close();
}

void TextWorker::loop(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    if (auto work = queue_.pop(kWait)) (*work)();
  }
}

}  // namespace tandem::router

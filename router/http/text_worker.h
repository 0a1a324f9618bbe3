#pragma once

#include <functional>
#include <thread>

#include "common/base/bounded_queue.h"

namespace tandem::router {

// Tokenizing a megabyte takes 50 ms to a second. Bodies that long are worked on here, one after
// the other, so that the HTTP threads go on streaming to everybody else.
class TextWorker {
 public:
  // Bodies from here on, in bytes: 4 to 50 ms of an HTTP thread otherwise.
  static constexpr size_t kLongBody = 64u << 10;
  static constexpr size_t kCapacity = 16;  // waiting; each holds its body

  TextWorker();
  ~TextWorker();  // ends the work in progress, drops what waits
  TextWorker(const TextWorker&) = delete;
  TextWorker& operator=(const TextWorker&) = delete;

  // Any thread. False: as much as kCapacity waits already.
  [[nodiscard]] bool run(std::function<void()> work) { return queue_.try_push(std::move(work)); }

 private:
  void loop(const std::stop_token& stop);

  BoundedQueue<std::function<void()>> queue_{kCapacity};
  std::jthread thread_;
};

}  // namespace tandem::router

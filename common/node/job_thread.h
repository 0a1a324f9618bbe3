#pragma once

#include <pthread.h>

#include <cstddef>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/bounded_queue.h"
#include "common/base/clock.h"

namespace tandem::node {

// A thread that works through jobs in the order they came. start() and stop() belong to one owner
// thread; submit() and stopped() may be called on any.
template <typename Job>
class JobThread {
 public:
  explicit JobThread(size_t capacity) : jobs_(capacity) {}
  ~JobThread() { stop(); }
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  // `body` is the whole life of the thread: it takes its jobs with next(). `name` has at most 15
  // characters and is a literal.
  template <typename Body>
  void start(const char* name, Body body) {
    thread_ = std::thread([name, body = std::move(body)]() mutable {
      pthread_setname_np(pthread_self(), name);
      body();
    });
  }
  // Drops what is queued and joins; what runs ends first. Idempotent.
  void stop() {
    jobs_.close();
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] bool stopped() const { return jobs_.closed(); }

  // False when the queue is full or the thread stops.
  [[nodiscard]] bool submit(Job job) { return jobs_.try_push(std::move(job)); }

  // On the thread itself: waits for the next job; empty once stop() was called.
  [[nodiscard]] std::optional<Job> next() {
    while (!jobs_.closed()) {
      if (auto job = jobs_.pop(kIdleWait)) return job;
    }
    return std::nullopt;
  }

 private:
  // stop() wakes the thread; this only bounds every wait.
  static constexpr Duration kIdleWait = std::chrono::seconds(1);

  BoundedQueue<Job> jobs_;
  std::thread thread_;
};

}  // namespace tandem::node

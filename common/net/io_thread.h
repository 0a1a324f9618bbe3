#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"

namespace boost::asio {
class io_context;
}

namespace tandem {

// Owns one event loop and the thread that runs it. Everything that is bound to the loop (timers,
// ControlServer, ControlClient, …) runs on that one thread and needs no locks.
//
// Lifetime: objects bound to the loop are destroyed either on its thread or after stop().
class IoThread {
 public:
  // A timer; cancelled when destroyed, which must happen on the loop's thread or after stop().
  class Timer {
   public:
    virtual ~Timer() = default;
  };

  // `name` shows in debuggers and top (15 characters).
  explicit IoThread(std::string name);
  ~IoThread();  // stop()
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  void start();
  // Lets the running function end, drops what is queued, joins. Idempotent; not from the loop
  // itself.
  void stop();

  // Runs `work` on the loop's thread, later even when called from it. Any thread. Work that is
  // posted after stop() is dropped.
  void post(std::function<void()> work);

  // On the loop's thread (or before start()).
  [[nodiscard]] std::unique_ptr<Timer> every(Duration period, std::function<void()> work);
  [[nodiscard]] std::unique_ptr<Timer> after(Duration delay, std::function<void()> work);

  [[nodiscard]] bool on_thread() const;
  [[nodiscard]] boost::asio::io_context& context();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem

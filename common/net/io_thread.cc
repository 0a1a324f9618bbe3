#include "common/net/io_thread.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <thread>

#include "common/base/check.h"

namespace tandem {
namespace asio = boost::asio;

struct IoThread::Impl {
  std::string name;
  asio::io_context context{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> guard;
  std::thread thread;
  std::atomic<std::thread::id> id{};
};

namespace {

// The handler of the wait keeps the state alive; the owner's end empties `work`, so nothing runs
// after a cancel even if the wait had completed already.
struct TimerState : std::enable_shared_from_this<TimerState> {
  TimerState(asio::io_context& context, Duration p, bool r, std::function<void()> w)
      : timer(context), period(p), repeat(r), work(std::move(w)) {}

  void arm() {
    timer.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (error || !self->work) return;
      if (self->repeat) {
        // From the last due time, so that the rhythm holds; a loop that was busy for longer than a
        // period does not catch up with a burst.
        self->timer.expires_at(
            std::max(self->timer.expiry() + self->period, asio::steady_timer::clock_type::now()));
        self->arm();
        const auto run = self->work;  // may destroy the timer
        run();
      } else {
        const auto run = std::move(self->work);
        self->work = nullptr;
        run();
      }
    });
  }

  asio::steady_timer timer;
  const Duration period;
  const bool repeat;
  std::function<void()> work;
};

class LoopTimer final : public IoThread::Timer {
 public:
  LoopTimer(asio::io_context& context, Duration delay, bool repeat, std::function<void()> work)
      : state_(std::make_shared<TimerState>(context, delay, repeat, std::move(work))) {
    state_->timer.expires_after(delay);
    state_->arm();
  }
  ~LoopTimer() override {
    state_->work = nullptr;
    state_->timer.cancel();
  }

 private:
  std::shared_ptr<TimerState> state_;
};

}  // namespace

IoThread::IoThread(std::string name) : impl_(std::make_unique<Impl>()) {
  impl_->name = std::move(name);
}

IoThread::~IoThread() { stop(); }

void IoThread::start() {
  TANDEM_CHECK(!impl_->thread.joinable(), "an IoThread is started once");
  impl_->guard.emplace(impl_->context.get_executor());
  impl_->thread = std::thread([impl = impl_.get()] {
    impl->id = std::this_thread::get_id();
    pthread_setname_np(pthread_self(), impl->name.substr(0, 15).c_str());
    impl->context.run();
  });
}

void IoThread::stop() {
  TANDEM_CHECK(!on_thread(), "an IoThread cannot stop itself: it would wait for its own end");
  impl_->guard.reset();
  impl_->context.stop();
  if (impl_->thread.joinable()) impl_->thread.join();
  impl_->id = std::thread::id{};
}

void IoThread::post(std::function<void()> work) { asio::post(impl_->context, std::move(work)); }

std::unique_ptr<IoThread::Timer> IoThread::every(Duration period, std::function<void()> work) {
  return std::make_unique<LoopTimer>(impl_->context, period, true, std::move(work));
}

std::unique_ptr<IoThread::Timer> IoThread::after(Duration delay, std::function<void()> work) {
  return std::make_unique<LoopTimer>(impl_->context, delay, false, std::move(work));
}

bool IoThread::on_thread() const { return impl_->id.load() == std::this_thread::get_id(); }

boost::asio::io_context& IoThread::context() { return impl_->context; }

}  // namespace tandem

#include "common/node/device_thread.h"

#include <atomic>
#include <exception>
#include <future>
#include <string>
#include <utility>

#include "common/node/job_thread.h"

namespace tandem::node {
namespace {

// Engines report errors as values; what still throws (allocation) must not end the process.
Result<std::vector<engine::SequenceOutput>> run_guarded(const StepFunction& step,
                                                        const StepJob& job) {
  try {
    return step(job.sequences, job.hook);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kResourceExhausted, "out of memory in an engine step");
  } catch (const std::exception& e) {
    return fail(ErrorCode::kInternal, std::string("engine step threw: ") + e.what());
  }
}

Result<StepFunction> make_guarded(const DeviceThread::Factory& factory) {
  try {
    return factory();
  } catch (const std::exception& e) {
    return fail(ErrorCode::kInternal, std::string("engine start threw: ") + e.what());
  }
}

}  // namespace

struct DeviceThread::State {
  State(const Clock& c, Sink s) : clock(c), sink(std::move(s)) {}

  void run(const Factory& factory, std::promise<Status> started) {
    auto step = make_guarded(factory);
    if (!step) {
      started.set_value(fail(std::move(step).error()));
      return;
    }
    started.set_value({});
    while (auto job = jobs.next()) {
      StepResult result{.id = job->id, .outputs = {}, .started = clock.now(), .finished = {}};
      result.outputs = run_guarded(*step, *job);
      result.finished = clock.now();
      open.store(false, std::memory_order_release);
      sink(std::move(result));
    }
  }

  const Clock& clock;
  Sink sink;
  std::atomic<bool> open{false};
  JobThread<StepJob> jobs{1};  // last: its thread uses the others
};

DeviceThread::DeviceThread(const Clock& clock, Sink sink)
    : state_(std::make_unique<State>(clock, std::move(sink))) {}

DeviceThread::~DeviceThread() { stop(); }

Status DeviceThread::start(Factory factory) {
  std::promise<Status> started;
  auto outcome = started.get_future();
  state_->jobs.start("tandem-device", [state = state_.get(), factory = std::move(factory),
                                       started = std::move(started)]() mutable {
    state->run(factory, std::move(started));
  });
  auto status = outcome.get();
  if (!status) stop();
  return status;
}

void DeviceThread::stop() { state_->jobs.stop(); }

bool DeviceThread::submit(StepJob job) {
  if (state_->open.exchange(true, std::memory_order_acq_rel)) return false;
  if (state_->jobs.submit(std::move(job))) return true;
  state_->open.store(false, std::memory_order_release);
  return false;
}

}  // namespace tandem::node

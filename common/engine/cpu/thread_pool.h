#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/result.h"

namespace tandem::engine {

// Whether a compute thread can be pinned to that CPU, with the error of ThreadPool::create if not.
// The calling thread stays where it was.
[[nodiscard]] Status can_pin(int cpu);

// Whether that many compute threads can be started where `limit` threads may run (0: any number),
// with the error of ThreadPool::create if not.
[[nodiscard]] Status check_thread_count(uint32_t threads, uint64_t limit);

// The threads that compute one engine's steps. The device thread leads: run() hands a job to the
// workers, works itself and returns when all who joined are done. Workers serve nothing else.
//
// A job is claimed piece by piece, so it needs nobody in particular: a worker that is late, because
// another process has its CPU, finds the job closed and is not waited for. Workers wait for the
// next job by spinning for about the length of an operation, then by yielding, then asleep in the
// kernel; a box with more runnable threads than CPUs therefore loses little to waiting.
//
// run() is for one thread at a time. Destruction stops the workers; not during run().
class ThreadPool {
 public:
  // `threads` counts the leader. `cpus` is empty, or has one CPU per thread (the leader's first).
  [[nodiscard]] static Result<std::unique_ptr<ThreadPool>> create(uint32_t threads,
                                                                  std::vector<int> cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] uint32_t threads() const { return static_cast<uint32_t>(workers_.size()) + 1; }

  // Calls body(thread) on this thread (index 0) and on every worker that comes before this thread's
  // call has returned. When it returns anywhere, all pieces of the job must have been claimed.
  template <typename Body>
  void run(Body&& body) {
    if (workers_.empty()) {
      pin_leader();
      body(0U);
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    run_job([](void* context, uint32_t thread) { (*static_cast<Plain*>(context))(thread); },
            const_cast<std::remove_const_t<Plain>*>(&body));
  }

  // run(), split over `count` pieces claimed in order, in shrinking runs of at least `grain`:
  // body(thread, begin, end). Nothing is handed out when one run would take it all.
  template <typename Body>
  void split(int64_t count, int64_t grain, Body&& body) {
    if (count <= grain || workers_.empty()) {
      pin_leader();
      if (count > 0) body(0U, int64_t{0}, count);
      return;
    }
    std::atomic<int64_t> next{0};
    run([&](uint32_t thread) {
      int64_t begin = 0;
      int64_t end = 0;
      while (claim(next, count, grain, begin, end)) body(thread, begin, end);
    });
  }

  // run(), each thread on its own stretch of the pieces, front to back in runs of `grain`, and then
  // on what others have left of theirs: memory is read in long streams. Same body as split().
  template <typename Body>
  void stream(int64_t count, int64_t grain, Body&& body) {
    if (count <= grain || workers_.empty()) {
      pin_leader();
      if (count > 0) body(0U, int64_t{0}, count);
      return;
    }
    open_stretches(count);
    run([&](uint32_t thread) {
      int64_t begin = 0;
      int64_t end = 0;
      for (uint32_t i = 0; i < threads(); ++i)  // own stretch first, then the neighbours'
        while (claim_stretch((thread + i) % threads(), grain, begin, end)) body(thread, begin, end);
    });
  }
  // First piece of a thread's stretch when stream() splits `count` pieces.
  [[nodiscard]] int64_t stretch_begin(uint32_t thread, int64_t count) const {
    return count * thread / threads();
  }

 private:
  using Job = void (*)(void* context, uint32_t thread);
  struct alignas(64) Stretch {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  explicit ThreadPool(std::vector<int> cpus);
  void run_job(Job job, void* context);
  void work(uint32_t thread);
  // Returns once `ticket_` differs from `seen`.
  void await(uint32_t seen);
  void pin_leader();
  // Takes the next run of pieces: a share of what is left, so that the last runs are short and all
  // threads end together.
  [[nodiscard]] bool claim(std::atomic<int64_t>& next, int64_t count, int64_t grain, int64_t& begin,
                           int64_t& end) const;
  void open_stretches(int64_t count);
  [[nodiscard]] bool claim_stretch(uint32_t owner, int64_t grain, int64_t& begin, int64_t& end);

  const std::vector<int> cpus_;
  std::vector<std::thread> workers_;
  std::unique_ptr<Stretch[]> stretches_;  // per thread, of the job that stream() runs
  std::thread::id leader_;

  // Number of jobs posted; workers wait for it to change, in the last resort with a futex on it.
  alignas(64) std::atomic<uint32_t> ticket_{0};
  std::atomic<uint32_t> sleepers_{0};
  // Whether the posted job may still be joined (upper bit), and by how many it was.
  alignas(64) std::atomic<uint64_t> door_{0};
  alignas(64) std::atomic<uint32_t> left_{0};
  std::atomic<bool> stopping_{false};
  Job job_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace tandem::engine

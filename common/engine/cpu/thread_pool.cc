#include "common/engine/cpu/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <system_error>

#include "common/base/machine_limits.h"

namespace tandem::engine {
namespace {

// Operations of a step follow each other within microseconds: 4000 turns are some 100 us.
constexpr int kSpins = 4000;
// Between steps a scheduler and a sampler run for some 100 us. A yield costs about 0.5 us when
// nobody wants the CPU, and gives it away when somebody does.
constexpr int kYields = 300;
// A door holds the job's ticket, an open bit and the count of workers who joined.
constexpr uint64_t kOpen = uint64_t{1} << 31;

// A short rest between two looks at a shared word. No PAUSE: hypervisors trap loops of it, and a
// turn of the loop then takes microseconds (decode on a virtual Sapphire Rapids: 0.74 of the read
// stream with PAUSE, 0.81 without).
void rest() {
  for (int i = 0; i < 24; ++i)
    __asm__ volatile("nop\n nop\n nop\n nop\n nop\n nop\n nop\n nop" ::: "memory");
}

// "0-3, 8": the CPUs of a set.
std::string spell(const cpu_set_t& set) {
  std::string text;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    size_t last = cpu;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(cpu);
    if (last > cpu) text += "-" + std::to_string(last);
    cpu = last;
  }
  return text;
}

Status no_such_cpu(int cpu, int reason) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  (void)sched_getaffinity(0, sizeof allowed, &allowed);
  return fail(ErrorCode::kConfig,
              "no compute thread can be pinned to CPU " + std::to_string(cpu) + " (" +
                  std::strerror(reason) + "); this process may use " + spell(allowed),
              "cpus");
}

Status pin(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  const int rc = pthread_setaffinity_np(thread, sizeof set, &set);
  return rc == 0 ? Status() : no_such_cpu(cpu, rc);
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation | FUTEX_PRIVATE_FLAG,
                 value, nullptr, nullptr, 0);
}

}  // namespace

Status can_pin(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return no_such_cpu(cpu, EINVAL);
  cpu_set_t before;
  CPU_ZERO(&before);
  (void)pthread_getaffinity_np(pthread_self(), sizeof before, &before);
  const Status pinned = pin(pthread_self(), cpu);
  if (pinned) (void)pthread_setaffinity_np(pthread_self(), sizeof before, &before);
  return pinned;
}

Status check_thread_count(uint32_t threads, uint64_t limit) {
  if (threads == 0) return fail(ErrorCode::kConfig, "threads must be at least 1", "threads");
  if (limit == 0 || threads < limit) return {};
  return fail(
      ErrorCode::kConfig,
      std::to_string(threads) + " compute threads are wanted where " + std::to_string(limit) +
          " threads may run in all (pids.max of the control group, or ulimit -u); use fewer "
          "threads, or raise that limit",
      "threads");
}

ThreadPool::ThreadPool(std::vector<int> cpus) : cpus_(std::move(cpus)) {}

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(uint32_t threads, std::vector<int> cpus) {
  TANDEM_TRY(check_thread_count(threads, machine_threads()));
  if (!cpus.empty() && cpus.size() != threads)
    return fail(ErrorCode::kConfig,
                std::to_string(cpus.size()) + " CPUs are listed for " + std::to_string(threads) +
                    " threads: list one per thread",
                "cpus");
  // The leader is pinned when it first runs a job, too late to refuse.
  for (const int cpu : cpus) TANDEM_TRY(can_pin(cpu));
  std::unique_ptr<ThreadPool> pool(new ThreadPool(std::move(cpus)));
  pool->stretches_ = std::make_unique<Stretch[]>(threads);
  for (uint32_t i = 1; i < threads; ++i) {
    try {
      pool->workers_.emplace_back([p = pool.get(), i] { p->work(i); });
    } catch (const std::system_error& e) {
      return fail(ErrorCode::kResourceExhausted,
                  "cannot start compute thread " + std::to_string(i) + ": " + e.what());
    }
    if (!pool->cpus_.empty())
      TANDEM_TRY(pin(pool->workers_.back().native_handle(), pool->cpus_[i]));
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  ticket_.fetch_add(1);
  futex(ticket_, FUTEX_WAKE, INT_MAX);
  for (std::thread& worker : workers_) worker.join();
}

// The leader is whoever runs jobs; create() has tried its CPU: an error here means that the CPU has
// been taken offline since, and the job must run either way.
void ThreadPool::pin_leader() {
  const std::thread::id self = std::this_thread::get_id();
  if (self == leader_) return;
  leader_ = self;
  if (!cpus_.empty()) (void)pin(pthread_self(), cpus_[0]);
}

void ThreadPool::run_job(Job job, void* context) {
  pin_leader();
  job_ = job;
  context_ = context;
  left_.store(0, std::memory_order_relaxed);
  const uint32_t ticket = ticket_.load(std::memory_order_relaxed) + 1;
  door_.store((static_cast<uint64_t>(ticket) << 32) | kOpen, std::memory_order_release);
  ticket_.store(ticket);  // sequentially consistent with `sleepers_`: see await()
  if (sleepers_.load() != 0) futex(ticket_, FUTEX_WAKE, INT_MAX);

  job(context, 0);

  const uint64_t closed = door_.fetch_and(~kOpen, std::memory_order_acq_rel);
  const auto joined = static_cast<uint32_t>(closed & (kOpen - 1));
  for (int spins = 0; left_.load(std::memory_order_acquire) != joined; ++spins) {
    if (spins < kSpins)
      rest();
    else
      sched_yield();
  }
}

void ThreadPool::work(uint32_t thread) {
  uint32_t seen = 0;
  while (true) {
    await(seen);
    if (stopping_.load()) return;
    uint64_t door = door_.load(std::memory_order_acquire);
    seen = static_cast<uint32_t>(door >> 32);
    bool joined = false;
    while ((door & kOpen) != 0 && !joined)
      joined = door_.compare_exchange_weak(door, door + 1, std::memory_order_acq_rel);
    if (!joined) continue;
    // The job is the one whose door was entered: it cannot be replaced while this worker is inside.
    seen = static_cast<uint32_t>(door >> 32);
    job_(context_, thread);
    left_.fetch_add(1, std::memory_order_release);
  }
}

void ThreadPool::await(uint32_t seen) {
  for (int i = 0; i < kSpins; ++i) {
    if (ticket_.load(std::memory_order_acquire) != seen) return;
    rest();
  }
  for (int i = 0; i < kYields; ++i) {
    if (ticket_.load(std::memory_order_acquire) != seen) return;
    sched_yield();
  }
  // Either the leader sees the sleeper and wakes it, or the kernel sees the new ticket.
  sleepers_.fetch_add(1);
  while (ticket_.load() == seen) futex(ticket_, FUTEX_WAIT, seen);
  sleepers_.fetch_sub(1);
}

bool ThreadPool::claim(std::atomic<int64_t>& next, int64_t count, int64_t grain, int64_t& begin,
                       int64_t& end) const {
  int64_t at = next.load(std::memory_order_relaxed);
  while (at < count) {
    const int64_t share = (count - at) / (2 * static_cast<int64_t>(threads()));
    const int64_t take = std::min(count - at, std::max(grain, share));
    if (next.compare_exchange_weak(at, at + take, std::memory_order_relaxed)) {
      begin = at;
      end = at + take;
      return true;
    }
  }
  return false;
}

// Before run(), which publishes it to the workers.
void ThreadPool::open_stretches(int64_t count) {
  for (uint32_t t = 0; t < threads(); ++t) {
    stretches_[t].next.store(stretch_begin(t, count), std::memory_order_relaxed);
    stretches_[t].end = stretch_begin(t + 1, count);
  }
}

bool ThreadPool::claim_stretch(uint32_t owner, int64_t grain, int64_t& begin, int64_t& end) {
  Stretch& s = stretches_[owner];
  if (s.next.load(std::memory_order_relaxed) >= s.end) return false;
  begin = s.next.fetch_add(grain, std::memory_order_relaxed);
  end = std::min(begin + grain, s.end);
  return begin < end;
}

}  // namespace tandem::engine

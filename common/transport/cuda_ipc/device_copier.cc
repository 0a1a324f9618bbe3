#include "common/transport/cuda_ipc/device_copier.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/cuda/range.h"
#include "kernels/cuda/page_copy.h"

namespace tandem::transport {
namespace {

// 2 MiB of checksums cover 16 GiB of pieces under way.
constexpr size_t kRing = 256u << 10;
constexpr size_t kEvents = 64;
// Looks at a batch's flag until its event is asked, which knows of errors.
constexpr uint32_t kLooks = 256;
constexpr size_t kSmallBatches = 3;
// After an error: what is in the streams takes milliseconds, unless the device hangs.
constexpr Duration kSettleTime = std::chrono::seconds(2);
constexpr Duration kSettleNap = std::chrono::microseconds(200);

}  // namespace

Result<std::unique_ptr<DeviceCopier>> DeviceCopier::create(const Options& options) {
  const cuda::DeviceScope scope(options.device);
  auto copier = std::unique_ptr<DeviceCopier>(new DeviceCopier(options));
  for (uint32_t i = 0; i < std::max(options.lanes, 1u); ++i) {
    TANDEM_ASSIGN(cuda::Stream lane, cuda::Stream::create(cuda::StreamPriority::kHigh));
    copier->lanes_.push_back(std::move(lane));
  }
  for (uint32_t i = 0; i < std::max(options.engines, 1u); ++i) {
    Engine engine;
    TANDEM_ASSIGN(engine.stream, cuda::Stream::create(cuda::StreamPriority::kHigh));
    TANDEM_ASSIGN(engine.copied, cuda::Event::create());
    copier->engines_.push_back(std::move(engine));
  }
  TANDEM_ASSIGN(copier->sums_, cuda::PinnedBuffer::create(kRing * sizeof(uint64_t)));
  TANDEM_ASSIGN(copier->flags_, cuda::StreamFlags::create(kEvents));
  for (size_t i = 0; i < kEvents; ++i) {
    TANDEM_ASSIGN(cuda::Event event, cuda::Event::create());
    copier->spare_events_.push_back(std::move(event));
  }
  return copier;
}

Result<CopierPair> DeviceCopier::create_pair(const Options& options) {
  CopierPair pair;
  TANDEM_ASSIGN(pair.sender, create(options));
  TANDEM_ASSIGN(pair.receiver, create(options));
  return pair;
}

DeviceCopier::~DeviceCopier() {
  const cuda::DeviceScope scope(options_.device);
  // Errors were said by whoever saw them first.
  for (const Engine& engine : engines_) {
    if (!engine.stream.synchronize()) return;
  }
  for (const cuda::Stream& lane : lanes_) {
    if (!lane.synchronize()) return;
  }
}

PageCopier::Ticket DeviceCopier::add(std::span<const Piece> pieces) {
  std::lock_guard lock(mutex_);
  waiting_.push_back({++last_, {pieces.begin(), pieces.end()}});
  for (const Piece& p : pieces) waiting_bytes_ += p.bytes;
  return last_;
}

void DeviceCopier::flush() {
  std::lock_guard lock(mutex_);
  if (waiting_.empty() && batches_.empty()) return;
  const cuda::DeviceScope scope(options_.device);
  collect(false);
  while (may_start() && flush_batch()) {
  }
}

bool DeviceCopier::may_start() const {
  const bool small = waiting_bytes_ < options_.least_batch_bytes;
  return batches_.size() <
         (small ? std::min<size_t>(options_.ahead, kSmallBatches) : size_t{options_.ahead});
}

size_t DeviceCopier::next_batch_bytes() const {
  const size_t least = options_.least_batch_bytes;
  if (waiting_bytes_ < least + least / 2) return waiting_bytes_;  // leaves no crumbs
  return std::clamp(waiting_bytes_ / 2, least, options_.batch_bytes);
}

size_t DeviceCopier::sums_of(const Waiting& work) const {
  size_t sums = 0;
  for (const Piece& p : work.pieces) sums += cuda::page_copy_items(p.bytes);
  return sums;
}

// A part of what waits becomes a batch: one event, and as few launches as it takes.
bool DeviceCopier::flush_batch() {
  if (!status_ || waiting_.empty() || spare_events_.empty()) return false;
  std::vector<Waiting> work;
  size_t room = kRing - (sums_head_ - sums_tail_);
  size_t bytes = 0;
  const size_t most = next_batch_bytes();
  while (!waiting_.empty() && bytes < most) {
    // Twice: a piece's sums do not cross the ring's end, so some entries may be passed over.
    const size_t sums = 2 * sums_of(waiting_.front());
    if (sums > kRing) {
      fail_all(fail(ErrorCode::kInternal, "a frame is too large for the copier's checksums"));
      return false;
    }
    if (sums > room) break;  // goes with a later flush
    room -= sums;
    for (const Piece& p : waiting_.front().pieces) bytes += p.bytes;
    work.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  if (work.empty()) return false;
  waiting_bytes_ -= bytes;
  Batch batch;
  batch.sums = sums_head_;
  batch.done = std::move(spare_events_.back());
  spare_events_.pop_back();
  Status launched = start(work, bytes, batch);
  if (!launched) {
    fail_all(std::move(launched));
    return false;
  }
  batch.sums = sums_head_ - batch.sums;
  batches_.push_back(std::move(batch));
  return true;
}

// What the engine does not copy is copied beside it; the lane then waits for the engine.
Status DeviceCopier::start(std::vector<Waiting>& work, size_t bytes, Batch& batch) {
  const cuda::Range range("KV copy");
  const cuda::Stream& lane = lanes_[next_lane_++ % lanes_.size()];
  Engine& engine = engines_[next_engine_ % engines_.size()];
  if (bytes >= options_.kernel_bytes) TANDEM_TRY(copy_long_runs(work, engine));
  reserve(work, batch);
  TANDEM_TRY(launch(work, batch, true, lane));
  if (engine.used) {
    engine.used = false;
    ++next_engine_;
    TANDEM_TRY(engine.copied.record(engine.stream));
    TANDEM_TRY(lane.wait_for(engine.copied));
  }
  TANDEM_TRY(launch(work, batch, false, lane));
  batch.number = ++last_batch_;
  TANDEM_TRY(flags_.write(lane, batch.number % kEvents, batch.number));
  return batch.done.record(lane);
}

// Pieces that lie one behind the other at both ends are one run. Long ones are copied here and only
// checked by the kernel, at their new place.
Status DeviceCopier::copy_long_runs(std::vector<Waiting>& work, Engine& engine) {
  std::vector<Piece*> run;
  size_t run_bytes = 0;
  const auto end_run = [&]() -> Status {
    if (!run.empty() && run_bytes >= options_.engine_bytes) {
      TANDEM_CUDA_TRY(cudaMemcpyAsync(run.front()->to, run.front()->from, run_bytes,
                                      cudaMemcpyDefault, engine.stream.get()));
      engine.used = true;
      for (Piece* p : run) *p = {p->to, nullptr, p->bytes};
    }
    run.clear();
    run_bytes = 0;
    return {};
  };
  for (Waiting& w : work) {
    for (Piece& p : w.pieces) {
      if (p.to == nullptr) continue;
      const bool next = !run.empty() && run.front()->from + run_bytes == p.from &&
                        run.front()->to + run_bytes == p.to;
      if (!next) TANDEM_TRY(end_run());
      run.push_back(&p);
      run_bytes += p.bytes;
    }
  }
  return end_run();
}

// Entries of the ring that do not cross its end.
size_t DeviceCopier::reserve_sums(uint32_t items) {
  const size_t left = kRing - sums_head_ % kRing;
  if (items > left) sums_head_ += left;
  const size_t at = sums_head_ % kRing;
  sums_head_ += items;
  return at;
}

void DeviceCopier::reserve(const std::vector<Waiting>& work, Batch& batch) {
  for (const Waiting& w : work) {
    std::vector<Sums> sums;
    for (const Piece& p : w.pieces) {
      const uint32_t items = cuda::page_copy_items(p.bytes);
      const size_t at = reserve_sums(items);
      const bool follows = !sums.empty() && sums.back().items == items &&
                           sums.back().at + size_t{sums.back().count} * items == at;
      if (follows) {
        ++sums.back().count;
      } else {
        sums.push_back({at, items, 1});
      }
    }
    batch.tickets.emplace_back(w.ticket, std::move(sums));
  }
}

// The pieces that are to be copied, or the others, in as few launches as it takes.
Status DeviceCopier::launch(const std::vector<Waiting>& work, const Batch& batch, bool copies,
                            const cuda::Stream& lane) {
  cuda::PageCopy task;
  const auto go = [&]() -> Status {
    const uint32_t blocks = copies ? options_.blocks : options_.check_blocks;
    TANDEM_CUDA_TRY(cuda::page_copy(task, blocks, lane.get()));
    task.count = 0;
    return {};
  };
  for (size_t w = 0; w < work.size(); ++w) {
    auto run = batch.tickets[w].second.begin();
    uint32_t of_run = 0;
    for (const Piece& p : work[w].pieces) {
      const uint32_t items = run->items;
      uint64_t* const to = sums_.as<uint64_t>() + run->at + size_t{of_run} * items;
      if (++of_run == run->count) {
        ++run;
        of_run = 0;
      }
      if ((p.to != nullptr) != copies) continue;
      const bool same = p.bytes == task.bytes && to == task.sums + size_t{task.count} * items;
      if (task.count > 0 && (!same || task.count == cuda::kMostPageCopyPieces)) TANDEM_TRY(go());
      if (task.count == 0) {
        task.bytes = p.bytes;
        task.sums = to;
      }
      task.pieces[task.count++] = {p.from, p.to};
    }
  }
  return task.count > 0 ? go() : Status();
}

Result<bool> DeviceCopier::is_done(const Batch& batch) {
  if (flags_.usable()) {
    const bool shows = flags_.read(batch.number % kEvents) == batch.number;
    if (!shows && ++looks_ < kLooks) return false;
    looks_ = 0;
    if (shows) return true;
  }
  return batch.done.done();
}

void DeviceCopier::collect(bool wait) {
  while (!batches_.empty() && status_) {
    Batch& batch = batches_.front();
    if (wait) {
      if (Status done = batch.done.synchronize(); !done) return fail_all(std::move(done));
    } else {
      const Result<bool> done = is_done(batch);
      if (!done) return fail_all(fail(done.error()));
      if (!*done) return;
    }
    for (const auto& [ticket, pieces] : batch.tickets) {
      std::vector<uint64_t>& result = results_[ticket];
      size_t count = 0;
      for (const Sums& run : pieces) count += run.count;
      result.reserve(count);
      for (const Sums& run : pieces) {
        const uint64_t* parts = sums_.as<uint64_t>() + run.at;
        for (uint32_t i = 0; i < run.count; ++i, parts += run.items) {
          result.push_back(std::accumulate(parts, parts + run.items, uint64_t{0}));
        }
      }
    }
    sums_tail_ += batch.sums;
    spare_events_.push_back(std::move(batch.done));
    batches_.pop_front();
  }
}

// Waits until no stream writes any more, or its error or the time says that no waiting helps.
void DeviceCopier::settle() const {
  const SteadyClock clock;
  const TimePoint give_up = clock.now() + kSettleTime;
  const auto wait_for = [&](const cuda::Stream& stream) {
    while (cudaStreamQuery(stream.get()) == cudaErrorNotReady && clock.now() < give_up) {
      std::this_thread::sleep_for(kSettleNap);
    }
  };
  for (const Engine& engine : engines_) wait_for(engine.stream);
  for (const cuda::Stream& lane : lanes_) wait_for(lane);
}

void DeviceCopier::fail_all(Status status) {
  // From here on drain() waits for nothing, and pages are handed back: a part of a batch may have
  // been enqueued before the rest of it failed.
  settle();
  status_ = std::move(status);
  // Whatever it was, every later transfer would fail as well: only a new process helps.
  status_.error().code = ErrorCode::kDeviceLost;
  waiting_.clear();
  waiting_bytes_ = 0;
  batches_.clear();
}

Result<std::optional<std::vector<uint64_t>>> DeviceCopier::taken(Ticket ticket) {
  std::lock_guard lock(mutex_);
  auto it = results_.find(ticket);
  if (it == results_.end()) {
    const cuda::DeviceScope scope(options_.device);
    collect(false);
    it = results_.find(ticket);
  }
  if (!status_) return fail(status_.error());
  if (it == results_.end()) return std::nullopt;
  std::optional<std::vector<uint64_t>> sums = std::move(it->second);
  results_.erase(it);
  return sums;
}

bool DeviceCopier::busy() const {
  std::lock_guard lock(mutex_);
  return !waiting_.empty() || !batches_.empty();
}

void DeviceCopier::drain() {
  std::lock_guard lock(mutex_);
  const cuda::DeviceScope scope(options_.device);
  while (status_ && (!waiting_.empty() || !batches_.empty())) {
    while (flush_batch()) {
    }
    collect(true);
  }
}

}  // namespace tandem::transport

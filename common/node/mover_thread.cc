#include "common/node/mover_thread.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/node/job_thread.h"
#include "common/node/page_copy.h"

namespace tandem::node {
namespace {

constexpr size_t kQueue = 16;
// One batch. Long enough to use the link well, short enough (80 us at 50 GB/s) that nobody who
// shares it notices.
constexpr size_t kStagingBytes = size_t{4} << 20;

}  // namespace

struct MoverThread::State {
  State(const Clock& c, Sink s) : clock(c), sink(std::move(s)) {}

  Status copy(const MoveJob& job, uint64_t& bytes) {
    try {
      PageCopy pages(job, staging->bytes());
      for (;;) {
        bytes = pages.bytes();
        if (jobs.stopped() || job.cancelled->load(std::memory_order_relaxed)) {
          return fail(ErrorCode::kCancelled, "the move was cancelled");
        }
        TANDEM_ASSIGN(const bool more, pages.next());
        if (!more) return {};
      }
    } catch (const std::bad_alloc&) {
      return fail(ErrorCode::kResourceExhausted, "out of memory while moving KV pages");
    }
  }

  void run() {
    while (auto job = jobs.next()) {
      MoveResult result{
          .id = job->id, .outcome = {}, .bytes = 0, .started = clock.now(), .finished = {}};
      result.outcome = copy(*job, result.bytes);
      result.finished = clock.now();
      sink(std::move(result));
    }
  }

  const Clock& clock;
  Sink sink;
  std::unique_ptr<kv::PageMemory::HostBuffer> staging;
  JobThread<MoveJob> jobs{kQueue};  // last: its thread uses the others
};

MoverThread::MoverThread(const Clock& clock, Sink sink)
    : state_(std::make_unique<State>(clock, std::move(sink))) {}

MoverThread::~MoverThread() { stop(); }

Status MoverThread::start(kv::PageMemory& device, size_t least_staging) {
  TANDEM_ASSIGN(state_->staging, device.host_buffer(std::max(kStagingBytes, least_staging)));
  state_->jobs.start("tandem-mover", [state = state_.get()] { state->run(); });
  return {};
}

void MoverThread::stop() { state_->jobs.stop(); }

bool MoverThread::submit(MoveJob job) { return state_->jobs.submit(std::move(job)); }

}  // namespace tandem::node

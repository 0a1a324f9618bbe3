#pragma once

namespace tandem::cuda {

// An NVTX range of the calling thread: what profilers show what is enqueued meanwhile as. Costs a
// few nanoseconds when none is attached. `name` is a literal.
class Range {
 public:
  explicit Range(const char* name);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace tandem::cuda

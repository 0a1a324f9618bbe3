#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/base/unique_handle.h"
#include "common/cuda/cuda_status.h"

// Owners of streams and events. Both belong to the device that was current when they were made.
namespace tandem::cuda {

enum class StreamPriority : uint8_t {
  kLow,   // prefill: yields to kHigh between thread blocks
  kHigh,  // decode, and copies that others wait for
};

class Event;

// A stream that does not synchronize with the legacy default stream. Destroying it lets work that
// is already enqueued finish; buffers of that work must outlive it, so synchronize first.
class Stream {
 public:
  [[nodiscard]] static Result<Stream> create(StreamPriority priority = StreamPriority::kHigh);
  Stream() = default;

  [[nodiscard]] cudaStream_t get() const { return handle_.get(); }
  // Blocks the calling thread until everything enqueued so far is done. Surfaces its errors.
  [[nodiscard]] Status synchronize() const;
  // What is enqueued from now on begins after what the event's last record() stands for. The event
  // may be recorded anew at once.
  [[nodiscard]] Status wait_for(const Event& event) const;

 private:
  struct Traits {
    using Handle = cudaStream_t;
    static Handle invalid() { return nullptr; }
    static void close(Handle stream) noexcept {
      report_failure(cudaStreamDestroy(stream), "cudaStreamDestroy");
    }
  };
  UniqueHandle<Traits> handle_;
};

class Event {
 public:
  enum class Kind : uint8_t {
    kOrder,   // for waiting; cheapest
    kTiming,  // also milliseconds_since()
  };
  [[nodiscard]] static Result<Event> create(Kind kind = Kind::kOrder);
  Event() = default;

  [[nodiscard]] cudaEvent_t get() const { return handle_.get(); }
  [[nodiscard]] Status record(const Stream& stream) const;
  // Whether everything before the last record() is done. Surfaces its errors. Does not block.
  [[nodiscard]] Result<bool> done() const;
  [[nodiscard]] Status synchronize() const;  // blocks the calling thread
  // Both of kind kTiming and done.
  [[nodiscard]] Result<float> milliseconds_since(const Event& start) const;

 private:
  struct Traits {
    using Handle = cudaEvent_t;
    static Handle invalid() { return nullptr; }
    static void close(Handle event) noexcept {
      report_failure(cudaEventDestroy(event), "cudaEventDestroy");
    }
  };
  UniqueHandle<Traits> handle_;
};

}  // namespace tandem::cuda

#pragma once

#include <vector>

#include "common/base/result.h"
#include "common/cuda/range.h"
#include "common/cuda/stream.h"
#include "common/engine/cuda/step_profile.h"

namespace tandem::engine {

// Marks the stages of a step: as NVTX ranges, which profilers show (a few nanoseconds when none is
// attached), and with a StepProfile also by events on the stream. Device thread only.
class Stages {
 public:
  // `profile` may be null. Both outlive this.
  Stages(const cuda::Stream& stream, StepProfile* profile) : stream_(stream), profile_(profile) {}

  // What is enqueued while it lives belongs to the stage. `name` is a literal.
  class Scope {
   public:
    Scope(Stages& stages, const char* name, double bytes);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const cuda::Range range_;
    Stages& stages_;
  };

  [[nodiscard]] bool profiling() const { return profile_ != nullptr; }
  // After the stream was waited for: adds the step's stages to the profile. An error of an event
  // that was enqueued before shows here.
  [[nodiscard]] Status end_step();

 private:
  struct Mark {
    const char* name = nullptr;
    double bytes = 0;
    cuda::Event begin;
    cuda::Event end;
  };
  void begin(const char* name, double bytes);
  void end();

  const cuda::Stream& stream_;
  StepProfile* profile_;
  std::vector<Mark> marks_;  // kept from step to step
  size_t used_ = 0;
  Status status_;
};

}  // namespace tandem::engine

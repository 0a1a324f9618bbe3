// What a profiler sees: the stages of a step as NVTX ranges.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "common/cuda/range.h"
#include "common/engine/cuda/stages.h"

namespace tandem::engine {
namespace {

TEST(NvtxRanges, StagesAndWhatLiesInThemReachAProfiler) {
  // Before the first range of this process, which looks for a profiler.
  ASSERT_EQ(::setenv("NVTX_INJECTION64_PATH", TANDEM_NVTX_RECORDER, 1), 0);
  void* const library = ::dlopen(TANDEM_NVTX_RECORDER, RTLD_NOW);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto recorded = reinterpret_cast<const char* (*)()>(::dlsym(library, "nvtx_recorded"));
  ASSERT_NE(recorded, nullptr);
  cuda::Stream stream;
  Stages stages(stream, nullptr);
  {
    const Stages::Scope step(stages, "attention", 0);
    const cuda::Range inner("KV copy");
  }
  const Stages::Scope next(stages, "down + residual", 0);
  EXPECT_EQ(std::string(recorded()), "attention {KV copy {}}down + residual {");
}

}  // namespace
}  // namespace tandem::engine

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "common/cuda/device.h"

// Drivers that a program must refuse, played by a library of the tests' own. CUDA asks its driver
// once a process: each case is one.
namespace tandem::cuda {
namespace {

struct Driver {
  const char* version;
  const char* init;  // what cuInit() returns
};

// Ends the process with the error's code as exit code and its text on standard error.
[[noreturn]] void open_with(const Driver& driver) {
  setenv("FAKE_DRIVER_VERSION", driver.version, 1);
  setenv("FAKE_DRIVER_INIT", driver.init, 1);
  if (dlopen(TANDEM_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::_Exit(101);
  }
  const auto device = Device::open(0);
  if (device) std::_Exit(100);
  std::fprintf(stderr, "%s\n", device.error().detail.c_str());
  std::_Exit(static_cast<int>(device.error().code));
}

int code(ErrorCode c) { return static_cast<int>(c); }

TEST(FakeDriverDeathTest, TooOldADriverNamesBothVersions) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(open_with({"12020", "0"}), testing::ExitedWithCode(code(ErrorCode::kUnsupported)),
              "wants an NVIDIA driver for CUDA 13.0, the one here speaks CUDA 12.2: update the "
              "driver, or use device: cpu");
}

TEST(FakeDriverDeathTest, ADriverWithoutACardSaysWhereToLook) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(open_with({"13000", "100"}), testing::ExitedWithCode(code(ErrorCode::kUnavailable)),
              "no NVIDIA card is visible: check nvidia-smi, CUDA_VISIBLE_DEVICES and, in a "
              "container, --gpus");
}

TEST(FakeDriverDeathTest, AFabricThatIsNotUpIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(open_with({"13000", "802"}), testing::ExitedWithCode(code(ErrorCode::kUnavailable)),
              "nvidia-fabricmanager");
}

TEST(FakeDriverDeathTest, ADriverThatDoesNotMatchItsKernelModuleIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(open_with({"13000", "803"}), testing::ExitedWithCode(code(ErrorCode::kUnsupported)),
              "update the driver");
}

}  // namespace
}  // namespace tandem::cuda

#include "common/transport/cuda_ipc/device_copier.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/fake_driver/fake_cuda.h"

namespace tandem::transport::testing {
namespace {

// The engine's copy is enqueued, then the kernel that was to check it does not start.
class FailingCopier : public ::testing::Test {
 protected:
  FailingCopier() {
    FakeCuda::reset();
    auto copier = DeviceCopier::create({.kernel_bytes = 0});
    if (copier) copier_ = std::move(*copier);
  }
  void copy() {
    ASSERT_TRUE(copier_);
    FakeCuda::fail_kernels(cudaErrorInvalidConfiguration);
    const Piece piece{from_.data(), to_.data(), from_.size()};
    ticket_ = copier_->add({&piece, 1});
    copier_->flush();
  }
  std::vector<std::byte> from_ =
      std::vector<std::byte>(size_t{2} << 20, std::byte{7});  // takes the copy engine
  std::vector<std::byte> to_ = std::vector<std::byte>(from_.size());
  std::unique_ptr<DeviceCopier> copier_;
  PageCopier::Ticket ticket_ = 0;
};

TEST_F(FailingCopier, WritesNothingOnceDrained) {
  copy();
  copier_->drain();
  EXPECT_TRUE(from_ == to_);  // what was under way is not under way any more
  EXPECT_FALSE(copier_->busy());
  const auto taken = copier_->taken(ticket_);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, ErrorCode::kDeviceLost);
}

TEST_F(FailingCopier, WaitsForNoDeviceThatHangs) {
  FakeCuda::freeze_streams();
  copy();
  copier_->drain();
  EXPECT_TRUE(std::ranges::all_of(to_, [](std::byte b) { return b == std::byte{0}; }));
  const auto taken = copier_->taken(ticket_);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, ErrorCode::kDeviceLost);
}

}  // namespace
}  // namespace tandem::transport::testing

#include "common/node/loopback.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/transport/inproc/inproc.h"

namespace tandem::node {
namespace {

class LoopbackSelfTest : public ::testing::TestWithParam<kv::KvFormat>,
                         public transport::TransportEvents {
 protected:
  void SetUp() override {
    auto store = KvStore::create(
        {.pool = {.layout = {.layers = 3, .kv_heads = 2, .head_dim = 64, .format = GetParam()},
                  .blocks = 4,
                  .tails = GetParam() == kv::KvFormat::kInt4 ? 4U : 0U,
                  .memory = {.huge_pages = false}}});
    ASSERT_TRUE(store) << store.error().to_string();
    kv_ = std::move(*store);
    transport_ = hub_.create("self", {.self = Generation{7}, .clock = clock_, .events = *this});
    test_ = std::make_unique<LoopbackTest>(*kv_, *transport_, Generation{7});
  }
  void on_received(TransferId, std::string commit, const transport::ReceiveStats&) override {
    test_->on_received(commit);
  }
  void on_receive_failed(TransferId, Error error) override { test_->on_failed(std::move(error)); }
  void on_sent(TransferId, const transport::SendStats&) override { test_->on_sent(); }
  void on_send_failed(TransferId, Error error) override { test_->on_failed(std::move(error)); }

  SteadyClock clock_;
  transport::InprocHub hub_{clock_};
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<LoopbackTest> test_;
};

TEST_P(LoopbackSelfTest, PassesAndGivesItsBlocksBack) {
  transport::InprocPump pump(hub_);
  const auto status = test_->run(std::chrono::seconds(60));
  EXPECT_TRUE(status) << status.error().to_string();
  EXPECT_EQ(kv_->usage().free, 4U);
}

TEST_P(LoopbackSelfTest, ADamagedFrameFailsItInPlainWords) {
  hub_.set_fault_hook([](const transport::FrameInfo& frame) {
    transport::FrameFault fault;
    fault.corrupt_payload = frame.payload_bytes > 64;
    return fault;
  });
  transport::InprocPump pump(hub_);
  const auto status = test_->run(std::chrono::seconds(2));
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().detail.find("KV loopback self-test"), std::string::npos);
  EXPECT_EQ(kv_->usage().free, 4U);
}

TEST_P(LoopbackSelfTest, ASilentTransportFailsItInTime) {
  hub_.set_fault_hook([](const transport::FrameInfo&) {
    transport::FrameFault fault;
    fault.drop = true;
    return fault;
  });
  transport::InprocPump pump(hub_);
  EXPECT_FALSE(test_->run(std::chrono::milliseconds(100)));
}

INSTANTIATE_TEST_SUITE_P(Formats, LoopbackSelfTest,
                         ::testing::Values(kv::KvFormat::kF32, kv::KvFormat::kBf16,
                                           kv::KvFormat::kInt8, kv::KvFormat::kK8V4,
                                           kv::KvFormat::kInt4),
                         [](const auto& p) { return std::string(kv::to_string(p.param)); });

}  // namespace
}  // namespace tandem::node

// The transport as a node opens it, with the UCX of this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "common/node/node_transport.h"
#include "common/transport/ucx/worker.h"
#include "tests/unit/transport/far_memory.h"

namespace tandem::node {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class OpenTransport : public ::testing::Test {
 protected:
  // As a node on a card opens it.
  std::unique_ptr<transport::Transport> open(const std::string& ucx_tls) {
    TransportSettings settings;
    settings.ucx_tls = ucx_tls;
    auto transport = open_transport(
        {}, settings, 0U, {},
        {.self = Generation{1}, .clock = clock_, .events = events_, .memory = &memory_},
        [this](const std::string& text) {
          const std::lock_guard lock(mutex_);
          warnings_.push_back(text);
        });
    EXPECT_TRUE(transport) << transport.error().detail;
    return transport ? std::move(*transport) : nullptr;
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

  SteadyClock clock_;
  transport::testing::Recorder events_;
  transport::testing::FarMemory memory_{1 << 20};
  std::mutex mutex_;
  std::vector<std::string> warnings_;
};

// The UCX of distributions. KV still moves, slower, and that is said.
TEST_F(OpenTransport, AUcxThatKnowsNoCudaMovesACardsPagesThroughTheHostAndSaysSo) {
  const auto transport = open("cuda_copy,cuda_ipc,tcp,self");
  ASSERT_TRUE(transport);
  EXPECT_EQ(transport->name(), "ucx");
  EXPECT_THAT(transport->detail(), HasSubstr("device memory through pinned host buffers"));
  EXPECT_THAT(warnings(), Contains(HasSubstr("transport.ucx_tls names CUDA, but KV goes through "
                                             "pinned host buffers: ")));
}

TEST_F(OpenTransport, WhereNobodyAskedForCudaNothingIsMissing) {
  const auto transport = open("tcp,self");
  ASSERT_TRUE(transport);
  EXPECT_THAT(transport->detail(), HasSubstr("device memory through pinned host buffers"));
  EXPECT_THAT(warnings(), Not(Contains(HasSubstr("names CUDA"))));
}

TEST_F(OpenTransport, TheHandshakeNamesTheVersionOfUcx) {
  const auto transport = open("tcp,self");
  ASSERT_TRUE(transport);
  const auto versions = library_versions(transport->name(), transport->detail(), {});
  ASSERT_EQ(versions.size(), 1U);
  EXPECT_EQ(versions.at("ucx"), transport::UcxWorker::version());
}

}  // namespace
}  // namespace tandem::node

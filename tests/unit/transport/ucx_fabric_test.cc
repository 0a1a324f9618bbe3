// UCX as the fabric of a direct transport, as it carries memory of a device; here with slots of
// host memory, which UCX sends in the same way.
#include "common/transport/ucx/ucx_fabric.h"
#include "tests/unit/transport/direct_backend.h"
#include "tests/unit/transport/host_fabric.h"

namespace tandem::transport::testing {
namespace {

constexpr const char* kTls = "posix,tcp,self";

struct UcxSlots {
  static std::unique_ptr<Fabric> make() {
    constexpr size_t kMessage = 256u << 10;
    constexpr size_t kSlots = 3 * kMessage;
    std::shared_ptr<std::byte> memory(new std::byte[2 * kSlots],
                                      std::default_delete<std::byte[]>());
    return create_ucx_fabric({.tls = kTls,
                              .cuda = false,
                              .copiers = {.sender = std::make_unique<HostCopier>(),
                                          .receiver = std::make_unique<HostCopier>()},
                              .memory = std::move(memory),
                              .frame_bytes = kMessage,
                              .slot_bytes = kSlots})
        .value();
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(UcxSlots, TransportSuite, DirectBackend<UcxSlots>);

TEST(UcxMemory, HostTransportsDoNotKnowCudaAndUnknownOnesAreRefused) {
  EXPECT_FALSE(ucx_knows_cuda(kTls).value());
  EXPECT_EQ(ucx_knows_cuda("no_such_transport").error().code, ErrorCode::kConfig);
}

// UCX unpacks addresses without checks: a damaged one must not reach it.
TEST(UcxHello, ADamagedWorkerAddressIsRefused) {
  const auto sender = UcxSlots::make();
  const auto receiver = UcxSlots::make();
  ASSERT_TRUE(sender->start());
  ASSERT_TRUE(receiver->start());
  const std::string own = sender->hello(true).value();
  const std::string peer = receiver->hello(false).value();
  const size_t address = peer.find("TUCX");
  ASSERT_NE(address, std::string::npos);
  for (size_t at = address; at < peer.size(); ++at) {
    std::string damaged = peer;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    const auto link = sender->open(true, own, damaged);
    ASSERT_FALSE(link) << "byte " << at - address;
    EXPECT_EQ(link.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_TRUE(sender->open(true, own, peer));
}

}  // namespace
}  // namespace tandem::transport::testing

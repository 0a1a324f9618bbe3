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
    constexpr size_t kSlot = 256u << 10;
    constexpr uint32_t kSlots = 3;
    std::shared_ptr<std::byte> memory(new std::byte[2 * kSlots * kSlot],
                                      std::default_delete<std::byte[]>());
    return create_ucx_fabric({.tls = kTls,
                              .cuda = false,
                              .copier = std::make_unique<HostCopier>(),
                              .memory = std::move(memory),
                              .slot_bytes = kSlot,
                              .slots = kSlots})
        .value();
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(UcxSlots, TransportSuite, DirectBackend<UcxSlots>);

TEST(UcxMemory, HostTransportsDoNotKnowCudaAndUnknownOnesAreRefused) {
  EXPECT_FALSE(ucx_knows_cuda(kTls).value());
  EXPECT_EQ(ucx_knows_cuda("no_such_transport").error().code, ErrorCode::kConfig);
}

}  // namespace
}  // namespace tandem::transport::testing

// cuda_ipc and nccl: the typed suite within one process, then two processes and what happens when
// one of them dies. This program is its own peer: --peer GENERATION KIND. The peer's GPU is 0, or
// TANDEM_PEER_GPU for a machine with several.
#include <cstring>
#include <random>

#include "common/transport/cuda_ipc/ipc_fabric.h"
#include "common/transport/direct/direct_transport.h"
#include "common/transport/nccl/nccl_fabric.h"
#include "kernels/cuda/page_copy.h"
#include "tests/gpu/card.h"
#include "tests/gpu/device_arena.h"
#include "tests/unit/transport/direct_backend.h"
#include "tests/unit/transport/peer.h"
#include "tests/unit/transport/two_process_test.h"

namespace tandem::transport::testing {
namespace {

constexpr size_t kArenaBytes = 512u << 20;
std::string program;  // argv[0]

DeviceArena& arena() {
  static auto* const memory = new DeviceArena(kArenaBytes);  // outlives the context on purpose
  return *memory;
}

std::unique_ptr<Fabric> make_fabric(uint32_t lanes, size_t engine_bytes) {
  auto fabric = create_ipc_fabric(
      {.copier = {.device = 0, .lanes = lanes, .kernel_bytes = 0, .engine_bytes = engine_bytes},
       .frame_bytes = 1u << 20,
       .memory = {arena().memory()}});
  EXPECT_TRUE(fabric) << fabric.error().to_string();
  return std::move(*fabric);
}

bool has_card() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// Every page by the kernel, and every run by the copy engine, in lanes beside each other.
struct Kernel {
  static std::unique_ptr<Fabric> make() { return make_fabric(1, SIZE_MAX); }
};
struct Engine {
  static std::unique_ptr<Fabric> make() { return make_fabric(3, 1); }
};
// Both ends in one process: ncclSend and ncclRecv of one rank to itself.
struct Nccl {
  static std::unique_ptr<Fabric> make() {
    (void)arena();
    auto fabric = create_nccl_fabric({.copier = DeviceCopier::Options::within(0),
                                      .frame_bytes = 1u << 20,
                                      .slot_bytes = 3u << 20});
    EXPECT_TRUE(fabric) << fabric.error().to_string();
    return std::move(*fabric);
  }
};

// The suite's fixture constructs transports, so arena and card must be there before it.
template <typename Make>
class IpcBackend : public DirectBackend<Make> {
 public:
  IpcBackend() {
    arena().reset();
    page_arena() = &arena();
  }
  ~IpcBackend() { page_arena() = nullptr; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(IpcKernel, TransportSuite, IpcBackend<Kernel>);
INSTANTIATE_TYPED_TEST_SUITE_P(IpcEngine, TransportSuite, IpcBackend<Engine>);
INSTANTIATE_TYPED_TEST_SUITE_P(NcclSelf, TransportSuite, IpcBackend<Nccl>);

// ---- the copy kernel against piece_checksum() ----
TEST(PageCopyKernel, CopiesAndChecksAnySizeAndAlignment) {
  arena().reset();
  auto copier = DeviceCopier::create({.device = 0, .engine_bytes = SIZE_MAX}).value();
  std::mt19937_64 random(1);
  const size_t sizes[] = {4, 8, 12, 16, 60, 256, 4096, 65536, 65540, 66000, 131088, 1u << 20};
  for (const size_t bytes : sizes) {
    for (const size_t shift : {size_t{0}, size_t{4}}) {
      std::vector<std::byte> host(3 * bytes + 64);
      for (std::byte& b : host) b = static_cast<std::byte>(random());
      std::byte* const from = arena().allocate(host.size());
      std::byte* const to = arena().allocate(host.size());
      arena().upload(from, host);
      ASSERT_EQ(cudaMemset(to, 0xCC, host.size()), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      std::vector<Piece> pieces;
      for (size_t i = 0; i < 3; ++i) {
        pieces.push_back(
            {from + shift + i * bytes, i == 1 ? nullptr : to + shift + i * bytes, bytes});
      }
      const auto ticket = copier->add(pieces);
      copier->drain();
      const auto sums = copier->taken(ticket).value();
      ASSERT_TRUE(sums);
      std::vector<std::byte> back(host.size());
      arena().download(back, to);
      for (size_t i = 0; i < 3; ++i) {
        const auto piece = std::span(host).subspan(shift + i * bytes, bytes);
        EXPECT_EQ((*sums)[i], piece_checksum(piece)) << bytes << " " << shift << " " << i;
        const auto landed = std::span(back).subspan(shift + i * bytes, bytes);
        const bool fresh =
            std::ranges::all_of(landed, [](std::byte b) { return b == std::byte{0xCC}; });
        EXPECT_TRUE(i == 1 ? fresh : std::ranges::equal(piece, landed)) << bytes;
      }
      EXPECT_EQ(back[0], shift == 0 ? host[0] : std::byte{0xCC});
      EXPECT_EQ(back[shift + 3 * bytes], std::byte{0xCC});
    }
  }
}

// Streams of kernels, and whether the end is waited for or looked for.
class DeviceCopierTest : public ::testing::TestWithParam<std::tuple<uint32_t, bool>> {};
INSTANTIATE_TEST_SUITE_P(Lanes, DeviceCopierTest,
                         ::testing::Combine(::testing::Values(1, 3), ::testing::Bool()));

TEST_P(DeviceCopierTest, ManyTicketsKeepTheirChecksumsApart) {
  arena().reset();
  const auto [lanes, drains] = GetParam();
  auto copier = DeviceCopier::create({.device = 0, .lanes = lanes}).value();
  std::mt19937_64 random(2);
  std::vector<std::byte> host(48u << 20);
  for (size_t i = 0; i < host.size(); i += 8) {
    const uint64_t word = random();
    std::memcpy(host.data() + i, &word, 8);
  }
  std::byte* const from = arena().allocate(host.size());
  std::byte* const to = arena().allocate(host.size());
  arena().upload(from, host);
  std::vector<std::pair<PageCopier::Ticket, std::pair<size_t, size_t>>> tickets;
  for (size_t at = 0; at < host.size();) {
    const size_t pieces = 1 + random() % 300;
    const size_t bytes = 16 * (1 + random() % 4096);
    if (at + pieces * bytes > host.size()) break;
    std::vector<Piece> work;
    for (size_t i = 0; i < pieces; ++i)
      work.push_back({from + at + i * bytes, to + at + i * bytes, bytes});
    tickets.push_back({copier->add(work), {at, bytes}});
    if (random() % 3 == 0) copier->flush();
    at += pieces * bytes;
  }
  const SteadyClock clock;
  const TimePoint give_up = clock.now() + seconds(20);
  while (!drains && copier->busy() && clock.now() < give_up) copier->flush();
  copier->drain();
  for (size_t t = 0; t < tickets.size(); ++t) {
    const auto& [ticket, where] = tickets[t];
    const auto sums = copier->taken(ticket).value();
    ASSERT_TRUE(sums);
    for (size_t i = 0; i < sums->size(); ++i) {
      ASSERT_EQ((*sums)[i], piece_checksum(std::span(host).subspan(where.first + i * where.second,
                                                                   where.second)));
    }
  }
  const size_t done = tickets.back().second.first;
  std::vector<std::byte> back(done);
  arena().download(back, to);
  EXPECT_TRUE(std::ranges::equal(back, std::span(host).first(done)));
}

// ---- two processes ----
int device_of_peer() {
  const char* text = std::getenv("TANDEM_PEER_GPU");
  return text == nullptr ? 0 : std::atoi(text);
}

Result<std::unique_ptr<Transport>> open_kind(const std::string& kind, int device,
                                             const TransportDeps& deps,
                                             std::function<void(const std::string&)> on_warning) {
  page_arena() = &arena();
  if (kind == "nccl") {
    TANDEM_ASSIGN(auto fabric, create_nccl_fabric({.copier = DeviceCopier::Options::within(device),
                                                   .allow_one_gpu = true}));
    return create_direct_transport(std::move(fabric), deps, std::move(on_warning));
  }
  IpcOptions ipc{.copier = {.device = device}, .memory = {arena().memory()}};
  const auto create_fabric = [&](const DirectWays& ways) {
    ipc.ways = ways;
    return create_ipc_fabric(ipc);
  };
  return create_two_way_transport(create_fabric, deps, on_warning);
}

class TwoGpuProcesses : public TwoProcessTest {
 protected:
  TwoGpuProcesses() {
    patience = seconds(10);
    arena().reset();
    self.transport = open_kind(GetParam(), 0, {Generation{1}, clock, self.events, {}}, {}).value();
  }
  ~TwoGpuProcesses() override { page_arena() = nullptr; }
  PeerProcess peer(uint64_t generation) {
    return PeerProcess(generation, {program, "--peer", std::to_string(generation), GetParam()});
  }
};

TEST_P(TwoGpuProcesses, PagesCrossInBothDirectionsAndTheLinkIsNamed) {
  PeerProcess other = peer(2);
  send_whole(TransferId{1}, other);
  Pages into(kProcessLayout, 8, 0);
  open_receive(TransferId{2}, Generation{2}, into);
  other.say(send_command(TransferId{2}, 8, "whole"));
  other.expect("sent 2");
  until([&] { return self.events.events(TransferId{2}) > 0; });
  ASSERT_TRUE(self.events.received(TransferId{2}));
  EXPECT_TRUE(into == Pages(kProcessLayout, 8, 0, 2));
  const bool one = device_of_peer() == 0 && std::string_view(GetParam()) == "cuda_ipc";
  EXPECT_TRUE(self.transport->detail().starts_with(std::string(GetParam()) + " "));
  EXPECT_TRUE(self.transport->detail().ends_with(one ? ": one GPU" : ": peer GPU"))
      << self.transport->detail();
}

TEST_P(TwoGpuProcesses, AKilledReceiverFailsItsTransfersWithinASecondAndNoOthers) {
  PeerProcess doomed = peer(2);
  PeerProcess other = peer(3);
  send_whole(TransferId{1}, doomed);
  doomed.say("receive 2 1 8 20000");
  doomed.expect("open");
  Pages from(kProcessLayout, 8, 0, 2);
  ASSERT_TRUE(open_send(TransferId{2}, doomed, 8));
  ASSERT_TRUE(post_layer(*self.transport, TransferId{2}, from, 0));
  doomed.kill(SIGKILL);
  const Duration took = until([&] { return self.events.events(TransferId{2}) > 0; });
  ASSERT_TRUE(self.events.send_failed(TransferId{2}));
  EXPECT_EQ(self.events.send_failed(TransferId{2})->code, ErrorCode::kTransport);
  EXPECT_LT(to_seconds(took), 1.0);
  send_whole(TransferId{3}, other);
}

// A receiver that dies while messages are under way, at several moments: no message that the device
// still waits to get rid of may outlast it by a second.
TEST_P(TwoGpuProcesses, APeerThatDiesInsideACollectiveIsAbortedWithinASecond) {
  PeerProcess other = peer(3);
  constexpr uint32_t kPages = 2000;
  for (uint64_t round = 0; round < 3; ++round) {
    arena().reset();
    const TransferId id{2 + round};
    PeerProcess doomed = peer(10 + round);
    send_whole(TransferId{100 + round}, doomed);
    doomed.say("receive " + std::to_string(id.value) + " 1 " + std::to_string(kPages) + " 60000");
    doomed.expect("open");
    Pages from(kProcessLayout, kPages, 0, id.value);
    ASSERT_TRUE(open_send(id, doomed, kPages, seconds(60)));
    const uint64_t before = self.transport->counters().frames_sent;
    for (uint32_t layer = 0; layer < kProcessLayout.layers; ++layer) {
      ASSERT_TRUE(post_layer(*self.transport, id, from, layer));
    }
    while (self.transport->counters().frames_sent == before) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(400 * round));
    const TimePoint died = clock.now();
    doomed.kill(SIGKILL);
    until([&] { return self.events.events(id) > 0; });
    ASSERT_TRUE(self.events.send_failed(id));
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_LT(to_seconds(clock.now() - died), 1.0);
  }
  send_whole(TransferId{200}, other);
}

// The receiver reads a pool whose owner dies under it, again and again, and lives.
TEST_P(TwoGpuProcesses, SendersKilledInMidTransferCostTheirTransfersOnly) {
  for (uint64_t round = 0; round < 4; ++round) {
    arena().reset();
    const TransferId id{10 + round};
    const kv::KvLayout& layout = kProcessLayout;
    Pages into(layout, 2000, 0);
    open_receive(id, Generation{20 + round}, into);
    PeerProcess doomed = peer(20 + round);
    const uint64_t before = self.transport->counters().frames_received;
    doomed.say(send_command(id, 2000, "half"));
    until([&] { return self.transport->counters().frames_received > before; });
    doomed.kill(SIGKILL);
    const Duration took = until([&] { return self.events.events(id) > 0; });
    EXPECT_TRUE(self.events.receive_failed(id));
    EXPECT_LT(to_seconds(took), 1.0);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  PeerProcess other = peer(3);
  send_whole(TransferId{30}, other);
}

TEST_P(TwoGpuProcesses, AFrozenReceiverEndsTheTransferByItsDeadline) {
  PeerProcess frozen = peer(2);
  send_whole(TransferId{1}, frozen);
  frozen.say("receive 2 1 200 20000");
  frozen.expect("open");
  frozen.kill(SIGSTOP);
  Pages from(kProcessLayout, 200, 0, 2);
  ASSERT_TRUE(open_send(TransferId{2}, frozen, 200, milliseconds(700)));
  for (uint32_t layer = 0; layer < kProcessLayout.layers; ++layer) {
    ASSERT_TRUE(post_layer(*self.transport, TransferId{2}, from, layer));
  }
  ASSERT_TRUE(self.transport->post_commit(TransferId{2}, "commit"));
  const Duration took = until([&] { return self.events.events(TransferId{2}) > 0; });
  EXPECT_EQ(self.events.send_failed(TransferId{2})->code, ErrorCode::kDeadlineExceeded);
  EXPECT_LT(to_seconds(took), 3.0);
  frozen.kill(SIGCONT);
  send_whole(TransferId{3}, frozen);
}

INSTANTIATE_TEST_SUITE_P(Kinds, TwoGpuProcesses, ::testing::Values("cuda_ipc", "nccl"),
                         [](const auto& kind) { return std::string(kind.param); });

using Card = cuda::CardTest;
TEST_F(Card, IsHere) {}

int run(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--peer") {
    // NCCL joins two processes on one GPU only if it takes them for two hosts.
    if (device_of_peer() == 0) setenv("NCCL_HOSTID", argv[2], 1);
    if (cudaSetDevice(device_of_peer()) != cudaSuccess) return 1;
    Peer peer(Generation{std::strtoull(argv[2], nullptr, 10)},
              [&](const TransportDeps& deps, auto on_warning) {
                return open_kind(argv[3], device_of_peer(), deps, on_warning);
              });
    return serve(peer);
  }
  ::testing::InitGoogleTest(&argc, argv);
  if (!has_card()) {
    // Every test needs one, and the typed suite's fixture cannot skip: one test skips for all.
    ::testing::GTEST_FLAG(filter) = "Card.IsHere";
  }
  program = argv[0];
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace tandem::transport::testing

int main(int argc, char** argv) { return tandem::transport::testing::run(argc, argv); }

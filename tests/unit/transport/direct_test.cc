#include "tests/unit/transport/direct_backend.h"
#include "tests/unit/transport/host_fabric.h"

namespace tandem::transport::testing {
namespace {

struct Pull {
  static std::unique_ptr<Fabric> make() { return std::make_unique<HostFabric>(HostMode::kPull); }
};
struct Paired {
  static std::unique_ptr<Fabric> make() { return std::make_unique<HostFabric>(HostMode::kPaired); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(DirectPull, TransportSuite, DirectBackend<Pull>);
INSTANTIATE_TYPED_TEST_SUITE_P(DirectPaired, TransportSuite, DirectBackend<Paired>);

class TwoWayBackend : public DirectBackend<Paired> {
 public:
  std::unique_ptr<Transport> create(const std::string& name, const Generation self,
                                    TransportEvents& events, const TransportLimits& limits = {}) {
    auto transport = create_two_way_transport(
        [](const DirectWays&) -> Result<std::unique_ptr<Fabric>> { return Paired::make(); },
        {.self = self, .clock = clock(), .events = events, .limits = limits});
    EXPECT_TRUE(transport) << transport.error().detail;
    return known_as(name, std::move(*transport));
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(DirectTwoWay, TransportSuite, TwoWayBackend);

TEST(DirectAddress, RoundTripsAndRefusesEverythingElse) {
  const std::string good = encode_direct_address({7, "cuda_ipc", "tandem-kv-1"});
  EXPECT_EQ(parse_direct_address(good)->socket, "tandem-kv-1");
  EXPECT_EQ(parse_direct_address(good)->fabric, "cuda_ipc");
  EXPECT_EQ(parse_direct_address(good)->host, 7u);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x20);
    EXPECT_FALSE(parse_direct_address(bad)) << i;
    EXPECT_FALSE(parse_direct_address(good.substr(0, i))) << i;
  }
  EXPECT_FALSE(parse_direct_address(good + "x"));
}

TEST(DirectMessages, AreTakenOneByOneAndNothingElsePasses) {
  const std::string two =
      encode_message(MessageKind::kGo, encode_go({5, 2})) +
      encode_message(MessageKind::kHello, encode_hello({Generation{3}, "x", "y"}));
  const auto first = parse_message(two).value();
  EXPECT_EQ(parse_go(first.message.body)->last, 5u);
  EXPECT_EQ(parse_go(first.message.body)->count, 2u);
  EXPECT_FALSE(parse_go(encode_go({5, 0})));
  const auto second = parse_message(std::string_view(two).substr(first.taken)).value();
  EXPECT_EQ(first.taken + second.taken, two.size());
  EXPECT_EQ(parse_hello(second.message.body)->details, "y");
  for (size_t i = 0; i < first.taken; ++i) {  // half a message is waited for
    EXPECT_EQ(parse_message(two.substr(0, i))->taken, 0u) << i;
  }
  std::string bad = two;
  bad[0] = 'X';
  EXPECT_EQ(parse_message(bad).error().code, ErrorCode::kCorruptData);
  bad = two;
  bad[4] = 9;
  EXPECT_EQ(parse_message(bad).error().code, ErrorCode::kCorruptData);
  bad = two;
  bad[11] = 1;  // 16 MiB
  EXPECT_EQ(parse_message(bad).error().code, ErrorCode::kCorruptData);
}

TEST(DirectMessages, OffersKeepTheirPiecesAndNote) {
  const std::string good = encode_offer({3, {1, 2, 3}, "note"});
  const auto bytes = std::as_bytes(std::span(good));
  EXPECT_EQ(parse_offer(bytes)->checksums, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(parse_offer(bytes)->note, "note");
  EXPECT_FALSE(parse_offer(bytes.first(27)));
  EXPECT_FALSE(parse_offer({}));
}

// Every byte of every word counts, and where it is.
TEST(PieceChecksum, CountsEveryWordAndItsPlace) {
  std::vector<std::byte> bytes(64);
  const uint64_t zeros = piece_checksum(bytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = std::byte{1};
    EXPECT_NE(piece_checksum(bytes), zeros) << i;
    bytes[i] = std::byte{0};
  }
  bytes[0] = std::byte{1};
  const uint64_t first = piece_checksum(bytes);
  bytes[0] = std::byte{0};
  bytes[8] = std::byte{1};
  EXPECT_NE(piece_checksum(bytes), first);
  EXPECT_NE(piece_checksum(std::span(bytes).first(48)), piece_checksum(bytes));
}

// Memory is mapped and links are known once the two have met.
class MetDirect : public TransportSuite<DirectBackend<Paired>> {};
TEST_F(MetDirect, IsConnectedBeforeTheFirstTransfer) {
  EXPECT_NE(sender_.transport->detail().find("not connected yet"), std::string::npos);
  sender_.transport->meet("decode-0", receiver_.transport->address());
  EXPECT_TRUE(backend_.until([&] {
    return sender_.transport->detail().find("not connected yet") == std::string::npos;
  })) << sender_.transport->detail();
  expect_works(TransferId{1});
}

constexpr TransferId kOnly{1};  // the one transfer of a test

SendSpec send_to(const Node& receiver, Generation generation, uint32_t pages) {
  return {.id = kOnly,
          .receiver = generation,
          .address = receiver.transport->address(),
          .layout = kLayout,
          .pages = pages,
          .tail_rows = 0,
          .deadline = seconds(20)};
}
ReceivePlan receive_from(Generation sender, Pages& into) {
  ReceivePlan plan{.id = kOnly,
                   .sender = sender,
                   .layout = kLayout,
                   .pages = into.count(),
                   .deadline = seconds(20)};
  plan.destination = [&into](uint32_t layer, uint32_t i) { return into.page(layer, i); };
  return plan;
}
Status post_layer(const Node& sender, Pages& from, uint32_t layer) {
  std::vector<std::span<const std::byte>> pages;
  for (uint32_t i = 0; i < from.count(); ++i) pages.push_back(from.page(layer, i));
  return sender.transport->post_pages(kOnly, layer, 0, pages);
}
void wait_until(const Clock& clock, const std::function<bool()>& ended) {
  const TimePoint give_up = clock.now() + seconds(20);
  while (!ended() && clock.now() < give_up) std::this_thread::sleep_for(milliseconds(1));
}

void open_with_version(Node& node, const std::string& version, Generation self,
                       const Clock& clock) {
  node.transport = create_direct_transport(std::make_unique<HostFabric>(HostMode::kPull, version),
                                           {self, clock, node.events, {}})
                       .value();
}

// Another version of the library that moves the pages: both sides say which, in words.
TEST(DirectTransport, AMismatchOfVersionsFailsTheTransferNamingBoth) {
  SteadyClock clock;
  Node a;
  Node b;
  open_with_version(a, "1", Generation{1}, clock);
  open_with_version(b, "2", Generation{2}, clock);
  ASSERT_TRUE(a.transport->open_send(send_to(b, Generation{2}, 0)));
  wait_until(clock, [&] { return a.events.events(kOnly) > 0; });
  ASSERT_TRUE(a.events.send_failed(kOnly));
  EXPECT_EQ(a.events.send_failed(kOnly)->code, ErrorCode::kMismatch);
  EXPECT_NE(a.events.send_failed(kOnly)->detail.find("version 2 here, 1 there"), std::string::npos)
      << a.events.send_failed(kOnly)->detail;
}

// Whom it was to meet is named, be it that nobody is there or that somebody refuses.
TEST(DirectTransport, AReceiverThatCannotBeMetIsNamedWithTheReason) {
  SteadyClock clock;
  Node a;
  Node b;
  open_with_version(a, "1", Generation{1}, clock);
  open_with_version(b, "2", Generation{2}, clock);
  const std::string address = b.transport->address();
  const auto reason = [&](const std::string& name) {
    a.transport->meet(name, address);
    wait_until(clock, [&] { return a.events.not_met(name).has_value(); });
    const auto why = a.events.not_met(name);
    return why ? why->detail : "";
  };
  EXPECT_NE(reason("decode-0").find("the receiver refused the connection: host version 2 here"),
            std::string::npos)
      << reason("decode-0");
  b.transport.reset();
  EXPECT_NE(reason("decode-1"), "");
}

// A lost device is told as such on its own side, so that the process can end, and on no other.
TEST(DirectTransport, ALostDeviceFailsTheTransfersOfItsSideAsOne) {
  for (const bool sends : {true, false}) {
    SteadyClock clock;
    Node a;
    Node b;
    std::array<HostFabric*, 2> fabrics{};
    for (Node* node : {&a, &b}) {
      auto fabric = std::make_unique<HostFabric>(HostMode::kPaired);
      fabrics[node == &a ? 0 : 1] = fabric.get();
      node->transport =
          create_direct_transport(std::move(fabric),
                                  {Generation{node == &a ? 1u : 2u}, clock, node->events, {}})
              .value();
    }
    Pages from(kLayout, 3, 0, 5);
    Pages into(kLayout, 3, 0);
    ASSERT_TRUE(b.transport->open_receive(receive_from(Generation{1}, into)));
    ASSERT_TRUE(a.transport->open_send(send_to(b, Generation{2}, 3)));
    fabrics[sends ? 0 : 1]->lose_device();
    ASSERT_TRUE(post_layer(a, from, 0));
    wait_until(clock, [&] { return a.events.events(kOnly) > 0 && b.events.events(kOnly) > 0; });
    const auto sent = a.events.send_failed(kOnly);
    const auto received = b.events.receive_failed(kOnly);
    ASSERT_TRUE(sent && received);
    EXPECT_EQ(sent->code == ErrorCode::kDeviceLost, sends) << sent->detail;
    EXPECT_EQ(received->code == ErrorCode::kDeviceLost, !sends) << received->detail;
  }
}

TEST(DirectTransport, SendsToItself) {
  for (const HostMode mode : {HostMode::kPull, HostMode::kPaired}) {
    SteadyClock clock;
    Node self;
    self.transport = create_direct_transport(std::make_unique<HostFabric>(mode),
                                             {Generation{1}, clock, self.events, {}})
                         .value();
    Pages from(kLayout, 3, 0, 5);
    Pages into(kLayout, 3, 0);
    ASSERT_TRUE(self.transport->open_receive(receive_from(Generation{1}, into)));
    ASSERT_TRUE(self.transport->open_send(send_to(self, Generation{1}, 3)));
    for (uint32_t layer = 0; layer < 3; ++layer) ASSERT_TRUE(post_layer(self, from, layer));
    ASSERT_TRUE(self.transport->post_commit(kOnly, "c"));
    wait_until(clock, [&] { return self.events.events(kOnly) >= 2; });
    EXPECT_TRUE(self.events.sent(kOnly));
    EXPECT_TRUE(self.events.received(kOnly));
    EXPECT_TRUE(from == into);
    EXPECT_NE(self.transport->detail().find("not connected yet"), std::string::npos);
    if (mode == HostMode::kPaired) continue;
    // The connection is dropped, and made anew for the next one.
    std::this_thread::sleep_for(milliseconds(50));
    SendSpec again = send_to(self, Generation{1}, 0);
    again.id = TransferId{2};
    ReceivePlan plan = receive_from(Generation{1}, into);
    plan.id = TransferId{2};
    plan.pages = 0;
    ASSERT_TRUE(self.transport->open_receive(std::move(plan)));
    ASSERT_TRUE(self.transport->open_send(again));
    ASSERT_TRUE(self.transport->post_commit(TransferId{2}, "c"));
    wait_until(clock, [&] { return self.events.events(TransferId{2}) >= 2; });
    EXPECT_TRUE(self.events.sent(TransferId{2}));
  }
}

}  // namespace
}  // namespace tandem::transport::testing

#include "common/transport/ucx/ucx_transport.h"

#include <thread>

#include "common/transport/shm/shm_fabric.h"
#include "common/transport/ucx/address.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/worker.h"
#include "tests/unit/transport/direct_stranger.h"
#include "tests/unit/transport/far_memory.h"
#include "tests/unit/transport/transport_suite.h"

namespace tandem::transport::testing {
namespace {

// Two UCX transports in one process, in real time; the same code carries them between processes.
template <typename Lanes>
class UcxBackend {
 public:
  static constexpr bool kSeesEndedTransports = true;
  UcxBackend() {
    if (!Lanes::kFar) return;
    far_ = std::make_unique<FarMemory>(64u << 20);
    page_arena() = far_.get();
  }
  ~UcxBackend() { page_arena() = nullptr; }
  std::unique_ptr<Transport> create(const std::string& name, const Generation self,
                                    TransportEvents& events, const TransportLimits& limits = {}) {
    auto transport = create_ucx_transport(
        {.tls = Lanes::kTls, .on_warning = {}},
        {.self = self, .clock = clock_, .events = events, .limits = limits, .memory = far_.get()});
    EXPECT_TRUE(transport) << transport.error().detail;
    addresses_[name] = (*transport)->address();
    return std::move(*transport);
  }
  template <typename Condition>
  bool until(const Condition& done) {
    const TimePoint give_up = clock_.now() + seconds(60);
    while (!done() && clock_.now() < give_up) std::this_thread::sleep_for(milliseconds(1));
    return done();
  }
  void settle() { std::this_thread::sleep_for(milliseconds(30)); }
  void pass(Duration time) { std::this_thread::sleep_for(time); }

  // A stranger: on the local socket where there is one, else with a UCX worker of its own.
  void inject(Node&, const std::string& name, Frame frame) {
    const UcxAddress to = parse_ucx_address(addresses_.at(name)).value();
    if (!to.local.empty()) {
      neighbour_.send(to.local, *create_shm_fabric(nullptr), frame);
      return;
    }
    if (!stranger_) {
      UcxWorker::Callbacks callbacks;
      callbacks.on_message = [](auto) {};
      callbacks.on_endpoint_failed = [](auto, const auto&) {};
      stranger_ = UcxWorker::create({.tls = "tcp,self"}, std::move(callbacks)).value();
      endpoint_ = stranger_->connect(to.worker).value();
    }
    bool sent = false;
    const std::string from = encode_ucx_address({this_host(), stranger_->address()});
    stranger_->send(endpoint_,
                    {ucx_message_bytes(from, frame.payload.size()),
                     [&](std::span<std::byte> out) { write_ucx_message(out, from, frame); },
                     [&](bool) { sent = true; }});
    until([&] {
      stranger_->progress();
      return sent;
    });
    for (int i = 0; i < 100; ++i) stranger_->progress();
  }

 private:
  SteadyClock clock_;
  std::unique_ptr<FarMemory> far_;
  std::map<std::string, std::string> addresses_;
  DirectStranger neighbour_;
  std::unique_ptr<UcxWorker> stranger_;
  UcxWorker::EndpointId endpoint_ = 0;
};

struct SharedMemory {
  static constexpr const char* kTls = "shm,self";
  static constexpr bool kFar = false;
};
struct Tcp {
  static constexpr const char* kTls = "tcp,self";
  static constexpr bool kFar = false;
};
struct Default {
  static constexpr const char* kTls = "";
  static constexpr bool kFar = false;
};
// Pages on a device.
struct Far {
  static constexpr const char* kTls = "shm,self";
  static constexpr bool kFar = true;
};
struct FarTcp {
  static constexpr const char* kTls = "tcp,self";
  static constexpr bool kFar = true;
};

INSTANTIATE_TYPED_TEST_SUITE_P(UcxSharedMemory, TransportSuite, UcxBackend<SharedMemory>);
INSTANTIATE_TYPED_TEST_SUITE_P(UcxDefault, TransportSuite, UcxBackend<Default>);
INSTANTIATE_TYPED_TEST_SUITE_P(UcxFarMemory, TransportSuite, UcxBackend<Far>);
INSTANTIATE_TYPED_TEST_SUITE_P(UcxFarMemoryTcp, TransportSuite, UcxBackend<FarTcp>);
INSTANTIATE_TYPED_TEST_SUITE_P(UcxTcp, TransportSuite, UcxBackend<Tcp>);

TEST(UcxAddress, RoundTripsAndRefusesEverythingElse) {
  const std::string good = encode_ucx_address({.host = 7, .worker = "worker bytes", .local = "l"});
  EXPECT_EQ(parse_ucx_address(good)->worker, "worker bytes");
  EXPECT_EQ(parse_ucx_address(good)->host, 7u);
  EXPECT_EQ(parse_ucx_address(good)->local, "l");
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x20);
    EXPECT_FALSE(parse_ucx_address(bad)) << i;
    EXPECT_FALSE(parse_ucx_address(good.substr(0, i))) << i;
  }
  EXPECT_FALSE(parse_ucx_address(good + "x"));
}

TEST(UcxTransport, UnknownTransportsAreAConfigErrorNamingThem) {
  SteadyClock clock;
  Recorder events;
  const auto transport =
      create_ucx_transport({.tls = "warp_drive", .on_warning = {}},
                           {.self = Generation{1}, .clock = clock, .events = events, .limits = {}});
  ASSERT_FALSE(transport);
  EXPECT_EQ(transport.error().code, ErrorCode::kConfig);
  EXPECT_NE(transport.error().detail.find("warp_drive"), std::string::npos);
}

TEST(UcxTransport, DetailSaysThatDeviceMemoryGoesThroughTheHost) {
  SteadyClock clock;
  Recorder events;
  FarMemory far(1u << 20);
  const auto transport = create_ucx_transport(
      {.tls = "shm,self", .on_warning = {}},
      {.self = Generation{1}, .clock = clock, .events = events, .limits = {}, .memory = &far});
  ASSERT_TRUE(transport);
  EXPECT_TRUE((*transport)->detail().ends_with("; device memory through pinned host buffers"))
      << (*transport)->detail();
}

// Pages that are larger than the memory shared at first, amid small ones.
TEST(UcxTransport, PagesOfAnySizeCrossSharedMemory) {
  SteadyClock clock;
  Node a;
  Node b;
  a.transport = create_ucx_transport({}, {Generation{1}, clock, a.events, {}}).value();
  b.transport = create_ucx_transport({}, {Generation{2}, clock, b.events, {}}).value();
  uint64_t number = 0;
  for (const uint32_t heads : {2u, 300u, 3u, 900u, 2u}) {  // of 16 KiB
    const TransferId id{++number};
    Pages from({2, heads, 128, kv::KvFormat::kF32}, 3, 0, number);
    Pages into(from.layout(), 3, 0);
    ReceivePlan plan{.id = id,
                     .sender = Generation{1},
                     .layout = from.layout(),
                     .pages = 3,
                     .deadline = seconds(60)};
    plan.destination = [&](uint32_t layer, uint32_t i) { return into.page(layer, i); };
    ASSERT_TRUE(b.transport->open_receive(plan));
    ASSERT_TRUE(a.transport->open_send({.id = id,
                                        .receiver = Generation{2},
                                        .address = b.transport->address(),
                                        .layout = from.layout(),
                                        .pages = 3,
                                        .tail_rows = 0,
                                        .deadline = seconds(60)}));
    for (uint32_t layer = 0; layer < 2; ++layer) {
      std::vector<std::span<const std::byte>> pages;
      for (uint32_t i = 0; i < 3; ++i) pages.push_back(from.page(layer, i));
      ASSERT_TRUE(a.transport->post_pages(id, layer, 0, pages));
    }
    ASSERT_TRUE(a.transport->post_commit(id, ""));
    const TimePoint give_up = clock.now() + seconds(60);
    while (a.events.events(id) == 0 && clock.now() < give_up) std::this_thread::yield();
    ASSERT_TRUE(a.events.sent(id));
    EXPECT_TRUE(from == into);
  }
}

// Whoever is killed while it writes into one of UCX's queues in shared memory blocks it for good.
TEST(UcxTransport, UcxsOwnSharedMemoryIsNeverToBeHad) {
  SteadyClock clock;
  Recorder events;
  for (const char* tls : {"", "posix,sysv,tcp,self", "all", "^tcp", "^self", "^cma", "sm,self"}) {
    const auto transport = create_ucx_transport(
        {.tls = tls, .on_warning = {}},
        {.self = Generation{1}, .clock = clock, .events = events, .limits = {}});
    ASSERT_TRUE(transport) << transport.error().detail;
    const std::string detail = (*transport)->detail();
    EXPECT_NE(detail.find("not connected yet; may use "), std::string::npos);
    for (const char* queue : {"posix", "sysv", "xpmem"}) {
      EXPECT_EQ(detail.find(queue), std::string::npos) << tls << ": " << detail;
    }
  }
}

TEST(UcxTransport, DetailNamesTheVersionAndTheLanesInUse) {
  SteadyClock clock;
  for (const auto& [tls, lanes] :
       {std::pair("shm,self", "shared memory"), std::pair("posix,self", "shared memory"),
        std::pair("tcp,self", "tcp"), std::pair("^shm,self", "tcp"),
        std::pair("all", "shared memory")}) {
    Node a;
    Node b;
    a.transport =
        create_ucx_transport({.tls = tls, .on_warning = {}}, {Generation{1}, clock, a.events, {}})
            .value();
    b.transport =
        create_ucx_transport({.tls = tls, .on_warning = {}}, {Generation{2}, clock, b.events, {}})
            .value();
    EXPECT_NE(a.transport->detail().find("not connected yet"), std::string::npos);
    Pages none(kLayout, 0, 0);
    ReceivePlan plan{
        .id = TransferId{1}, .sender = Generation{1}, .layout = kLayout, .deadline = seconds(20)};
    ASSERT_TRUE(b.transport->open_receive(plan));
    ASSERT_TRUE(a.transport->open_send({.id = TransferId{1},
                                        .receiver = Generation{2},
                                        .address = b.transport->address(),
                                        .layout = kLayout,
                                        .pages = 0,
                                        .tail_rows = 0,
                                        .deadline = seconds(20)}));
    ASSERT_TRUE(a.transport->post_commit(TransferId{1}, ""));
    const TimePoint give_up = clock.now() + seconds(20);
    while (!a.events.sent(TransferId{1}) && clock.now() < give_up) std::this_thread::yield();
    const std::string detail = a.transport->detail();
    EXPECT_EQ(detail, "ucx " + UcxWorker::version() + ": " + lanes);
    EXPECT_EQ(b.transport->detail(), detail);  // who only receives knows as well
  }
}

TEST(CheckUcx, TellsWhatTheTransportWould) {
  std::vector<std::string> warnings;
  const UcxOptions options{
      .tls = "tcp,self", .on_warning = [&](const std::string& line) { warnings.push_back(line); }};
  EXPECT_TRUE(check_ucx(options));
  EXPECT_TRUE(check_ucx({.tls = "", .on_warning = options.on_warning}));
  EXPECT_TRUE(check_ucx({.tls = "shm", .on_warning = options.on_warning}));
  EXPECT_TRUE(warnings.empty());
  EXPECT_TRUE(check_ucx({.tls = "bogus,tcp", .on_warning = options.on_warning}));
  ASSERT_FALSE(warnings.empty());
  EXPECT_NE(warnings[0].find("'bogus' is not available"), std::string::npos) << warnings[0];
  const Status none = check_ucx({.tls = "bogus", .on_warning = options.on_warning});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kConfig);
  EXPECT_EQ(none.error().param, "transport.ucx_tls");
  EXPECT_NE(none.error().detail.find("'bogus'"), std::string::npos) << none.error().detail;
}

}  // namespace
}  // namespace tandem::transport::testing

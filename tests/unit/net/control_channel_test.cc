#include "common/net/control_channel.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/hmac.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <vector>

#include "common/base/fd.h"
#include "common/net/control_auth.h"
#include "common/net/frame_codec.h"
#include "common/net/io_thread.h"
#include "common/obs/metrics.h"
#include "common/proto/control.pb.h"
#include "common/proto/versions.h"

namespace tandem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr Generation kNode(77);
constexpr Generation kRouter(11);

// Events from the loop's thread, awaited by the test.
class Events {
 public:
  void add(std::string event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }
  // Waits until `text` is part of some event.
  bool wait_for(const std::string& text) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(60), [&] { return count_locked(text) > 0; });
  }
  bool wait_for(const std::string& text, size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(60), [&] { return count_locked(text) >= count; });
  }
  size_t count(const std::string& text) {
    std::lock_guard lock(mutex_);
    return count_locked(text);
  }
  std::string all() {
    std::lock_guard lock(mutex_);
    std::string out;
    for (const auto& e : events_) out += e + "\n";
    return out;
  }

 private:
  size_t count_locked(const std::string& text) const {
    size_t n = 0;
    for (const auto& e : events_) n += e.find(text) != std::string::npos ? 1 : 0;
    return n;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
};

class ControlChannel : public ::testing::Test {
 protected:
  void TearDown() override {
    io_.stop();
    client_.reset();
    server_.reset();
  }

  ControlDeps deps() { return {io_, clock_, Logger(sink_, LogLevel::kError), metrics_}; }

  void start_server(ControlOptions options, uint16_t port = 0) {
    ControlServer::Callbacks callbacks;
    callbacks.on_hello = [this](SessionId id, const control::Hello& hello, std::string_view) {
      events_.add("hello " + hello.node_id());
      control::Welcome welcome;
      welcome.set_admitted(hello.node_id() != "unwanted");
      welcome.set_lasting(hello.node_id() == "wrong");
      if (welcome.lasting()) welcome.set_admitted(false);
      if (!welcome.admitted()) welcome.set_reason("kv_format int8 differs from bf16");
      if (welcome.admitted()) session_ = id;
      return welcome;
    };
    callbacks.on_message = [this](SessionId, control::ToRouter&& message) {
      events_.add("to_router " + std::to_string(message.message_case()) + " tick " +
                  std::to_string(message.heartbeat().tick()));
    };
    callbacks.on_closed = [this](SessionId, const Error& reason) {
      events_.add("closed " + reason.detail);
    };
    server_ = ControlServer::create("127.0.0.1", port, kRouter, options, callbacks, deps()).value();
    port_ = server_->port();
  }

  void start_client(ControlOptions options, const std::string& name = "n1") {
    ControlClient::Callbacks callbacks;
    callbacks.make_hello = [name] {
      control::Hello hello;
      hello.set_role(control::ROLE_DECODE);
      hello.set_node_id(name);
      return hello;
    };
    callbacks.on_admitted = [this](const control::Welcome& welcome) {
      events_.add("admitted by " + std::to_string(welcome.router_generation()));
    };
    callbacks.on_refused = [this](const ControlClient::Refusal& refusal) {
      events_.add((refusal.lasting ? "refused for good " : "refused ") + refusal.reason);
    };
    callbacks.on_message = [this](control::ToNode&& message) {
      events_.add("to_node " + std::to_string(message.message_case()));
    };
    callbacks.on_disconnected = [this](const Error& e) { events_.add("disconnected " + e.detail); };
    client_ = ControlClient::create("127.0.0.1:" + std::to_string(port_), kNode, options, callbacks,
                                    deps())
                  .value();
  }

  void on_loop(const std::function<void()>& work) {
    std::promise<void> done;
    io_.post([&] {
      work();
      done.set_value();
    });
    done.get_future().get();
  }

  double rejected(const std::string& reason) {
    return metrics_
        .counters("tandem_control_rejected_total",
                  "Control connections ended for what the peer did, by reason",
                  {Label{.name = "reason"}})
        .with({reason})
        .value();
  }

  // A hand-made peer.
  Fd dial() {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    timeval limit{60, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
  }
  static void put(const Fd& fd, std::string_view bytes) {
    ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // One connection's decoder, kept over several reads.
  struct Reader {
    FrameDecoder decoder{1 << 20};
    // The next message; nullopt at the end of the connection.
    std::optional<control::ToNode> next(const Fd& fd) {
      char buffer[4096];
      while (true) {
        while (const auto frame = decoder.next()) {
          if (frame->kind != FrameKind::kMessage) continue;
          control::ToNode message;
          EXPECT_TRUE(message.ParseFromArray(frame->payload.data(),
                                             static_cast<int>(frame->payload.size())));
          return message;
        }
        EXPECT_FALSE(decoder.fault());
        const ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
        // A reset is an end too: what we sent last was not worth reading.
        EXPECT_TRUE(n >= 0 || errno == ECONNRESET) << "the connection should have been closed";
        if (n <= 0) return std::nullopt;
        decoder.feed({buffer, static_cast<size_t>(n)});
      }
    }
    // Reads to the end of the connection; the last message that came.
    control::ToNode last(const Fd& fd, size_t* count = nullptr) {
      control::ToNode message;
      while (auto got = next(fd)) {
        message = std::move(*got);
        if (count != nullptr) ++*count;
      }
      return message;
    }
  };
  static control::ToNode read_all(const Fd& fd, size_t* count = nullptr) {
    return Reader().last(fd, count);
  }
  static std::string frame(uint64_t sequence, const control::ToRouter& message,
                           Generation g = kNode) {
    std::string out;
    append_frame(out, FrameKind::kMessage, sequence, g, message.SerializeAsString());
    return out;
  }
  static control::ToRouter hello(const std::string& name = "raw") {
    control::ToRouter message;
    message.mutable_hello()->set_role(control::ROLE_PREFILL);
    message.mutable_hello()->set_node_id(name);
    message.mutable_hello()->set_generation(kNode.value);
    message.mutable_hello()->set_protocol_version(proto::kControlVersion);
    return message;
  }
  static control::ToRouter heartbeat(uint64_t tick) {
    control::ToRouter message;
    message.mutable_heartbeat()->set_tick(tick);
    return message;
  }

  SteadyClock clock_;
  LogSink sink_{Fd(::dup(2)), clock_};
  MetricsRegistry metrics_;
  Events events_;
  IoThread io_{"control"};
  std::unique_ptr<ControlServer> server_;
  std::unique_ptr<ControlClient> client_;
  SessionId session_;
  uint16_t port_ = 0;
};

TEST_F(ControlChannel, NodesAreAdmittedAndMessagesFlowBothWays) {
  start_server({});
  start_client({});
  io_.start();
  ASSERT_TRUE(events_.wait_for("admitted by 11"));
  on_loop([&] {
    for (uint64_t i = 1; i <= 100; ++i) EXPECT_TRUE(client_->send(heartbeat(i)));
    control::ToNode drain;
    drain.mutable_drain();
    EXPECT_TRUE(server_->send(session_, drain));
    EXPECT_FALSE(server_->send(SessionId(999), drain));
  });
  EXPECT_TRUE(events_.wait_for("tick 100"));
  EXPECT_EQ(events_.count("to_router"), 100u);
  EXPECT_TRUE(events_.wait_for("to_node 8"));
}

TEST_F(ControlChannel, ASharedKeyLetsInWhoKnowsItAndNobodyElse) {
  ControlOptions with_key;
  with_key.shared_key = "secret";
  start_server(with_key);
  start_client(with_key);
  io_.start();
  EXPECT_TRUE(events_.wait_for("admitted by"));
  ControlOptions wrong_key;
  wrong_key.shared_key = "Secret";
  on_loop([&] { start_client(wrong_key, "n2"); });
  EXPECT_TRUE(events_.wait_for("refused for good the shared key differs"));
  on_loop([&] { start_client({}, "n3"); });
  EXPECT_TRUE(events_.wait_for("refused for good the router asks for a shared key"));
  EXPECT_EQ(events_.count("hello"), 1u);
  EXPECT_EQ(rejected("unauthenticated"), 1);
}

TEST_F(ControlChannel, ProofsAreHmacsThatAnIndependentImplementationAccepts) {
  control::Hello h = hello("n").hello();
  const std::string nonce(32, 'N');
  std::string data =
      nonce + std::string("\x01\x01\0\0\0n", 6) + std::string("\x4d\0\0\0\0\0\0\0", 8);
  unsigned char expected[32];
  unsigned int length = 0;
  HMAC(EVP_sha256(), "k", 1, reinterpret_cast<const unsigned char*>(data.data()), data.size(),
       expected, &length);
  EXPECT_EQ(hello_proof("k", nonce, h), std::string(reinterpret_cast<char*>(expected), length));
}

TEST_F(ControlChannel, AReplayedProofIsWorthless) {
  ControlOptions options;
  options.shared_key = "secret";
  start_server(options);
  io_.start();
  control::ToRouter first = hello();
  {
    const Fd honest = dial();
    const control::ToNode challenge = Reader().next(honest).value();
    first.mutable_hello()->set_authentication(
        hello_proof("secret", challenge.challenge().nonce(), first.hello()));
    put(honest, frame(0, first));
    ASSERT_TRUE(events_.wait_for("hello raw"));
  }
  const Fd thief = dial();
  Reader reader;
  ASSERT_TRUE(reader.next(thief));
  put(thief, frame(0, first));
  const control::ToNode answer = reader.last(thief);
  EXPECT_FALSE(answer.welcome().admitted());
  EXPECT_THAT(answer.welcome().reason(), HasSubstr("shared key differs"));
  EXPECT_EQ(events_.count("hello"), 1u);
}

TEST_F(ControlChannel, ANodeLearnsWhetherARefusalLasts) {
  start_server({});
  start_client({}, "wrong");
  io_.start();
  EXPECT_TRUE(events_.wait_for("refused for good kv_format"));
}

TEST_F(ControlChannel, ARefusalReachesTheNodeInPlainWords) {
  start_server({});
  start_client({}, "unwanted");
  io_.start();
  EXPECT_TRUE(events_.wait_for("refused kv_format int8 differs from bf16"));
  EXPECT_EQ(rejected("refused"), 1);
}

TEST_F(ControlChannel, StrangersAreCutOffAndDisturbNobody) {
  start_server({});
  start_client({});
  io_.start();
  ASSERT_TRUE(events_.wait_for("admitted"));
  std::string oversized;
  append_frame(oversized, FrameKind::kMessage, 0, kNode, std::string((64 << 10) + 1, 'x'));
  std::string unparsable;
  append_frame(unparsable, FrameKind::kMessage, 0, kNode, "\xff\xff\xff");
  std::string empty;
  append_frame(empty, FrameKind::kMessage, 0, kNode, "");
  std::string damaged = frame(0, hello());
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  struct Case {
    std::string bytes;
    std::string reason;
  };
  for (const Case& c :
       std::vector<Case>{{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "bad_magic"},
                         {std::string(100, '\0'), "bad_magic"},
                         {oversized, "oversized"},
                         {unparsable, "bad_message"},
                         {empty, "bad_message"},
                         {frame(0, hello("\xff")), "bad_message"},
                         {damaged, "bad_checksum"},
                         {frame(1, hello()), "bad_sequence"},
                         {frame(0, heartbeat(1)), "unexpected_message"},
                         {frame(0, hello(), Generation(5)), "refused"},
                         {frame(0, hello("a b")), "refused"},
                         {frame(0, hello()) + frame(0, hello()), "bad_sequence"},
                         {frame(0, hello()) + frame(1, hello()), "unexpected_message"}}) {
    const double before = rejected(c.reason);
    const Fd fd = dial();
    put(fd, c.bytes);
    read_all(fd);
    EXPECT_EQ(rejected(c.reason), before + 1) << c.reason;
  }
  const double before = rejected("truncated");
  {
    const Fd fd = dial();
    put(fd, frame(0, hello("cut")).substr(0, 50));
  }
  for (int i = 0; i < 6000 && rejected("truncated") == before; ++i) usleep(10'000);
  EXPECT_EQ(rejected("truncated"), before + 1);
  on_loop([&] { EXPECT_TRUE(client_->send(heartbeat(7))); });
  EXPECT_TRUE(events_.wait_for("tick 7")) << events_.all();
}

TEST_F(ControlChannel, AnotherProtocolVersionIsRefusedWithBothNumbers) {
  start_server({});
  io_.start();
  const Fd fd = dial();
  control::ToRouter message = hello();
  // The release before is refused as well.
  message.mutable_hello()->set_protocol_version(proto::kControlVersion - 1);
  put(fd, frame(0, message));
  const std::string ours = std::to_string(proto::kControlVersion);
  EXPECT_THAT(read_all(fd).welcome().reason(),
              HasSubstr("control protocol version " + std::to_string(proto::kControlVersion - 1) +
                        " differs from the router's " + ours + "; run the same release on both"));
}

TEST_F(ControlChannel, ANodeRefusesARouterOfAnotherProtocolVersionForGood) {
  Fd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(at);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), length), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &length), 0);
  port_ = ntohs(at.sin_port);
  start_client({});
  io_.start();
  const Fd router(::accept(listener.get(), nullptr, nullptr));
  control::ToNode message;
  message.mutable_challenge()->set_protocol_version(proto::kControlVersion - 1);
  std::string out;
  append_frame(out, FrameKind::kMessage, 0, kRouter, message.SerializeAsString());
  put(router, out);
  EXPECT_TRUE(events_.wait_for("refused for good the router speaks control protocol version " +
                               std::to_string(proto::kControlVersion - 1) + ", this node " +
                               std::to_string(proto::kControlVersion)))
      << events_.all();
}

TEST_F(ControlChannel, SilenceBeforeTheHelloIsBounded) {
  ControlOptions options;
  options.handshake_timeout = milliseconds(100);
  start_server(options);
  io_.start();
  const Fd fd = dial();
  size_t messages = 0;
  read_all(fd, &messages);
  EXPECT_EQ(messages, 1u) << "the challenge only";
  EXPECT_EQ(rejected("handshake_timeout"), 1);
}

TEST_F(ControlChannel, ADeadPeerIsNoticedAndPingsKeepAQuietOneAlive) {
  ControlOptions options;
  options.peer_timeout = seconds(3);
  start_server(options);
  start_client(options);
  io_.start();
  ASSERT_TRUE(events_.wait_for("admitted"));
  const Fd mute = dial();
  put(mute, frame(0, hello("mute")));
  ASSERT_TRUE(events_.wait_for("hello mute"));
  EXPECT_TRUE(events_.wait_for("has been silent for 3s"));
  EXPECT_EQ(events_.count("closed"), 1u) << "the quiet but living one stays";
  EXPECT_EQ(events_.count("disconnected"), 0u);
}

TEST_F(ControlChannel, ClosingTellsBothSidesAndTheNodeComesBack) {
  start_server({});
  start_client({});
  io_.start();
  ASSERT_TRUE(events_.wait_for("admitted"));
  on_loop([&] { server_->close(session_, "replaced"); });
  EXPECT_TRUE(events_.wait_for("closed replaced"));
  EXPECT_TRUE(events_.wait_for("disconnected"));
  EXPECT_TRUE(events_.wait_for("admitted", 2));
}

TEST_F(ControlChannel, ANodeFindsARouterThatStartsLater) {
  start_server({});
  const uint16_t port = port_;
  io_.start();
  on_loop([&] { server_.reset(); });
  on_loop([&] { start_client({}); });
  EXPECT_FALSE(events_.count("admitted"));
  on_loop([&] { start_server({}, port); });
  EXPECT_TRUE(events_.wait_for("admitted"));
}

TEST_F(ControlChannel, AFullQueueRefusesInsteadOfGrowing) {
  ControlOptions options;
  options.max_queue_bytes = 10'000;
  start_server(options);
  start_client({});
  io_.start();
  ASSERT_TRUE(events_.wait_for("admitted"));
  on_loop([&] {
    control::ToNode message;
    message.mutable_cancel()->set_reason(std::string(3000, 'x'));
    EXPECT_TRUE(server_->send(session_, message));
    EXPECT_TRUE(server_->send(session_, message));
    EXPECT_TRUE(server_->send(session_, message));
    EXPECT_FALSE(server_->send(session_, message));
  });
  EXPECT_TRUE(events_.wait_for("to_node", 3));
}

TEST_F(ControlChannel, SessionsAreBounded) {
  ControlOptions options;
  options.max_sessions = 2;
  start_server(options);
  io_.start();
  const Fd a = dial();
  const Fd b = dial();
  ASSERT_TRUE(Reader().next(a));
  ASSERT_TRUE(Reader().next(b));
  const Fd c = dial();
  char byte = 0;
  EXPECT_LE(::recv(c.get(), &byte, 1, 0), 0);
  EXPECT_EQ(rejected("too_many"), 1);
}

TEST_F(ControlChannel, BadAddressesAreConfigErrors) {
  EXPECT_FALSE(ControlClient::create("nowhere", kNode, {}, {}, deps()));
  const auto foreign = ControlServer::create("192.0.2.1", 0, kRouter, {}, {}, deps());
  ASSERT_FALSE(foreign);
  EXPECT_THAT(foreign.error().detail, HasSubstr("cannot listen on 192.0.2.1:0"));
  start_server({});
  const auto taken = ControlServer::create("127.0.0.1", port_, kRouter, {}, {}, deps());
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().detail, HasSubstr("another process does"));
}

}  // namespace
}  // namespace tandem

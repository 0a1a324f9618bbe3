#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <random>

#include "common/base/check.h"
#include "common/config/units.h"
#include "common/net/control_auth.h"
#include "common/net/control_channel.h"
#include "common/net/framed_connection.h"
#include "common/net/io_thread.h"
#include "common/proto/control.pb.h"
#include "common/proto/versions.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr Duration kFirstPause = std::chrono::milliseconds(50);
constexpr Duration kLongestPause = std::chrono::seconds(2);

class DialingClient final : public ControlClient,
                            public std::enable_shared_from_this<DialingClient> {
 public:
  DialingClient(HostPort address, Generation generation, ControlOptions options,
                Callbacks callbacks, ControlDeps deps)
      : address_(std::move(address)),
        generation_(generation),
        options_(std::move(options)),
        callbacks_(std::move(callbacks)),
        deps_(deps),
        metrics_(deps.metrics),
        reconnects_(deps.metrics.counter("tandem_control_connect_attempts_total",
                                         "Times a node dialled its router")),
        resolver_(deps.io.context()),
        socket_(deps.io.context()),
        timer_(deps.io.context()),
        random_(static_cast<uint32_t>(generation.value)) {}

  void dial() {
    phase_ = Phase::kConnecting;
    reconnects_.add();
    timer_.expires_after(options_.handshake_timeout);
    timer_.async_wait([self = weak_from_this(), attempt = ++attempt_](const error_code& error) {
      const auto client = self.lock();
      if (!client || error || client->attempt_ != attempt) return;
      client->give_up("no answer within " + format_duration(client->options_.handshake_timeout));
    });
    resolver_.async_resolve(address_.host, std::to_string(address_.port),
                            [self = weak_from_this(), attempt = attempt_](
                                const error_code& error, const tcp::resolver::results_type& found) {
                              const auto client = self.lock();
                              if (!client || client->attempt_ != attempt) return;
                              if (error) {
                                client->give_up("cannot resolve its name: " + error.message());
                              } else {
                                client->connect(found);
                              }
                            });
  }

  // The owner's handle went: nothing is called any more.
  void shut_down() {
    stopped_ = true;
    ++attempt_;
    timer_.cancel();
    resolver_.cancel();
    error_code ignored;
    socket_.close(ignored);
    if (connection_) connection_->detach_and_close();
    connection_.reset();
  }

  bool send(const control::ToRouter& message) override {
    return phase_ == Phase::kAdmitted && connection_->send(message);
  }
  bool admitted() const override { return phase_ == Phase::kAdmitted; }

 private:
  enum class Phase : uint8_t { kWaiting, kConnecting, kChallenge, kWelcome, kAdmitted };

  void connect(const tcp::resolver::results_type& found) {
    socket_ = tcp::socket(deps_.io.context());
    asio::async_connect(socket_, found,
                        [self = weak_from_this(), attempt = attempt_](const error_code& error,
                                                                      const tcp::endpoint&) {
                          const auto client = self.lock();
                          if (!client || client->attempt_ != attempt) return;
                          if (error) {
                            client->give_up(error.message());
                          } else {
                            client->on_connected();
                          }
                        });
  }

  void on_connected() {
    timer_.cancel();  // the connection keeps the handshake's time from here on
    phase_ = Phase::kChallenge;
    connection_ = std::make_shared<FramedConnection>(std::move(socket_), generation_, options_,
                                                     deps_.clock, metrics_);
    connection_->start({.on_payload =
                            [self = weak_from_this()](std::string_view payload) {
                              if (const auto client = self.lock()) client->on_payload(payload);
                            },
                        .on_closed =
                            [self = weak_from_this(), attempt = attempt_](const Error& reason) {
                              const auto client = self.lock();
                              if (client && client->attempt_ == attempt) client->on_closed(reason);
                            }});
  }

  void on_payload(std::string_view payload) {
    control::ToNode message;
    if (!message.ParseFromArray(payload.data(), static_cast<int>(payload.size())) ||
        message.message_case() == control::ToNode::MESSAGE_NOT_SET) {
      reject("sent a message that does not parse", "bad_message");
      return;
    }
    switch (phase_) {
      case Phase::kWaiting:
      case Phase::kConnecting:
        return;
      case Phase::kChallenge:
        if (message.has_challenge()) return on_challenge(message.challenge());
        break;
      case Phase::kWelcome:
        if (message.has_welcome()) return on_welcome(message.welcome());
        break;
      case Phase::kAdmitted:
        if (!message.has_challenge() && !message.has_welcome()) {
          callbacks_.on_message(std::move(message));
          return;
        }
        break;
    }
    reject("sent a message out of turn", "unexpected_message");
  }

  void on_challenge(const control::Challenge& challenge) {
    if (challenge.protocol_version() != proto::kControlVersion) {
      refuse({.reason = "the router speaks control protocol version " +
                        std::to_string(challenge.protocol_version()) + ", this node " +
                        std::to_string(proto::kControlVersion) + "; run the same release on both",
              .lasting = true},
             ErrorCode::kMismatch, "refused");
      return;
    }
    if (challenge.authentication_required() && options_.shared_key.empty()) {
      refuse({.reason = "the router asks for a shared key; set router.control.shared_key",
              .lasting = true},
             ErrorCode::kUnauthenticated);
      return;
    }
    control::ToRouter message;
    control::Hello& hello = *message.mutable_hello();
    hello = callbacks_.make_hello();
    hello.set_protocol_version(proto::kControlVersion);
    hello.set_generation(generation_.value);
    if (!options_.shared_key.empty()) {
      hello.set_authentication(hello_proof(options_.shared_key, challenge.nonce(), hello));
    }
    phase_ = Phase::kWelcome;
    connection_->send(message);
  }

  void on_welcome(const control::Welcome& welcome) {
    if (!welcome.admitted()) {
      refuse({.reason = welcome.reason().empty() ? "the router gave no reason" : welcome.reason(),
              .lasting = welcome.lasting()},
             ErrorCode::kMismatch);
      return;
    }
    phase_ = Phase::kAdmitted;
    failures_ = 0;
    refusal_.reset();
    connection_->admit();
    deps_.log.info("router_joined", {{"router", connection_->remote()}});
    callbacks_.on_admitted(welcome);
  }

  void refuse(Refusal refusal, ErrorCode code, std::string_view label = {}) {
    refusal_ = std::move(refusal);
    connection_->close(make_error(code, refusal_->reason), label);
  }

  void reject(const std::string& what, std::string_view label) {
    connection_->close(make_error(ErrorCode::kCorruptData, connection_->remote() + " " + what),
                       label);
  }

  void on_closed(const Error& reason) {
    const bool was_admitted = phase_ == Phase::kAdmitted;
    connection_.reset();
    phase_ = Phase::kWaiting;
    if (was_admitted) {
      deps_.log.warning("router_lost", reason);
      schedule();
      callbacks_.on_disconnected(reason);
    } else if (refusal_) {
      const Refusal refusal = *std::exchange(refusal_, std::nullopt);
      deps_.log.error("router_refused_node",
                      {{"reason", refusal.reason}, {"lasting", refusal.lasting}});
      failures_ = 100;  // not soon: somebody has to change something first
      schedule();
      if (callbacks_.on_refused) callbacks_.on_refused(refusal);
    } else {
      give_up(reason.detail);
    }
  }

  // An attempt ended before it was answered.
  void give_up(const std::string& why) {
    // Once per outage in full; later tries only when somebody wants the details.
    const LogLevel level = failures_ == 0 ? LogLevel::kWarning : LogLevel::kDebug;
    deps_.log.log(level, "router_unreachable",
                  {{"router", format_host_port(address_.host, address_.port)}, {"error", why}});
    ++failures_;
    if (connection_) connection_->detach_and_close();
    connection_.reset();
    resolver_.cancel();
    error_code ignored;
    socket_.close(ignored);
    schedule();
    if (callbacks_.on_unreachable) callbacks_.on_unreachable(why);
  }

  // Dials again after min(first * 2^failures, longest), of which a random half is left out so that
  // nodes do not come back all at once.
  void schedule() {
    if (stopped_) return;
    phase_ = Phase::kWaiting;
    const auto doublings = std::min<uint32_t>(failures_, 16);
    const Duration pause = std::min<Duration>(kLongestPause, kFirstPause * (1 << doublings));
    const double share = std::uniform_real_distribution<double>(0.5, 1.0)(random_);
    timer_.expires_after(from_seconds(to_seconds(pause) * share));
    timer_.async_wait([self = weak_from_this(), attempt = ++attempt_](const error_code& error) {
      const auto client = self.lock();
      if (client && !error && client->attempt_ == attempt) client->dial();
    });
  }

  const HostPort address_;
  const Generation generation_;
  const ControlOptions options_;
  const Callbacks callbacks_;
  const ControlDeps deps_;
  ControlMetrics metrics_;
  Counter reconnects_;
  tcp::resolver resolver_;
  tcp::socket socket_;  // while connecting
  asio::steady_timer timer_;
  std::minstd_rand random_;
  std::shared_ptr<FramedConnection> connection_;
  Phase phase_ = Phase::kWaiting;
  uint64_t attempt_ = 0;  // handlers of an earlier one are ignored
  uint32_t failures_ = 0;
  std::optional<Refusal> refusal_;  // of this attempt, until its connection has closed
  bool stopped_ = false;
};

// What the owner holds; pending handlers hold the client itself for no longer than they must.
class ClientHandle final : public ControlClient {
 public:
  explicit ClientHandle(std::shared_ptr<DialingClient> client) : client_(std::move(client)) {}
  ~ClientHandle() override { client_->shut_down(); }
  bool send(const control::ToRouter& message) override { return client_->send(message); }
  bool admitted() const override { return client_->admitted(); }

 private:
  std::shared_ptr<DialingClient> client_;
};

}  // namespace

Result<std::unique_ptr<ControlClient>> ControlClient::create(const std::string& address,
                                                             Generation generation,
                                                             ControlOptions options,
                                                             Callbacks callbacks,
                                                             ControlDeps deps) {
  TANDEM_CHECK(generation != Generation{}, "a process has a generation");
  TANDEM_ASSIGN(HostPort parsed, parse_host_port(address));
  auto client = std::make_shared<DialingClient>(std::move(parsed), generation, std::move(options),
                                                std::move(callbacks), deps);
  client->dial();
  return std::unique_ptr<ControlClient>(std::make_unique<ClientHandle>(std::move(client)));
}

}  // namespace tandem

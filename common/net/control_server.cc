#include <boost/asio/ip/tcp.hpp>
#include <map>

#include "common/config/units.h"
#include "common/net/control_auth.h"
#include "common/net/control_channel.h"
#include "common/net/framed_connection.h"
#include "common/net/gate.h"
#include "common/net/io_thread.h"
#include "common/net/listen.h"
#include "common/proto/control.pb.h"
#include "common/proto/versions.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct Session {
  std::shared_ptr<FramedConnection> connection;
  std::string nonce;
  std::string node;  // from its Hello
  bool admitted = false;
};

class TcpControlServer final : public ControlServer {
 public:
  TcpControlServer(tcp::acceptor acceptor, Generation generation, ControlOptions options,
                   Callbacks callbacks, ControlDeps deps)
      : acceptor_(std::move(acceptor)),
        pause_(acceptor_.get_executor()),
        generation_(generation),
        options_(std::move(options)),
        callbacks_(std::move(callbacks)),
        deps_(deps),
        metrics_(deps.metrics),
        open_sessions_(deps.metrics.gauge("tandem_control_sessions", "Admitted control sessions")) {
    error_code error;
    const auto endpoint = acceptor_.local_endpoint(error);
    port_ = error ? uint16_t{0} : endpoint.port();
    accept();
  }

  ~TcpControlServer() override {
    *alive_ = false;
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
    for (auto& [id, session] : sessions_) session.connection->detach_and_close();
  }

  uint16_t port() const override { return port_; }

  bool send(SessionId id, const control::ToNode& message) override {
    const auto it = sessions_.find(id);
    return it != sessions_.end() && it->second.admitted && it->second.connection->send(message);
  }

  void close(SessionId id, std::string reason) override {
    const auto it = sessions_.find(id);
    if (it == sessions_.end()) return;
    it->second.connection->close(make_error(ErrorCode::kCancelled, std::move(reason)));
  }

 private:
  void accept() {
    acceptor_.async_accept([this, alive = alive_](const error_code& error, tcp::socket socket) {
      if (!*alive || error == asio::error::operation_aborted) return;
      if (error) {
        // Out of descriptors and the like: not this peer's fault, and better in a while.
        deps_.log.warning("control_accept_failed", {{"error", error.message()}});
        pause_.expires_after(std::chrono::milliseconds(200));
        pause_.async_wait([this, alive](const error_code& cancelled) {
          if (*alive && !cancelled) accept();
        });
        return;
      }
      welcome_stranger(std::move(socket));
      accept();
    });
  }

  void welcome_stranger(tcp::socket socket) {
    if (sessions_.size() >= options_.max_sessions) {
      metrics_.rejected.with({"too_many"}).add();
      return;  // closes the socket
    }
    const SessionId id(++last_id_);
    Session& session = sessions_[id];
    session.nonce = random_bytes(kNonceBytes);
    session.connection = std::make_shared<FramedConnection>(std::move(socket), generation_,
                                                            options_, deps_.clock, metrics_);
    session.connection->start(
        {.on_payload = [this, id](std::string_view payload) { on_payload(id, payload); },
         .on_closed = [this, id](const Error& reason) { on_closed(id, reason); }});
    control::ToNode message;
    control::Challenge& challenge = *message.mutable_challenge();
    challenge.set_protocol_version(proto::kControlVersion);
    challenge.set_nonce(session.nonce);
    challenge.set_authentication_required(!options_.shared_key.empty());
    challenge.set_router_generation(generation_.value);
    session.connection->send(message);
  }

  void on_payload(SessionId id, std::string_view payload) {
    const auto it = sessions_.find(id);
    if (it == sessions_.end()) return;
    Session& session = it->second;
    control::ToRouter message;
    if (!message.ParseFromArray(payload.data(), static_cast<int>(payload.size())) ||
        message.message_case() == control::ToRouter::MESSAGE_NOT_SET) {
      reject(session, ErrorCode::kCorruptData, "sent a message that does not parse", "bad_message");
    } else if (message.has_hello() == session.admitted) {
      reject(session, ErrorCode::kCorruptData,
             session.admitted ? "introduced itself twice" : "sent something before its Hello",
             "unexpected_message");
    } else if (message.has_hello()) {
      on_hello(id, session, message.hello());
    } else {
      callbacks_.on_message(id, std::move(message));
    }
  }

  void on_hello(SessionId id, Session& session, const control::Hello& hello) {
    control::ToNode answer;
    control::Welcome& welcome = *answer.mutable_welcome();
    Status good = check_hello(hello, session.nonce, options_.shared_key);
    if (good && hello.generation() != session.connection->peer_generation().value) {
      good = fail(ErrorCode::kInvalidArgument, "Hello and its frame carry different generations",
                  "generation");
    }
    const std::string remote = session.connection->remote();
    std::string label = "refused";
    if (good) {
      welcome = callbacks_.on_hello(id, hello, remote);
    } else {
      welcome.set_reason(good.error().detail);
      welcome.set_lasting(true);
      if (good.error().code == ErrorCode::kUnauthenticated) label = "unauthenticated";
    }
    // The callback may have closed any session, this one included.
    const auto it = sessions_.find(id);
    if (it == sessions_.end() || it->second.connection->closed()) return;
    welcome.set_router_generation(generation_.value);
    session.connection->send(answer);
    if (welcome.admitted()) {
      session.admitted = true;
      session.node = hello.node_id();
      session.connection->admit();
      open_sessions_.add(1);
      return;
    }
    metrics_.rejected.with({label}).add();
    deps_.log.warning(
        "node_refused",
        {{"node", hello.node_id()}, {"remote", remote}, {"reason", welcome.reason()}});
    session.connection->close_after_flush(make_error(ErrorCode::kMismatch, welcome.reason()));
  }

  void reject(Session& session, ErrorCode code, const std::string& what, std::string_view label) {
    session.connection->close(make_error(code, session.connection->remote() + " " + what), label);
  }

  void on_closed(SessionId id, const Error& reason) {
    const auto it = sessions_.find(id);
    if (it == sessions_.end()) return;
    const bool admitted = it->second.admitted;
    deps_.log.info("control_session_closed", {{"node", it->second.node},
                                              {"remote", it->second.connection->remote()},
                                              {"reason", reason.detail}});
    sessions_.erase(it);
    if (!admitted) return;
    open_sessions_.add(-1);
    callbacks_.on_closed(id, reason);
  }

  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  const Generation generation_;
  const ControlOptions options_;
  const Callbacks callbacks_;
  const ControlDeps deps_;
  ControlMetrics metrics_;
  Gauge open_sessions_;
  uint16_t port_ = 0;
  uint64_t last_id_ = 0;
  std::map<SessionId, Session> sessions_;  // nodes of a map stay where they are
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for handlers that outlive this
};

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::create(const std::string& host, uint16_t port,
                                                             Generation router_generation,
                                                             ControlOptions options,
                                                             Callbacks callbacks,
                                                             ControlDeps deps) {
  TANDEM_ASSIGN(tcp::acceptor acceptor, listen_on(deps.io.context(), host, port));
  return std::unique_ptr<ControlServer>(std::make_unique<TcpControlServer>(
      std::move(acceptor), router_generation, std::move(options), std::move(callbacks), deps));
}

Generation random_generation() {
  uint64_t value = 0;
  while (value == 0) {
    const std::string bytes = random_bytes(sizeof value);
    for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  }
  return Generation(value);
}

}  // namespace tandem

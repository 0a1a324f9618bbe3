#include "common/net/async_http_client.h"

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <charconv>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "common/config/units.h"
#include "common/net/io_thread.h"

namespace tandem {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using beast::error_code;

struct Target {
  bool tls = false;
  std::string host;
  uint16_t port = 0;
  std::string prefix;  // without a final slash

  [[nodiscard]] std::string authority() const { return format_host_port(host, port); }
};

Result<Target> parse_url(const std::string& url) {
  const auto bad = [&url](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument,
                "'" + url + "' " + why + "; expected http://host:port or https://host:port", "url");
  };
  Target target;
  std::string_view rest = url;
  if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
    target.tls = true;
  } else {
    return bad("does not begin with http:// or https://");
  }
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    target.prefix = rest.substr(slash);
    while (target.prefix.ends_with('/')) target.prefix.pop_back();
    rest = rest.substr(0, slash);
  }
  if (rest.find('@') != std::string_view::npos) return bad("carries credentials: use an API key");
  const size_t bracket = rest.rfind(']');
  const size_t colon = rest.rfind(':');
  std::string_view port = target.tls ? "443" : "80";
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    port = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  target.host = rest;
  if (target.host.empty()) return bad("names no host");
  // getaddrinfo() takes a larger number for what its lowest 16 bits say.
  const char* const end = port.data() + port.size();
  const auto [last, error] = std::from_chars(port.data(), end, target.port);
  if (error != std::errc() || last != end || target.port == 0) return bad("has a bad port");
  return target;
}

constexpr int kMostHeads = 16;  // of one answer

// 100 and 103 come before the answer itself, whenever a server or a proxy likes; 101 is one.
bool is_interim(unsigned status) { return status >= 100 && status < 200 && status != 101; }

// One connection. The TLS layer is there when the URL says so.
struct Connection {
  using Plain = beast::tcp_stream;
  using Secure = beast::ssl_stream<beast::tcp_stream>;

  explicit Connection(asio::io_context& io) : plain(std::in_place, io) {}
  Connection(asio::io_context& io, asio::ssl::context& context)
      : secure(std::in_place, io, context) {}

  [[nodiscard]] beast::tcp_stream& tcp() { return secure ? secure->next_layer() : *plain; }

  std::optional<Plain> plain;
  std::optional<Secure> secure;
  beast::flat_buffer buffer;
  bool used = false;  // has carried a whole exchange before
};

// Leaves the coroutines of a call with more than an error code says.
struct CallFailed {
  Error error;
};

[[noreturn]] void handshake_failed(const Target& target, SSL* tls, const error_code& error) {
  const std::string place = target.authority() + ": ";
  const bool refused =
      error.category() == asio::error::get_ssl_category() &&
      ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_CERTIFICATE_VERIFY_FAILED;
  if (refused) {
    const long why = SSL_get_verify_result(tls);
    throw CallFailed{make_error(ErrorCode::kUnauthenticated,
                                place + "the server's certificate is not trusted: " +
                                    (why == X509_V_OK || why == X509_V_ERR_APPLICATION_VERIFICATION
                                         ? "it is not for " + target.host
                                         : std::string(X509_verify_cert_error_string(why))))};
  }
  if (error == beast::error::timeout) throw boost::system::system_error(error);
  throw CallFailed{make_error(
      ErrorCode::kTransport,
      place + "no TLS connection: " + error.message() + "; a server without TLS wants http://")};
}

enum class Attempt : uint8_t { kDone, kStale };  // kStale: a reused connection was closed already

class PooledClient final : public AsyncHttpClient {
 public:
  PooledClient(IoThread& io, Target target, tcp::resolver::results_type endpoints,
               AsyncHttpOptions options)
      : state_(std::make_shared<State>(io.context(), std::move(target), std::move(endpoints),
                                       options)) {}
  ~PooledClient() override {
    state_->closed = true;
    for (const auto& connection : state_->busy) connection->tcp().cancel();
    state_->idle.clear();
  }
  PooledClient(const PooledClient&) = delete;
  PooledClient& operator=(const PooledClient&) = delete;

  Status configure_tls() {
    if (!state_->target.tls) return {};
    error_code error;
    if (state_->options.verify_certificate) {
      state_->tls.set_default_verify_paths(error);
      state_->tls.set_verify_mode(asio::ssl::verify_peer);
      state_->tls.set_verify_callback(asio::ssl::host_name_verification(state_->target.host));
    } else {
      state_->tls.set_verify_mode(asio::ssl::verify_none);
    }
    if (error) return fail(ErrorCode::kIo, "TLS trust store: " + error.message());
    return {};
  }

  void send(HttpCall call, HttpCallEvents events) override {
    asio::co_spawn(state_->io, run(state_, std::move(call), std::move(events)), asio::detached);
  }

 private:
  // Outlives the client for as long as a coroutine still unwinds.
  struct State {
    State(asio::io_context& context, Target t, tcp::resolver::results_type e, AsyncHttpOptions o)
        : io(context), target(std::move(t)), endpoints(std::move(e)), options(o) {}
    asio::io_context& io;
    Target target;
    tcp::resolver::results_type endpoints;
    AsyncHttpOptions options;
    asio::ssl::context tls{asio::ssl::context::tls_client};
    std::vector<std::unique_ptr<Connection>> idle;
    std::list<Connection*> busy;
    bool closed = false;
  };
  using StatePtr = std::shared_ptr<State>;

  static asio::awaitable<void> run(StatePtr state, HttpCall call, HttpCallEvents events) {
    Status outcome;
    try {
      Attempt attempt = Attempt::kStale;
      while (attempt == Attempt::kStale) attempt = co_await exchange(*state, call, events);
    } catch (const CallFailed& failed) {
      outcome = fail(failed.error);
    } catch (const boost::system::system_error& error) {
      outcome = fail(error.code() == beast::error::timeout ? ErrorCode::kDeadlineExceeded
                                                           : ErrorCode::kTransport,
                     state->target.authority() + ": " + error.code().message());
    } catch (const std::exception& error) {
      outcome = fail(ErrorCode::kInternal, error.what());
    }
    if (!state->closed && events.on_end) events.on_end(std::move(outcome));
  }

  static asio::awaitable<std::unique_ptr<Connection>> connect(State& state) {
    auto connection = state.target.tls ? std::make_unique<Connection>(state.io, state.tls)
                                       : std::make_unique<Connection>(state.io);
    connection->tcp().expires_after(state.options.connect_timeout);
    co_await connection->tcp().async_connect(state.endpoints, asio::use_awaitable);
    connection->tcp().socket().set_option(tcp::no_delay(true));
    if (connection->secure) {
      SSL_set_tlsext_host_name(connection->secure->native_handle(), state.target.host.c_str());
      error_code error;
      co_await connection->secure->async_handshake(
          asio::ssl::stream_base::client, asio::redirect_error(asio::use_awaitable, error));
      if (error) handshake_failed(state.target, connection->secure->native_handle(), error);
    }
    co_return connection;
  }

  static asio::awaitable<Attempt> exchange(State& state, const HttpCall& call,
                                           const HttpCallEvents& events) {
    std::unique_ptr<Connection> connection;
    if (!state.idle.empty()) {
      connection = std::move(state.idle.back());
      state.idle.pop_back();
    } else {
      connection = co_await connect(state);
    }
    const auto place = state.busy.insert(state.busy.end(), connection.get());
    struct Leave {
      State& state;
      std::list<Connection*>::iterator place;
      ~Leave() { state.busy.erase(place); }
    };
    bool keep = false;
    Attempt attempt = Attempt::kDone;
    {
      const Leave leave{state, place};
      attempt = connection->secure
                    ? co_await talk(*connection->secure, *connection, state, call, events, keep)
                    : co_await talk(*connection->plain, *connection, state, call, events, keep);
    }
    if (keep && !state.closed && state.idle.size() < state.options.max_idle_connections) {
      connection->used = true;
      connection->tcp().expires_never();
      state.idle.push_back(std::move(connection));
    }
    co_return attempt;
  }

  template <typename Stream>
  static asio::awaitable<Attempt> talk(Stream& stream, Connection& connection, State& state,
                                       const HttpCall& call, const HttpCallEvents& events,
                                       bool& keep) {
    http::request<http::string_body> request;
    request.method_string(call.method);
    request.target(state.target.prefix + call.target);
    request.set(http::field::host, state.target.authority());
    request.set(http::field::user_agent, "tandem");
    for (const auto& [name, value] : call.headers) request.set(name, value);
    request.body() = call.body;
    request.prepare_payload();

    error_code error;
    connection.tcp().expires_after(state.options.silence_timeout);
    co_await http::async_write(stream, request, asio::redirect_error(asio::use_awaitable, error));
    std::optional<http::response_parser<http::buffer_body>> parser;
    for (int heads = 0; !error && heads < kMostHeads; ++heads) {
      parser.emplace().body_limit(boost::none);
      co_await http::async_read_header(stream, connection.buffer, *parser,
                                       asio::redirect_error(asio::use_awaitable, error));
      if (!error && !is_interim(parser->get().result_int())) break;
    }
    if (error) {
      const bool gone = error == http::error::end_of_stream || error == asio::error::eof ||
                        error == asio::error::connection_reset || error == asio::error::broken_pipe;
      if (connection.used && gone) co_return Attempt::kStale;
      if (!gone) throw boost::system::system_error(error);
      throw CallFailed{
          make_error(ErrorCode::kTransport,
                     state.target.authority() + ": the server closed the connection unanswered (" +
                         error.message() + ")" +
                         (state.target.tls ? "" : "; a server with TLS wants https://"))};
    }
    report_head(*parser, state, events);
    co_await read_body(stream, connection, state, *parser, events);
    keep = parser->keep_alive();
    co_return Attempt::kDone;
  }

  static void report_head(const http::response_parser<http::buffer_body>& parser,
                          const State& state, const HttpCallEvents& events) {
    if (state.closed || !events.on_head) return;
    HttpHeaders headers;
    for (const auto& field : parser.get()) {
      headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
    }
    events.on_head(static_cast<int>(parser.get().result_int()), headers);
  }

  template <typename Stream>
  static asio::awaitable<void> read_body(Stream& stream, Connection& connection, State& state,
                                         http::response_parser<http::buffer_body>& parser,
                                         const HttpCallEvents& events) {
    std::array<char, 16384> chunk;
    while (!parser.is_done()) {
      auto& body = parser.get().body();
      body.data = chunk.data();
      body.size = chunk.size();
      connection.tcp().expires_after(state.options.silence_timeout);
      error_code error;
      co_await http::async_read_some(stream, connection.buffer, parser,
                                     asio::redirect_error(asio::use_awaitable, error));
      if (error && error != http::error::need_buffer) throw boost::system::system_error(error);
      const size_t got = chunk.size() - parser.get().body().size;
      if (got && !state.closed && events.on_data) events.on_data({chunk.data(), got});
    }
  }

  StatePtr state_;
};

}  // namespace

Result<std::unique_ptr<AsyncHttpClient>> AsyncHttpClient::create(IoThread& io,
                                                                 const std::string& url,
                                                                 AsyncHttpOptions options) {
  TANDEM_ASSIGN(Target target, parse_url(url));
  error_code error;
  tcp::resolver resolver(io.context());
  auto endpoints = resolver.resolve(target.host, std::to_string(target.port), error);
  if (error) {
    return fail(ErrorCode::kIo, "cannot resolve " + target.host + ": " + error.message(), "url");
  }
  auto client =
      std::make_unique<PooledClient>(io, std::move(target), std::move(endpoints), options);
  TANDEM_TRY(client->configure_tls());
  return client;
}

}  // namespace tandem

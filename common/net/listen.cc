#include "common/net/listen.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/ip/v6_only.hpp>

#include "common/config/units.h"
#include "common/net/can_listen.h"

namespace tandem {
namespace {

using boost::asio::ip::tcp;

void set_int_option(tcp::socket& socket, int level, int name, int value) {
  // Best effort: a socket without the option works all the same.
  (void)::setsockopt(socket.native_handle(), level, name, &value, sizeof value);
}

enum class Go : uint8_t { kBind, kListen };

Result<tcp::acceptor> open_acceptor(boost::asio::io_context& context, const std::string& host,
                                    uint16_t port, Go go) {
  boost::system::error_code error;
  const std::string where = format_host_port(host, port);
  auto address = boost::asio::ip::make_address(host, error);
  if (error) {
    tcp::resolver resolver(context);
    const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
    if (error || found.empty()) {
      return fail(ErrorCode::kConfig,
                  "cannot listen on " + where + ": '" + host +
                      "' is neither an address nor a name that resolves",
                  "host");
    }
    address = found.begin()->endpoint().address();
  }
  const tcp::endpoint endpoint(address, port);
  tcp::acceptor acceptor(context);
  constexpr int kBacklog = 1024;
  const auto step = [&](auto&& action) {
    if (!error) action();
  };
  step([&] { acceptor.open(endpoint.protocol(), error); });
  step([&] { acceptor.set_option(tcp::acceptor::reuse_address(true), error); });
  if (address.is_v6() && address.is_unspecified()) {
    step([&] { acceptor.set_option(boost::asio::ip::v6_only(false), error); });
  }
  step([&] { acceptor.bind(endpoint, error); });
  if (go == Go::kListen) step([&] { acceptor.listen(kBacklog, error); });
  const std::string failed = "cannot listen on " + where + ": ";
  if (error == boost::asio::error::address_in_use) {
    return fail(ErrorCode::kConfig, failed + "another process does; stop it or choose another port",
                "port");
  }
  if (error == boost::asio::error::access_denied) {
    return fail(ErrorCode::kConfig, failed + "this user may not; choose a port from 1024 on",
                "port");
  }
  if (error.value() == EADDRNOTAVAIL) {
    return fail(ErrorCode::kConfig, failed + "this machine has no such address", "host");
  }
  if (error) return fail(ErrorCode::kIo, failed + error.message());
  return acceptor;
}

}  // namespace

Result<tcp::acceptor> listen_on(boost::asio::io_context& context, const std::string& host,
                                uint16_t port) {
  return open_acceptor(context, host, port, Go::kListen);
}

Status can_listen(const std::string& host, uint16_t port) {
  boost::asio::io_context context;
  const auto acceptor = open_acceptor(context, host, port, Go::kBind);
  return acceptor ? Status() : fail(acceptor.error());
}

void prepare_client_socket(tcp::socket& socket) {
  set_int_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_int_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_int_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_int_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_int_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_int_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
}

}  // namespace tandem

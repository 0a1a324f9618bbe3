#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <string>

#include "common/base/result.h"

namespace tandem {

// A listening socket on `host` (an address or a name) and `port` (0: any free one), accepting on
// `context`. Blocks for as long as a name takes to resolve: start-up only.
// Errors: kConfig, with `param` "host" or "port", where another address must be chosen: no address
// of this machine, or a port that is taken or not for this user. kIo otherwise.
[[nodiscard]] Result<boost::asio::ip::tcp::acceptor> listen_on(boost::asio::io_context& context,
                                                               const std::string& host,
                                                               uint16_t port);

// For a socket that was accepted: no delay, and a peer whose host vanished is found out within
// about a minute, whether we write to it or not.
void prepare_client_socket(boost::asio::ip::tcp::socket& socket);

}  // namespace tandem

// Bytes on the HTTP port, sent to a real connection over a socket pair in pieces whose size the
// first byte chooses. Whatever comes, the server answers in HTTP or closes, and hands on decent
// requests only.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/base/fd.h"
#include "common/base/utf8.h"
#include "common/net/http_connection.h"
#include "common/net/http_router.h"
#include "common/obs/metrics.h"

namespace {

using tandem::HttpRequest;
using tandem::HttpResponder;

constexpr uint64_t kMaxBody = 4096;

void echo(HttpRequest request, HttpResponder responder) {
  TANDEM_CHECK(request.body.size() <= kMaxBody, "no body is over the limit");
  TANDEM_CHECK(tandem::is_valid_utf8(request.path), "paths are text");
  for (const char c : request.path)
    TANDEM_CHECK(static_cast<unsigned char>(c) >= 0x20, "without control characters");
  if (request.method == "POST") {
    responder.start_stream(200, "text/plain");
    responder.write(request.body);
    responder.finish();
  } else {
    responder.respond({200, "text/plain", {{"X-Path", request.path}}, request.query});
  }
}

// Made once: what a server keeps while connections come and go.
struct World {
  World() {
    router.exact("GET", "/a", echo);
    router.exact("POST", "/a", echo);
    router.prefix("GET", "/p/", echo);
    settings.max_body = tandem::ByteSize{kMaxBody};
    settings.max_header = tandem::ByteSize{4096};
    shared.emplace(
        settings,
        [this](HttpRequest q, HttpResponder r) { router.handle(std::move(q), std::move(r)); },
        tandem::HttpServerDeps{clock, tandem::Logger(sink, tandem::LogLevel::kError), metrics});
  }
  tandem::HttpSettings settings;
  tandem::HttpRouter router;
  tandem::ManualClock clock;
  tandem::LogSink sink{tandem::Fd(::open("/dev/null", O_WRONLY | O_CLOEXEC)), clock};
  tandem::MetricsRegistry metrics;
  std::optional<tandem::HttpShared> shared;
};

void drain(int fd, std::string& out) {
  char buffer[16384];
  ssize_t n = 0;
  while ((n = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) > 0)
    out.append(buffer, static_cast<size_t>(n));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World world;
  if (size == 0) return 0;
  const size_t step = data[0] == 0 ? 65536 : data[0];
  std::string_view input(reinterpret_cast<const char*>(data + 1), size - 1);
  int ends[2];
  TANDEM_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "a socket pair");
  const tandem::Fd peer(ends[0]);
  boost::asio::io_context loop(1);
  tandem::HttpWorker worker(loop, *world.shared);
  boost::asio::ip::tcp::socket socket(loop);
  socket.assign(boost::asio::ip::tcp::v4(), ends[1]);
  TANDEM_CHECK(world.shared->try_add(), "earlier connections have ended");
  worker.serve(std::move(socket));
  std::string answer;
  while (!input.empty()) {
    const ssize_t sent =
        ::send(peer.get(), input.data(), std::min(step, input.size()), MSG_DONTWAIT | MSG_NOSIGNAL);
    loop.poll();
    drain(peer.get(), answer);
    if (sent <= 0) break;  // closed, or reading paused on what was sent ahead
    input.remove_prefix(static_cast<size_t>(sent));
  }
  loop.poll();
  drain(peer.get(), answer);
  TANDEM_CHECK(answer.empty() || answer.starts_with("HTTP/1.1 "), "an answer is HTTP");
  worker.close_all();
  loop.restart();
  loop.poll();
  TANDEM_CHECK(world.shared->wait_until_none(tandem::Duration::zero()),
               "every connection is given back");
  return 0;
}

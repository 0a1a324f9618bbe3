#include "common/transport/direct/socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>

namespace tandem::transport {
namespace {

constexpr size_t kReadChunk = 64u << 10;
constexpr int kBacklog = 64;

std::string last_error() { return std::strerror(errno); }

// Returns the length that bind() and connect() want.
socklen_t fill(sockaddr_un& address, const std::string& name) {
  address = {};
  address.sun_family = AF_UNIX;
  // Abstract: a leading zero byte; gone with its owner, no file to clean up.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Fd make_socket() { return Fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

bool same_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         (peer.uid == geteuid() || peer.uid == 0);
}

}  // namespace

Result<Connection> Connection::open(const std::string& name) {
  Fd fd = make_socket();
  if (!fd) return fail(ErrorCode::kIo, "cannot create a socket: " + last_error());
  sockaddr_un address{};
  const socklen_t length = fill(address, name);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return fail(ErrorCode::kTransport, "the peer does not answer on its socket: " + last_error());
  }
  if (!same_user(fd.get())) {
    return fail(ErrorCode::kTransport, "the peer's socket belongs to another user");
  }
  return Connection(std::move(fd));
}

Status Connection::send(std::string_view message) {
  out_ += message;
  // Small ones go together, with the flush at the end of the thread's round.
  return queued() < kReadChunk ? Status() : flush();
}

Status Connection::flush() {
  while (wants_write()) {
    const ssize_t n =
        ::send(fd_.get(), out_.data() + out_sent_, out_.size() - out_sent_, MSG_NOSIGNAL);
    if (n > 0) {
      out_sent_ += static_cast<size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) break;
    return fail(ErrorCode::kTransport, "the connection to the peer broke: " + last_error());
  }
  if (!wants_write()) {
    out_.clear();
    out_sent_ = 0;
  }
  return {};
}

Status Connection::receive() {
  in_.erase(0, in_taken_);
  in_taken_ = 0;
  if (chunk_ == nullptr) chunk_ = std::make_unique<char[]>(kReadChunk);
  ssize_t n = 0;
  do {
    n = recv(fd_.get(), chunk_.get(), kReadChunk, 0);
  } while (n < 0 && errno == EINTR);
  if (n > 0) in_.append(chunk_.get(), static_cast<size_t>(n));
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))) return {};
  return fail(ErrorCode::kTransport,
              n == 0 ? "the peer is gone" : "the connection to the peer broke: " + last_error());
}

Result<Listener> Listener::open() {
  Listener listener;
  listener.fd_ = make_socket();
  if (!listener.fd_) return fail(ErrorCode::kIo, "cannot create a socket: " + last_error());
  std::random_device random;
  listener.name_ = "tandem-kv-";
  for (int i = 0; i < 4; ++i) listener.name_ += std::to_string(random());
  sockaddr_un address{};
  const socklen_t length = fill(address, listener.name_);
  if (bind(listener.fd_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener.fd_.get(), kBacklog) != 0) {
    return fail(ErrorCode::kIo, "cannot listen on a local socket: " + last_error());
  }
  return listener;
}

Fd Listener::accept(size_t& refused) {
  while (true) {
    Fd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd || same_user(fd.get())) return fd;
    ++refused;
  }
}

}  // namespace tandem::transport

#include "common/transport/direct/socket.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>

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

// Room for the one descriptor that a message may bring.
union Control {
  cmsghdr header;  // for its alignment
  char bytes[CMSG_SPACE(sizeof(int))];
};

ssize_t send_some(int fd, std::string_view bytes, int attached) {
  if (attached < 0) return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof(control.bytes);
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &attached, sizeof(int));
  return sendmsg(fd, &message, MSG_NOSIGNAL);
}

// Descriptors beyond the first do not fit, and the kernel closes them.
ssize_t receive_some(int fd, std::span<char> room, Fd& attached) {
  iovec part{room.data(), room.size()};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof(control.bytes);
  const ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (n <= 0) return n;
  const cmsghdr* const head = CMSG_FIRSTHDR(&message);
  if (head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
      head->cmsg_len == CMSG_LEN(sizeof(int))) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(head), sizeof(int));
    attached.reset(received);
  }
  return n;
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

Status Connection::send(std::string_view message, Fd attached) {
  if (out_attached_) return fail(ErrorCode::kInternal, "a descriptor waits already");
  out_attached_ = std::move(attached);
  out_attached_at_ = out_.size();
  return send(message);
}

Status Connection::flush() {
  while (wants_write()) {
    std::string_view bytes = std::string_view(out_).substr(out_sent_);
    const bool attach = out_attached_ && out_sent_ == out_attached_at_;
    if (out_attached_ && !attach) bytes = bytes.substr(0, out_attached_at_ - out_sent_);
    const ssize_t n = send_some(fd_.get(), bytes, attach ? out_attached_.get() : -1);
    if (n > 0) {
      if (attach) out_attached_.reset();
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
    n = receive_some(fd_.get(), {chunk_.get(), kReadChunk}, attached_);
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

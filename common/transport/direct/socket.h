#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace tandem::transport {

// A non-blocking stream between two processes of this host and user. Transport thread only.
class Connection {
 public:
  Connection() = default;
  explicit Connection(Fd fd) : fd_(std::move(fd)) {}
  // `name` in the abstract namespace. Refused at once when nobody listens there.
  [[nodiscard]] static Result<Connection> open(const std::string& name);

  // Queues; flush() writes what fits.
  [[nodiscard]] Status send(std::string_view message);
  // A message that a descriptor goes with; one may be under way at a time.
  [[nodiscard]] Status send(std::string_view message, Fd attached);
  [[nodiscard]] Status flush();
  // Appends what has come to input(). An error: the peer hung up or broke.
  [[nodiscard]] Status receive();
  [[nodiscard]] std::string_view input() const { return std::string_view(in_).substr(in_taken_); }
  void consume(size_t bytes) { in_taken_ += bytes; }
  // The descriptor that came with what was read last; it is here no later than its message.
  [[nodiscard]] Fd take_attached() { return std::move(attached_); }

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool wants_write() const { return out_sent_ < out_.size(); }
  [[nodiscard]] size_t queued() const { return out_.size() - out_sent_; }

 private:
  Fd fd_;
  std::string out_;
  size_t out_sent_ = 0;
  Fd out_attached_;  // goes with the byte at out_attached_at_ of out_
  size_t out_attached_at_ = 0;
  std::string in_;
  size_t in_taken_ = 0;
  Fd attached_;
  std::unique_ptr<char[]> chunk_;
};

class Listener {
 public:
  // Under a random name.
  [[nodiscard]] static Result<Listener> open();
  // Empty fd: nobody waits. Peers of another user are turned away (and counted in `refused`).
  [[nodiscard]] Fd accept(size_t& refused);
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  Fd fd_;
  std::string name_;
};

}  // namespace tandem::transport

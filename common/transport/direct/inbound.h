#pragma once

#include <deque>
#include <vector>

#include "common/transport/direct/direct_core.h"
#include "common/transport/direct/socket.h"

namespace tandem::transport {

// One sender's connection: greets it, fetches what it offers into the pages of open receives and
// answers. Transport thread only.
class Inbound {
 public:
  Inbound(DirectCore& core, Connection connection)
      : core_(core), connection_(std::move(connection)), since_(core.clock.now()) {}
  ~Inbound();  // waits for copies under way

  // As in Outbound.
  [[nodiscard]] Status read();
  [[nodiscard]] Status advance(bool& any);

  [[nodiscard]] Connection& connection() { return connection_; }
  // Not while all that it waits for are checksums: a message brings them.
  [[nodiscard]] bool busy() const {
    return begun_ < arrivals_.size() || (begun_ > 0 && arrivals_.front().summed) ||
           (link_ != nullptr && link_->busy());
  }
  // Its offers wait: read no more for now.
  [[nodiscard]] bool full() const { return arrivals_.size() >= kMostArrivals; }
  // Whose frames these are; empty before its hello.
  [[nodiscard]] std::optional<Generation> sender() const { return sender_; }
  [[nodiscard]] TimePoint since() const { return since_; }
  [[nodiscard]] std::string detail() const { return link_ ? link_->detail() : std::string(); }

 private:
  static constexpr size_t kMostArrivals = 1024;
  struct Arrival {
    proto::KvFrameHeader header;
    std::vector<Piece> pieces;
    std::vector<uint64_t> checksums;  // as its sender has them
    std::vector<uint64_t> copied;     // as they came
    bool summed = false;              // checksums are known, or will never be
    uint64_t id = 0;                  // the link's
    bool wanted = true;               // false: only fetched because its bytes are on their way
    bool copying = false;             // ticket is under way
    bool misfit = false;              // the offer's pieces are not those of the frame
    PageCopier::Ticket ticket = 0;
  };
  Status handle_input();
  Status on_message(const MessageView& message);
  Status on_hello(std::string_view body);
  Status on_frame(const FrameView& frame);
  Status on_offer(const FrameView& frame);
  Status accept(const FrameView& frame, bool wanted);
  Status on_sums(const FrameView& frame);
  Status grant_waiting(bool& any);
  Status begin_arrived(bool& any);
  Status finish_copied(bool& any);
  Status answer(const std::optional<Answer>& answer);

  DirectCore& core_;
  Connection connection_;
  TimePoint since_;
  std::optional<Generation> sender_;
  std::unique_ptr<Link> link_;
  std::deque<Arrival> arrivals_;
  size_t granted_ = 0;  // of arrivals_, from the front
  size_t begun_ = 0;    // of these, from the front
  size_t summed_ = 0;   // of arrivals_, from the front
};

}  // namespace tandem::transport

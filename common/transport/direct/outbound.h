#pragma once

#include <deque>
#include <string>
#include <vector>

#include "common/transport/direct/direct_core.h"
#include "common/transport/direct/socket.h"
#include "common/transport/threaded_transport.h"

namespace tandem::transport {

// The way to one receiver: greets it, checks (and gathers) posts in the background and offers them
// in the order of posting. Transport thread only.
class Outbound {
 public:
  // `address` was parsed. Fails when nobody listens there.
  [[nodiscard]] static Result<std::unique_ptr<Outbound>> open(DirectCore& core,
                                                              const std::string& address);
  ~Outbound();  // waits for copies under way

  void post(KvPost post) { pending_.push_back(std::move(post)); }
  [[nodiscard]] Status tell(const SendTable::Route& route, proto::KvFrameKind kind,
                            const Error& error);
  // Reads what came and does what can be done. An error: the peer is lost.
  [[nodiscard]] Status read();
  [[nodiscard]] Status advance(bool& any);
  // Posts that left the queue since the last call; for the transport's count of queued posts.
  [[nodiscard]] size_t take_started() { return std::exchange(started_, 0); }

  [[nodiscard]] Connection& connection() { return connection_; }
  [[nodiscard]] bool busy() const {
    return !staging_.empty() || (link_ != nullptr && link_->busy()) ||
           (link_ != nullptr && !link_->gives_back() && !pending_.empty());
  }
  [[nodiscard]] bool stands() const { return stands_; }  // the link was ready once
  [[nodiscard]] bool idle() const { return pending_.empty() && staging_.empty(); }
  [[nodiscard]] size_t pending() const { return pending_.size(); }
  // Who answered; empty before its hello.
  [[nodiscard]] std::optional<Generation> receiver() const { return receiver_; }
  // Empty until the link stands.
  [[nodiscard]] std::string detail() const { return link_ ? link_->detail() : std::string(); }
  uint64_t last_used = 0;

 private:
  struct Staging {
    KvPost post;
    std::shared_ptr<const SendTable::Route> route;
    std::vector<Piece> pieces;
    Link::Staged staged;
    PageCopier::Ticket ticket = 0;
  };
  Outbound(DirectCore& core, Connection connection)
      : core_(core), connection_(std::move(connection)) {}
  Status on_message(const MessageView& message);
  Status on_hello(std::string_view body);
  Status stage(bool& any);
  Status stage_pages(KvPost&& post, std::shared_ptr<const SendTable::Route> route, bool& room);
  Status offer(bool& any);
  Status send_offer(const Staging& staging, std::vector<uint64_t> sums);  // none: they follow
  Status send_pages(MessageKind kind, const Staging& staging, std::string_view payload);

  DirectCore& core_;
  Connection connection_;
  std::string own_hello_;
  std::optional<Generation> receiver_;
  std::unique_ptr<Link> link_;
  std::deque<KvPost> pending_;
  std::deque<Staging> staging_;
  size_t started_ = 0;
  bool stands_ = false;
  bool paused_ = true;  // nothing was left to do
};

}  // namespace tandem::transport

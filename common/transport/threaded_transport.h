#pragma once

#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "common/transport/receive_table.h"
#include "common/transport/send_table.h"
#include "common/transport/wake_fd.h"

namespace tandem::transport {

// Shared by transports that lead to the same pages: a transfer is opened once, whichever way its
// frames will come. Any thread.
struct ReceiveSide {
  explicit ReceiveSide(const TransportDeps& deps) : receives(deps, counters) {}
  AtomicCounters counters;  // of both directions
  ReceiveTable receives;
};

// What was posted of one transfer and is still to be sent: one frame.
struct KvPost {
  TransferId id = {};
  proto::KvFrameKind kind = proto::KvFrameKind::kData;  // data, tail, commit
  uint32_t layer = 0;
  uint32_t first_page = 0;
  std::vector<std::span<const std::byte>> pages;  // a tail: the whole tail page
  std::string commit;
};

// A transport with a thread of its own, which alone speaks to peers: what other threads call is
// checked at once and becomes a command that the thread takes from a bounded inbox.
//
// Final classes call start_thread() once they are made and stop_thread() first in their destructor:
// the thread calls their functions.
class ThreadedTransport : public Transport {
 public:
  // What connections to other processes go over ("tcp"); empty until there is one.
  [[nodiscard]] std::string links() const;

  [[nodiscard]] TransportCounters counters() const final { return counters_.snapshot(); }
  [[nodiscard]] Status open_receive(ReceivePlan plan) final;
  void close_receive(TransferId id) final { receives_.close(id); }
  void fence(Generation sender) final;
  void readmit(Generation sender) final { receives_.readmit(sender); }
  void meet(const std::string& name, const std::string& receiver) final;
  [[nodiscard]] Status open_send(const SendSpec& spec) final;
  [[nodiscard]] Status post_pages(TransferId id, uint32_t layer, uint32_t first_page,
                                  std::span<const std::span<const std::byte>> pages) final;
  [[nodiscard]] Status post_tail(TransferId id, uint32_t layer,
                                 std::span<const std::byte> page) final;
  [[nodiscard]] Status post_commit(TransferId id, std::string commit) final;
  void cancel_send(TransferId id, std::string reason) final;

 protected:
  // Frames aim at `frame_bytes` of pages. `side` null: its own.
  ThreadedTransport(const TransportDeps& deps, std::shared_ptr<ReceiveSide> side,
                    size_t frame_bytes);
  // Returns what set_up() did.
  [[nodiscard]] Status start_thread();
  void stop_thread();

  // Any thread: a receiver's address that frames cannot be sent to is refused at once.
  [[nodiscard]] virtual Status check_address(const std::string& address) const = 0;

  // ---- the transport's thread ----
  // Whether the connection to that receiver has ever been used or ready: it has been met.
  [[nodiscard]] virtual bool has_stood(const std::string& address) const = 0;
  [[nodiscard]] virtual Status set_up() = 0;
  virtual void loop(const std::stop_token& stop) = 0;  // after a good set_up()
  virtual void tear_down() = 0;
  // An error ends the transfer that asked for it, if one did.
  [[nodiscard]] virtual Status connect(const std::string& address) = 0;
  // Of an open transfer to that address. Whatever becomes of it, forget_posts() is told.
  virtual void send_post(KvPost post, const std::string& address) = 0;
  virtual void tell(const SendTable::Route& route, proto::KvFrameKind kind, const Error& error) = 0;

  // True if there was anything.
  bool drain_inbox();
  void end_send(TransferId id, const Error& error, proto::KvFrameKind kind);
  void sweep_transfers(TimePoint now);
  void forget_posts(size_t count);  // left the queues
  void set_links(std::string text);
  // Of a connection to a receiver: whoever was to be met has been, or will not be.
  void stands(const std::string& address) { introduced_.erase(address); }
  void cannot_be_met(const std::string& address, const Error& why);
  [[nodiscard]] bool introducing() const { return !introduced_.empty(); }

  const Clock& clock_;
  const std::shared_ptr<ReceiveSide> side_;
  AtomicCounters& counters_ = side_->counters;
  ReceiveTable& receives_ = side_->receives;
  SendTable sends_;
  WakeFd wake_;  // from start_thread() on

 private:
  struct Connect {
    TransferId id;
  };
  struct Meet {
    std::string name;
    std::string address;
  };
  struct End {  // cancel_send, or a post that failed
    TransferId id;
    Error error;
    proto::KvFrameKind kind;
  };
  struct Fence {
    Generation sender;
  };
  using Command = std::variant<Connect, Meet, KvPost, End, Fence>;

  // ---- any thread ----
  void push(Command command);
  Status checked(TransferId id, Status status);
  Status post(KvPost work);
  // ---- the transport's thread ----
  void run(const std::stop_token& stop, std::promise<Status>& started);
  void handle(Connect&& c);
  void handle(Meet&& m);
  void handle(KvPost&& p);
  void handle(End&& e) { end_send(e.id, e.error, e.kind); }
  void handle(Fence&& f) { receives_.end_shut_out(f.sender); }

  const TransportLimits limits_;
  const size_t frame_bytes_;
  mutable std::mutex mutex_;
  std::deque<Command> inbox_;  // posts bounded by max_queued_frames, the rest by transfers
  size_t queued_posts_ = 0;    // in inbox_ and in every peer's queue
  std::string links_;
  TransportEvents& events_;
  std::map<std::string, std::string> introduced_;  // the thread's: names by address
  std::jthread thread_;
};

}  // namespace tandem::transport

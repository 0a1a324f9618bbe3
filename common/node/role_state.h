#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/node/kv_store.h"
#include "common/node/recent_ids.h"
#include "common/proto/control.pb.h"

namespace tandem::node {

// What the insides of both schedulers have alike: how messages and ticks are taken, what counts as
// already ended, how a failure is reported. A role fills in the rest. Control thread only.
struct RoleState {
  using Send = std::function<void(control::ToRouter)>;
  enum class Report : uint8_t { kYes, kNo };  // whether the router is told

  explicit RoleState(Send send);
  virtual ~RoleState() = default;
  RoleState(const RoleState&) = delete;
  RoleState& operator=(const RoleState&) = delete;

  // Each event ends with settle().
  void on_message(const control::ToNode& message);
  void on_disconnected();
  void tick();
  void settle();

  void report_failure(RequestId request, TransferId transfer, const Error& error);
  // Of a request that goes away: whether its replays are recognised from now on.
  void remember_ended(RequestId request, TransferId transfer, uint64_t its_session, bool ok);
  [[nodiscard]] bool has_ended(RequestId request, TransferId transfer) const;
  // With what every role says about itself.
  [[nodiscard]] control::Heartbeat heartbeat(const KvUsage& usage) const;

  uint64_t session = 0;  // grows with every lost router connection
  bool draining = false;

 protected:
  // ---- work of one role only; the other one answers that it was asked wrongly
  virtual void prefill(const control::Prefill& message);
  virtual void reserve(const control::Reserve& message);
  virtual void generate(const control::Generate& message);

  virtual void peer_here(const control::PeerHere& message) = 0;
  virtual void cancel(const control::Cancel& message) = 0;
  virtual void peer_gone(const control::PeerGone& message) = 0;
  virtual void drop_everything(const Error& why) = 0;  // without a word to the router
  virtual void sweep() = 0;                            // deadlines and leases
  virtual void drop_ended() = 0;                       // what nothing uses any more
  virtual void start_work() = 0;
  virtual void update_gauges() = 0;

  Send send;

 private:
  void refuse(const control::Task& task, uint64_t transfer, std::string_view work);

  RecentIds ended_;
  uint64_t ticks_ = 0;
};

}  // namespace tandem::node

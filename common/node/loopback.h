#pragma once

#include <functional>
#include <future>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/node/kv_store.h"
#include "common/transport/transport.h"

namespace tandem::node {

// The transfer id of the self-test; routers start theirs elsewhere and never reach it.
inline constexpr TransferId kLoopbackTransfer{~uint64_t{0}};

// Before a node calls itself ready it has once done what every hand-over does: encode a block into
// its pool, send it through the transport to its own address, and find the same bytes, and the same
// values within the format's error, in another block. Called once at start, before the scheduler
// exists; the events of kLoopbackTransfer are to be passed on to it, from any one thread.
class LoopbackTest {
 public:
  LoopbackTest(KvStore& kv, transport::Transport& transport, Generation self);

  // Blocks for at most `limit`. The error says what went wrong and where.
  [[nodiscard]] Status run(Duration limit);

  void on_received(const std::string& commit);
  void on_sent();
  void on_failed(Error error);

 private:
  [[nodiscard]] Status send(const kv::BlockTable& from, const kv::BlockTable& to, Duration limit);
  [[nodiscard]] Status compare(const kv::BlockTable& from, const kv::BlockTable& to) const;
  void settle(Status outcome);

  KvStore& kv_;
  transport::Transport& transport_;
  Generation self_;
  bool received_ = false;
  bool sent_ = false;
  bool settled_ = false;
  std::promise<Status> outcome_;
};

}  // namespace tandem::node

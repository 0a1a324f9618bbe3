#pragma once

#include "common/transport/receive_table.h"

// What transports need to be joined into one that has several ways to its peers.
namespace tandem::transport {

// Shared by transports that lead to the same pages: a transfer is opened once, whichever way its
// frames will come. Any thread.
struct ReceiveSide {
  explicit ReceiveSide(const TransportDeps& deps) : receives(deps, counters) {}
  AtomicCounters counters;  // of both directions
  ReceiveTable receives;
};

class LinkedTransport : public Transport {
 public:
  // What connections to other processes go over ("tcp"); empty until there is one.
  [[nodiscard]] virtual std::string links() const = 0;
};

}  // namespace tandem::transport

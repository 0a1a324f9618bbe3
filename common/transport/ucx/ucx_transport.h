#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/transport/transport.h"

namespace tandem::transport {

struct UcxOptions {
  // UCX_TLS. Empty: "posix,tcp,self", that is shared memory between processes of one box, TCP
  // between boxes. Nothing else is ever chosen, and what is chosen is named by detail().
  std::string tls;
  // Told once per reason, on the UCX thread: a slower transport than expected, and the like. Gets
  // what UCX itself has to say as well (ucx_log.h), on UCX's threads.
  std::function<void(const std::string&)> on_warning;
};

// KV transport between processes over UCX messages. Starts one thread, which owns the
// worker; it sleeps when nothing is under way. create() fails with kConfig when UCX can use none of
// the transports named.
//
// Trust: frames are checked as transport.h says, but UCX's own wire-up is not authenticated. Its
// ports and its files in /dev/shm belong on a network and a host that only the cluster can reach.
[[nodiscard]] Result<std::unique_ptr<Transport>> create_ucx_transport(const UcxOptions& options,
                                                                      const TransportDeps& deps);

}  // namespace tandem::transport

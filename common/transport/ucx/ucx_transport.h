#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/transport/transport.h"

namespace tandem::transport {

struct UcxOptions {
  // As UCX_TLS. Empty: "shm,tcp,self", that is shared memory between processes of one host, TCP
  // between hosts. Nothing else is ever chosen, and what is chosen is named by detail(). UCX's
  // words for shared memory (shm, sm, posix, sysv, cma, xpmem, knem) all mean ours: see below.
  std::string tls;
  // Told what an operator should know (a slower transport than expected) and what UCX itself has to
  // say (ucx_log.h): by several threads, also at once.
  std::function<void(const std::string&)> on_warning;
};

// KV transport between processes: over shared memory (shm/) where both are of one host, network
// namespace and user, over UCX messages otherwise. UCX's own shared memory is not used: a sender
// that is killed while it writes into a receiver's queue blocks that queue for good.
//
// Starts one thread for each way (only UCX's where `tls` names no shared memory); they sleep when
// nothing is under way. Fails with kConfig when UCX can use none of the transports named.
//
// Trust: frames are checked as transport.h says, but UCX's own wire-up is not authenticated. Its
// ports belong on a network that only the cluster can reach.
[[nodiscard]] Result<std::unique_ptr<Transport>> create_ucx_transport(const UcxOptions& options,
                                                                      const TransportDeps& deps);

// Whether UCX can use one of the transports that `options` names, with the error of
// create_ucx_transport() if not; words that it does not know are warnings. Takes some milliseconds.
[[nodiscard]] Status check_ucx(const UcxOptions& options);

}  // namespace tandem::transport

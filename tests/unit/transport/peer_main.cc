// The other process of transport_process_test: a UCX transport.
//   transport_peer GENERATION TLS
#include "common/transport/ucx/ucx_transport.h"
#include "tests/unit/transport/peer.h"

namespace tandem::transport::testing {
namespace {

int run(int argc, char** argv) {
  if (argc != 3) return 2;
  Peer peer(Generation{std::strtoull(argv[1], nullptr, 10)},
            [&](const TransportDeps& deps, auto on_warning) {
              return create_ucx_transport({.tls = argv[2], .on_warning = on_warning}, deps);
            });
  return serve(peer);
}

}  // namespace
}  // namespace tandem::transport::testing

int main(int argc, char** argv) { return tandem::transport::testing::run(argc, argv); }

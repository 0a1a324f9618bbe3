// The other process of transport_process_test: a UCX transport.
//   transport_peer GENERATION TLS
// Of transport_ucx_test: a bare worker that connects, works for some rounds and stops itself.
//   transport_peer connect TLS ADDRESS_HEX ROUNDS
#include <signal.h>

#include <cstring>
#include <thread>

#include "common/transport/ucx/ucx_transport.h"
#include "common/transport/ucx/worker.h"
#include "tests/unit/transport/peer.h"

namespace tandem::transport::testing {
namespace {

int connect_and_stop(const char* tls, const std::string& address, int rounds) {
  auto worker = UcxWorker::create({.tls = tls}, {[](auto) {}, [](auto, const auto&) {}});
  if (!worker) return 1;
  const auto to = (*worker)->connect(address);
  if (!to) return 1;
  (*worker)->send(*to, {1000, [](auto bytes) { std::memset(bytes.data(), 1, bytes.size()); }, {}});
  for (int i = 0; i < rounds; ++i) {
    (*worker)->progress();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  raise(SIGSTOP);
  return 0;
}

int run(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "connect") {
    return connect_and_stop(argv[2], from_hex(argv[3]).value(), std::atoi(argv[4]));
  }
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

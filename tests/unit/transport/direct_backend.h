#pragma once

// Two direct transports in one process, in real time, for the typed suite.

#include <thread>

#include "common/transport/direct/direct_transport.h"
#include "tests/unit/transport/direct_stranger.h"
#include "tests/unit/transport/transport_suite.h"

namespace tandem::transport::testing {

// Make: static std::unique_ptr<Fabric> make().
template <typename Make>
class DirectBackend {
 public:
  static constexpr bool kSeesEndedTransports = true;
  std::unique_ptr<Transport> create(const std::string& name, const Generation self,
                                    TransportEvents& events, const TransportLimits& limits = {}) {
    auto transport = create_direct_transport(
        Make::make(), {.self = self, .clock = clock_, .events = events, .limits = limits});
    EXPECT_TRUE(transport) << transport.error().detail;
    return known_as(name, std::move(*transport));
  }
  template <typename Condition>
  bool until(const Condition& done) {
    const TimePoint give_up = clock_.now() + seconds(60);
    while (!done() && clock_.now() < give_up) std::this_thread::sleep_for(milliseconds(1));
    return done();
  }
  void settle() { std::this_thread::sleep_for(milliseconds(30)); }
  void pass(Duration time) { std::this_thread::sleep_for(time); }

  // A stranger that speaks the protocol.
  void inject(Node&, const std::string& name, Frame frame) {
    stranger_.send(addresses_.at(name), *Make::make(), frame);
  }

 protected:
  [[nodiscard]] const Clock& clock() const { return clock_; }
  std::unique_ptr<Transport> known_as(const std::string& name,
                                      std::unique_ptr<Transport> transport) {
    addresses_[name] = transport->address();
    return transport;
  }

 private:
  SteadyClock clock_;
  std::map<std::string, std::string> addresses_;
  DirectStranger stranger_;
};

}  // namespace tandem::transport::testing

#pragma once

// Two direct transports in one process, in real time, for the typed suite.

#include <thread>

#include "common/transport/direct/direct_transport.h"
#include "common/transport/direct/socket.h"
#include "common/transport/direct/wire_format.h"
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
    addresses_[name] = (*transport)->address();
    return std::move(*transport);
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
    if (stranger_.fd() < 0) {
      const auto address = parse_direct_address(addresses_.at(name)).value();
      stranger_ = Connection::open(address.socket).value();
      auto fabric = Make::make();
      EXPECT_TRUE(fabric->start());
      const Hello hello{Generation{9999}, std::string(fabric->name()), fabric->hello(true).value()};
      EXPECT_TRUE(stranger_.send(encode_message(MessageKind::kHello, encode_hello(hello))));
    }
    std::string body(reinterpret_cast<const char*>(frame.header.data()), frame.header.size());
    body.append(reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size());
    EXPECT_TRUE(stranger_.send(encode_message(MessageKind::kFrame, body)));
    EXPECT_TRUE(stranger_.flush());
  }

 private:
  SteadyClock clock_;
  std::map<std::string, std::string> addresses_;
  Connection stranger_;
};

}  // namespace tandem::transport::testing

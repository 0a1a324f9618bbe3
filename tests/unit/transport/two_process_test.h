#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/unit/transport/peer_process.h"

namespace tandem::transport::testing {

// This process as one end of a transport, `self`, that the fixture's constructor opens; the other
// end is a PeerProcess. Its parameter names what is tested.
class TwoProcessTest : public ::testing::TestWithParam<const char*> {
 protected:
  template <typename Condition>
  Duration until(const Condition& done) {
    return until(done, patience);
  }
  template <typename Condition>
  Duration until(const Condition& done, Duration limit) {
    const TimePoint start = clock.now();
    while (!done() && clock.now() - start < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(done());
    return clock.now() - start;
  }
  Status open_send(TransferId id, const PeerProcess& to, uint32_t pages,
                   Duration deadline = std::chrono::seconds(20)) {
    return self.transport->open_send({.id = id,
                                      .receiver = to.generation(),
                                      .address = to.address(),
                                      .layout = kProcessLayout,
                                      .pages = pages,
                                      .tail_rows = 0,
                                      .deadline = deadline});
  }
  void send_whole(TransferId id, PeerProcess& to) {
    to.say("receive " + std::to_string(id.value) + " 1 8 20000");
    to.expect("open");
    Pages from(kProcessLayout, 8, 0, id.value);
    ASSERT_TRUE(open_send(id, to, 8));
    for (uint32_t layer = 0; layer < kProcessLayout.layers; ++layer) {
      ASSERT_TRUE(post_layer(*self.transport, id, from, layer));
    }
    ASSERT_TRUE(self.transport->post_commit(id, "commit"));
    EXPECT_EQ(to.expect("received "), std::to_string(id.value) + " good");
    until([&] { return self.events.events(id) > 0; });
    EXPECT_TRUE(self.events.sent(id));
  }
  void open_receive(TransferId id, Generation sender, Pages& into,
                    Duration deadline = std::chrono::seconds(20)) {
    ReceivePlan plan{.id = id,
                     .sender = sender,
                     .layout = kProcessLayout,
                     .pages = into.count(),
                     .deadline = deadline};
    plan.destination = [&into](uint32_t layer, uint32_t i) { return into.page(layer, i); };
    ASSERT_TRUE(self.transport->open_receive(plan));
  }
  std::string send_command(TransferId id, uint32_t pages, const std::string& mode) {
    return "send " + std::to_string(id.value) + " 1 " + to_hex(self.transport->address()) + " " +
           std::to_string(pages) + " " + mode;
  }

  Duration patience = std::chrono::seconds(60);  // of until()
  SteadyClock clock;
  Node self;
};

}  // namespace tandem::transport::testing

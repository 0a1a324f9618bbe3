#pragma once

// What the suites of transport_suite.h run on: two transports of a backend and the wire between
// them.

#include "tests/unit/transport/suite.h"

namespace tandem::transport::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr kv::KvLayout kLayout{3, 2, 64, kv::KvFormat::kInt8};

template <typename Backend>
class TransportSuite : public ::testing::Test {
 protected:
  TransportSuite() {
    start(sender_, "prefill", Generation{101});
    start(receiver_, "decode", Generation{202});
  }
  void start(Node& node, const std::string& name, Generation generation,
             const TransportLimits& limits = {}) {
    node.generation = generation;
    node.transport = backend_.create(name, generation, node.events, limits);
    ASSERT_NE(node.transport, nullptr);
  }

  ReceivePlan plan(TransferId id, Pages& into, Duration deadline = seconds(20)) {
    ReceivePlan p;
    p.id = id;
    p.sender = sender_.generation;
    p.layout = into.layout();
    p.pages = into.count();
    p.destination = [&into](uint32_t layer, uint32_t i) { return into.page(layer, i); };
    p.tail_rows = into.tail_rows();
    if (p.tail_rows > 0) {
      p.tail_destination = [&into](uint32_t layer) { return into.tail(layer); };
    }
    p.deadline = deadline;
    return p;
  }
  SendSpec spec(TransferId id, const Pages& from, Duration deadline = seconds(20)) {
    return {.id = id,
            .receiver = receiver_.generation,
            .address = receiver_.transport->address(),
            .layout = from.layout(),
            .pages = from.count(),
            .tail_rows = from.tail_rows(),
            .deadline = deadline};
  }
  Status post_layer(TransferId id, Pages& from, uint32_t layer, uint32_t first, uint32_t count) {
    std::vector<std::span<const std::byte>> pages;
    for (uint32_t i = first; i < first + count; ++i) pages.push_back(from.page(layer, i));
    return sender_.transport->post_pages(id, layer, first, pages);
  }
  void post_all(TransferId id, Pages& from, const std::string& commit = "commit") {
    for (uint32_t layer = 0; layer < from.layout().layers; ++layer) {
      ASSERT_TRUE(post_layer(id, from, layer, 0, from.count()));
      if (from.tail_rows() > 0) {
        ASSERT_TRUE(sender_.transport->post_tail(id, layer, from.tail(layer)));
      }
    }
    ASSERT_TRUE(sender_.transport->post_commit(id, commit));
  }
  bool both_ended(TransferId id) {
    return backend_.until(
        [&] { return receiver_.events.events(id) > 0 && sender_.events.events(id) > 0; });
  }
  // A whole transfer that must succeed: after each fault the wire still works.
  void expect_works(TransferId id) {
    Pages from(kLayout, 2, 0, id.value);
    Pages into(kLayout, 2, 0);
    ASSERT_TRUE(receiver_.transport->open_receive(plan(id, into)));
    ASSERT_TRUE(sender_.transport->open_send(spec(id, from)));
    post_all(id, from);
    ASSERT_TRUE(both_ended(id));
    EXPECT_TRUE(receiver_.events.received(id)) << receiver_.events.receive_failed(id)->detail;
    EXPECT_TRUE(sender_.events.sent(id)) << sender_.events.send_failed(id)->detail;
    EXPECT_TRUE(from == into);
  }
  // A data frame as the real sender would build it.
  Frame data_frame(TransferId id, Pages& from, uint32_t layer, uint32_t first, uint32_t count) {
    std::vector<std::span<const std::byte>> pages;
    for (uint32_t i = first; i < first + count; ++i) pages.push_back(from.host_page(layer, i));
    return make_data_frame(origin(id, from.layout()), layer, first, pages);
  }
  FrameOrigin origin(TransferId id, const kv::KvLayout& layout = kLayout) {
    return {id, sender_.generation, receiver_.generation, geometry_hash(layout),
            static_cast<uint8_t>(layout.format)};
  }
  TransportCounters counted() { return receiver_.transport->counters(); }

  Backend backend_;
  Node sender_;
  Node receiver_;
};
TYPED_TEST_SUITE_P(TransportSuite);

}  // namespace tandem::transport::testing

#pragma once

// The other process of a process test: a transport driven by lines on standard input.
//   receive ID SENDER PAGES DEADLINE_MS      -> "received ID good|bad" or "receive_failed ID CODE"
//   send ID RECEIVER ADDRESS_HEX PAGES MODE  -> "sent ID" or "send_failed ID CODE"; MODE whole |
//   half detail | quit
// It starts with "address HEX" and flushes every line. Pages are filled from the transfer's id.

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>

#include "common/base/clock.h"
#include "tests/unit/transport/process.h"

namespace tandem::transport::testing {

class Peer final : public TransportEvents {
 public:
  using Open = std::function<Result<std::unique_ptr<Transport>>(
      const TransportDeps& deps, std::function<void(const std::string&)> on_warning)>;
  Peer(Generation self, const Open& open) {
    auto transport = open({.self = self, .clock = clock_, .events = *this, .limits = {}},
                          [](const std::string& w) { say("warning " + w); });
    if (!transport) {
      say("error " + transport.error().detail);
      std::exit(1);
    }
    transport_ = std::move(*transport);
    say("address " + to_hex(transport_->address()));
  }

  void on_received(TransferId id, std::string commit, const ReceiveStats&) override {
    std::lock_guard lock(mutex_);
    const Pages& into = *pages_.at(id);
    const Pages expected(kProcessLayout, into.count(), 0, id.value);
    const bool good = into == expected && commit == "commit";
    say("received " + std::to_string(id.value) + (good ? " good" : " bad"));
  }
  void on_receive_failed(TransferId id, Error error) override {
    failed("receive_failed ", id, error);
  }
  void on_sent(TransferId id, const SendStats&) override {
    say("sent " + std::to_string(id.value));
  }
  void on_send_failed(TransferId id, Error error) override { failed("send_failed ", id, error); }

  void receive(std::istringstream& words) {
    uint64_t id = 0;
    uint64_t sender = 0;
    uint32_t pages = 0;
    int64_t deadline = 0;
    words >> id >> sender >> pages >> deadline;
    std::lock_guard lock(mutex_);
    Pages& into = *(pages_[TransferId{id}] = std::make_unique<Pages>(kProcessLayout, pages, 0));
    ReceivePlan plan{.id = TransferId{id},
                     .sender = Generation{sender},
                     .layout = kProcessLayout,
                     .pages = pages,
                     .deadline = std::chrono::milliseconds(deadline)};
    plan.destination = [&into](uint32_t layer, uint32_t i) { return into.page(layer, i); };
    const Status status = transport_->open_receive(plan);
    say(status ? "open" : "refused " + status.error().detail);
  }
  void send(std::istringstream& words) {
    uint64_t id = 0;
    uint64_t receiver = 0;
    std::string address;
    uint32_t pages = 0;
    std::string mode;
    words >> id >> receiver >> address >> pages >> mode;
    const TransferId transfer{id};
    std::unique_lock lock(mutex_);
    Pages& from = *(pages_[transfer] = std::make_unique<Pages>(kProcessLayout, pages, 0, id));
    lock.unlock();
    Status status = transport_->open_send({.id = transfer,
                                           .receiver = Generation{receiver},
                                           .address = from_hex(address).value(),
                                           .layout = kProcessLayout,
                                           .pages = pages,
                                           .tail_rows = 0,
                                           .deadline = std::chrono::seconds(20)});
    const uint32_t layers = mode == "half" ? 1 : kProcessLayout.layers;
    for (uint32_t layer = 0; status && layer < layers; ++layer) {
      status = post_layer(*transport_, transfer, from, layer);
    }
    if (status && mode != "half") status = transport_->post_commit(transfer, "commit");
    say(status ? "posted" : "refused " + status.error().detail);
  }
  void detail() { say("detail " + transport_->detail()); }

 private:
  static void say(const std::string& line) {
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    std::cout << line << std::endl;
  }
  static void failed(const char* what, TransferId id, const Error& error) {
    say(what + std::to_string(id.value) + " " + std::string(error_traits(error.code).label));
  }
  SteadyClock clock_;
  std::mutex mutex_;
  std::map<TransferId, std::unique_ptr<Pages>> pages_;
  std::unique_ptr<Transport> transport_;
};

// Does what the lines on standard input say, until they end.
inline int serve(Peer& peer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "receive") peer.receive(words);
    if (verb == "send") peer.send(words);
    if (verb == "detail") peer.detail();
    if (verb == "quit") break;
  }
  return 0;
}

}  // namespace tandem::transport::testing

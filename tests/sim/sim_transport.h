#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/transport/transport.h"
#include "tests/sim/cluster_world.h"

namespace tandem::sim {

class SimTransport;

struct LinkFaults {
  Duration min_delay = std::chrono::microseconds(20);
  Duration max_delay =
      std::chrono::microseconds(200);  // frames overtake each other within this range
  double lose = 0;         // a frame that never arrives: the transfer runs into its deadline
  double corrupt = 0;      // arrives, but its checksum does not hold
  double duplicate = 0;    // arrives twice
  double refuse_post = 0;  // post_pages() fails on the sender
};

// The wire between the simulated nodes.
class SimNetwork {
 public:
  explicit SimNetwork(World& w) : world(w) {}
  World& world;
  LinkFaults faults;
  std::map<std::string, SimTransport*> endpoints;  // by address
};

// The Transport contract in simulated time. A sender's pages are read when a frame *arrives*, so
// pages that change or are reused before the final event show up as wrong KV at the receiver.
class SimTransport final : public transport::Transport {
 public:
  SimTransport(SimNetwork& network, std::string address, Generation generation);
  ~SimTransport() override;

  transport::TransportEvents* events = nullptr;

  [[nodiscard]] std::string_view name() const override { return "inproc"; }
  [[nodiscard]] std::string detail() const override { return "simulated"; }
  [[nodiscard]] std::string address() const override { return address_; }

  [[nodiscard]] Status open_receive(transport::ReceivePlan plan) override;
  void close_receive(TransferId id) override;
  void fence(Generation sender) override;
  void readmit(Generation sender) override { fenced_.erase(sender); }
  void meet(const std::string& name, const std::string& receiver) override {
    met.push_back(name + " " + receiver);
  }
  [[nodiscard]] Status open_send(const transport::SendSpec& spec) override;
  [[nodiscard]] Status post_pages(TransferId id, uint32_t layer, uint32_t first_page,
                                  std::span<const std::span<const std::byte>> pages) override;
  [[nodiscard]] Status post_tail(TransferId id, uint32_t layer,
                                 std::span<const std::byte> page) override;
  [[nodiscard]] Status post_commit(TransferId id, std::string commit) override;
  void cancel_send(TransferId id, std::string reason) override;
  [[nodiscard]] transport::TransportCounters counters() const override { return counters_; }

  [[nodiscard]] size_t open_receives() const { return receives_.size(); }
  [[nodiscard]] size_t open_sends() const { return sends_.size(); }
  std::vector<std::string> met;
  // Pages of every open receive, for tests that look for late writes.
  uint64_t pages_written = 0;

 private:
  struct Frame {
    TransferId id{};
    Generation sender{};
    std::string sender_address{};
    kv::KvLayout layout{};
    uint32_t layer = 0;
    uint32_t page = 0;
    enum class Kind : uint8_t { kPage, kTail, kCommit, kAbort } kind = Kind::kPage;
    std::span<const std::byte> bytes{};
    std::string text{};                      // commit, or why it is aborted
    ErrorCode code = ErrorCode::kCancelled;  // kAbort: as the real frame carries it
    bool corrupt = false;
  };
  struct Send {
    transport::SendSpec spec{};
    size_t unacknowledged = 0;
    bool committed = false;
    TimePoint first_post{};
    uint32_t frames = 0;
    uint64_t wire = 0;
    uint64_t raw = 0;
  };
  struct Receive {
    transport::ReceivePlan plan;
    TimePoint opened;
    std::set<std::pair<uint32_t, uint32_t>> pages;
    std::set<uint32_t> tails;
    std::optional<std::string> commit;
    uint64_t wire = 0;
    uint32_t frames = 0;
  };

  [[nodiscard]] Status post(TransferId id, Frame frame);
  void send_copy(const std::string& to, const Frame& frame,
                 std::shared_ptr<std::vector<std::byte>> replay);
  void deliver(const Frame& frame);
  [[nodiscard]] Status accept(Receive& receive, const Frame& frame);
  void acknowledge(TransferId id);
  void abort_send(TransferId id, Error error);
  void end_send(TransferId id, Error error);
  void fail_receive(TransferId id, Error error);
  void complete(TransferId id, Receive& receive);

  SimNetwork& network_;
  std::string address_;
  Generation generation_;
  std::map<TransferId, Send> sends_;
  std::map<TransferId, Receive> receives_;
  std::set<Generation> fenced_;
  transport::TransportCounters counters_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace tandem::sim

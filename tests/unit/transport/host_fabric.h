#pragma once

// A Fabric of host memory within one process, so that the protocol of cuda_ipc and nccl is tested
// without a card. Copies are done late, as a device's are: a ticket is under way until it was asked
// about once.

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "common/transport/direct/fabric.h"
#include "common/transport/direct/wire_format.h"

namespace tandem::transport::testing {

class HostCopier final : public PageCopier {
 public:
  Ticket add(std::span<const Piece> pieces) override {
    std::lock_guard lock(mutex_);
    work_.push_back({++last_, {pieces.begin(), pieces.end()}, false, false});
    return last_;
  }
  void flush() override {
    std::lock_guard lock(mutex_);
    for (Work& w : work_) w.started = true;
  }
  Result<std::optional<std::vector<uint64_t>>> taken(Ticket ticket) override {
    std::lock_guard lock(mutex_);
    if (lost_) return fail(ErrorCode::kDeviceLost, "an illegal memory access was encountered");
    const auto it = std::ranges::find(work_, ticket, &Work::ticket);
    if (it == work_.end() || !it->started) return std::nullopt;
    if (!it->asked && !it->sums) {
      it->asked = true;
      return std::nullopt;
    }
    run(*it);
    auto sums = std::move(it->sums);
    work_.erase(it);
    return sums;
  }
  bool busy() const override {
    std::lock_guard lock(mutex_);
    return !work_.empty();
  }
  // From now on as a copier whose device is gone.
  void lose_device() {
    std::lock_guard lock(mutex_);
    lost_ = true;
    work_.clear();
  }
  void drain() override {
    std::lock_guard lock(mutex_);
    for (Work& w : work_) {
      w.started = true;
      run(w);
    }
  }

 private:
  struct Work {
    Ticket ticket;
    std::vector<Piece> pieces;
    bool started;
    bool asked;
    std::optional<std::vector<uint64_t>> sums = {};
  };
  static void run(Work& w) {
    if (w.sums) return;
    w.sums.emplace();
    for (const Piece& p : w.pieces) {
      if (p.to != nullptr) std::memcpy(p.to, p.from, p.bytes);
      w.sums->push_back(piece_checksum({p.from, p.bytes}));
    }
  }
  mutable std::mutex mutex_;
  std::deque<Work> work_;
  Ticket last_ = 0;
  bool lost_ = false;
};

// kPull: the receiver reads the sender's pages, as over cuda_ipc. kPaired: the sender gathers into
// slots of its own and hands one over when told to go, as over nccl.
enum class HostMode : uint8_t { kPull, kPaired };

class HostFabric final : public Fabric {
 public:
  explicit HostFabric(HostMode mode, std::string version = "1") : mode_(mode), version_(version) {}
  std::string_view name() const override { return "host"; }
  std::string version() const override { return version_; }
  PageCopier& copier(bool) override { return copier_; }
  void lose_device() { copier_.lose_device(); }
  size_t frame_bytes() const override { return 256u << 10; }
  Status start() override { return {}; }
  Result<std::string> hello(bool sender) override {
    return version_ + (sender ? "s" + std::to_string(++pairs()) : "r");
  }
  Result<std::unique_ptr<Link>> open(bool sender, const std::string& own,
                                     const std::string& peer) override {
    if (own.substr(0, 1) != peer.substr(0, 1)) {
      return fail(ErrorCode::kMismatch,
                  "host version " + own.substr(0, 1) + " here, " + peer.substr(0, 1) + " there");
    }
    if (mode_ == HostMode::kPull) return std::make_unique<PullLink>();
    return std::make_unique<PairedLink>(sender ? own : peer);
  }

 private:
  static std::atomic<int>& pairs() {
    static std::atomic<int> count{0};
    return count;
  }
  static Result<std::vector<uint64_t>> read(std::string_view note, size_t count) {
    FieldReader fields(note);
    std::vector<uint64_t> values;
    for (size_t i = 0; i < count && fields.good(); ++i) values.push_back(fields.get<uint64_t>());
    if (!fields.complete()) return fail(ErrorCode::kCorruptData, "the note has the wrong length");
    return values;
  }

  class PullLink final : public Link {
   public:
    std::string detail() const override { return "same process"; }
    Result<bool> ready() override { return true; }
    bool busy() const override { return false; }
    Result<std::optional<Staged>> stage(std::span<Piece> pieces) override {
      FieldWriter fields;
      for (const Piece& p : pieces) fields.put(reinterpret_cast<uint64_t>(p.from));
      return Staged{0, fields.take()};
    }
    Status launch(uint64_t) override { return fail(ErrorCode::kCorruptData, "an unasked go"); }
    void abandon(uint64_t) override {}
    bool sums_follow() const override { return true; }
    Result<uint64_t> accept(std::string_view note, std::span<Piece> pieces) override {
      TANDEM_ASSIGN(const auto from, read(note, pieces.size()));
      for (size_t i = 0; i < pieces.size(); ++i) {
        pieces[i].from = reinterpret_cast<const std::byte*>(from[i]);
      }
      return 0;
    }
    Result<bool> grant(uint64_t, std::span<Piece>) override { return true; }
    bool needs_go() const override { return false; }
    Result<bool> arrived(uint64_t) override { return true; }
    void release(uint64_t) override {}
  };

  // Slots cross through a mailbox named after the pair.
  class PairedLink final : public Link {
   public:
    explicit PairedLink(std::string pair) : pair_(std::move(pair)) {}
    std::string detail() const override { return "same process"; }
    Result<bool> ready() override { return ++asked_ > 3; }  // takes a while, like a communicator
    bool busy() const override { return true; }
    Result<std::optional<Staged>> stage(std::span<Piece> pieces) override {
      if (slots_.size() >= 2) return std::nullopt;
      std::vector<std::byte>& slot = slots_[++last_];
      slot.resize(pieces.size() * pieces.front().bytes);
      for (size_t i = 0; i < pieces.size(); ++i) pieces[i].to = slot.data() + i * pieces[i].bytes;
      return Staged{last_, FieldWriter().put(last_).take()};
    }
    Status launch(uint64_t slot) override {
      const auto it = slots_.find(slot);
      if (it == slots_.end()) return fail(ErrorCode::kCorruptData, "a go for an unknown slot");
      std::lock_guard lock(mailbox().mutex);
      mailbox().letters[{pair_, slot}] = std::move(it->second);
      slots_.erase(it);
      return {};
    }
    void abandon(uint64_t slot) override { slots_.erase(slot); }
    Result<uint64_t> accept(std::string_view note, std::span<Piece>) override {
      TANDEM_ASSIGN(const auto slot, read(note, 1));
      return slot[0];
    }
    Result<bool> grant(uint64_t arrival, std::span<Piece> pieces) override {
      if (arrivals_.size() >= 2) return false;
      std::vector<std::byte>& space = arrivals_[arrival];
      space.resize(pieces.size() * pieces.front().bytes);
      for (size_t i = 0; i < pieces.size(); ++i) {
        pieces[i].from = space.data() + i * pieces[i].bytes;
      }
      return true;
    }
    bool needs_go() const override { return true; }
    Result<bool> arrived(uint64_t arrival) override {
      std::lock_guard lock(mailbox().mutex);
      const auto it = mailbox().letters.find({pair_, arrival});
      if (it == mailbox().letters.end()) return false;
      std::ranges::copy(it->second, arrivals_.at(arrival).begin());
      mailbox().letters.erase(it);
      return true;
    }
    void release(uint64_t arrival) override { arrivals_.erase(arrival); }

   private:
    struct Mailbox {
      std::mutex mutex;
      std::map<std::pair<std::string, uint64_t>, std::vector<std::byte>> letters;
    };
    static Mailbox& mailbox() {
      static Mailbox box;
      return box;
    }
    const std::string pair_;
    int asked_ = 0;
    uint64_t last_ = 0;
    std::map<uint64_t, std::vector<std::byte>> slots_;
    std::map<uint64_t, std::vector<std::byte>> arrivals_;
  };

  const HostMode mode_;
  const std::string version_;
  HostCopier copier_;
};

}  // namespace tandem::transport::testing

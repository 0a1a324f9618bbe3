#include "common/transport/shm/shm_fabric.h"

#include <algorithm>
#include <utility>

#include "common/transport/direct/wire_format.h"
#include "common/transport/frames.h"
#include "common/transport/shm/host_copier.h"
#include "common/transport/shm/segment.h"
#include "common/transport/shm/slot_ring.h"

namespace tandem::transport {
namespace {

// Of one receiver: several frames, so that both sides copy at the same time, and little enough to
// stay in the cache between them.
constexpr size_t kSegment = 2u << 20;
// A page may be as large as a frame; such layouts get a segment for two frames.
constexpr size_t kLargestSegment = 2u * proto::kMaxKvPayload;
constexpr size_t kSlotAlign = 64;  // a cache line

class ShmLink final : public Link {
 public:
  std::string detail() const override { return "shared memory"; }
  Result<bool> ready() override { return true; }
  bool busy() const override { return false; }

  Result<std::optional<Staged>> stage(std::span<Piece> pieces) override {
    size_t total = 0;
    for (const Piece& p : pieces) total += p.bytes;
    const size_t bytes = (total + kSlotAlign - 1) / kSlotAlign * kSlotAlign;
    if (bytes > ring_.capacity()) {
      if (!ring_.all_back()) return std::nullopt;
      TANDEM_TRY(grow(bytes));
    }
    const auto slot = ring_.take(bytes);
    if (!slot) return std::nullopt;
    std::byte* to = segment_.bytes().data() + slot->begin;
    for (Piece& p : pieces) {
      p.to = to;
      to += p.bytes;
    }
    return Staged{slot->id, FieldWriter().put(slot->id).put(uint64_t{slot->begin}).take()};
  }
  Fd memory() override { return std::move(unsent_); }
  Status launch(uint64_t slot) override {
    if (ring_.give_back(slot)) return {};
    return fail(ErrorCode::kCorruptData, "shm: a go for a slot that is not out");
  }
  void abandon(uint64_t slot) override { (void)ring_.give_back(slot); }

  // Nothing that was accepted still reads the memory of before: a sender replaces it when all slots
  // are back.
  Status attach(Fd memory) override {
    if (reading_ > 0) return fail(ErrorCode::kCorruptData, "shm: new memory amid offers");
    TANDEM_ASSIGN(segment_, Segment::map(memory, kLargestSegment));
    return {};
  }
  Result<uint64_t> accept(std::string_view note, std::span<Piece> pieces) override {
    FieldReader fields(note);
    const auto slot = fields.get<uint64_t>();
    uint64_t at = fields.get<uint64_t>();
    const std::span<const std::byte> all = segment_.bytes();
    if (!fields.complete()) return fail(ErrorCode::kCorruptData, "an offer has the wrong length");
    for (Piece& p : pieces) {
      if (at > all.size() || p.bytes > all.size() - at) {
        return fail(ErrorCode::kCorruptData, "an offer points outside the sender's memory");
      }
      p.from = all.data() + at;
      at += p.bytes;
    }
    ++reading_;
    return slot;
  }
  Result<bool> grant(uint64_t, std::span<Piece>) override { return true; }
  bool needs_go() const override { return false; }
  Result<bool> arrived(uint64_t) override { return true; }
  void release(uint64_t) override { --reading_; }
  bool gives_back() const override { return true; }

 private:
  Status grow(size_t bytes) {
    TANDEM_ASSIGN(Segment segment, Segment::create(std::max(kSegment, 2 * bytes)));
    TANDEM_ASSIGN(unsent_, segment.file());
    segment_ = std::move(segment);
    ring_.reset(segment_.bytes().size());
    return {};
  }

  Segment segment_;     // a sender's own, or a receiver's view of it
  SlotRing ring_;       // sender
  Fd unsent_;           // sender
  size_t reading_ = 0;  // receiver: accepted and not released
};

class ShmFabric final : public Fabric {
 public:
  explicit ShmFabric(kv::PageMemory* memory) : copier_(memory) {}
  std::string_view name() const override { return "shm"; }
  std::string version() const override { return "1"; }
  PageCopier& copier(bool) override { return copier_; }
  size_t frame_bytes() const override { return kTargetPayload; }
  // Finds out at the start whether such memory can be had.
  Status start() override {
    const auto made = Segment::create(kSlotAlign);
    if (made) return {};
    return fail(made.error().code,
                made.error().detail + "; allow memfd_create, or set transport.ucx_tls to tcp");
  }
  Result<std::string> hello(bool) override { return version(); }
  Result<std::unique_ptr<Link>> open(bool, const std::string& own,
                                     const std::string& peer) override {
    if (own == peer) return std::make_unique<ShmLink>();
    return fail(ErrorCode::kMismatch, "version " + own + " of shared memory here, " + peer +
                                          " at the peer: run the same release on both");
  }

 private:
  HostCopier copier_;
};

}  // namespace

std::unique_ptr<Fabric> create_shm_fabric(kv::PageMemory* memory) {
  return std::make_unique<ShmFabric>(memory);
}

}  // namespace tandem::transport

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/transport/direct/page_copier.h"

namespace tandem::transport {

// How the pages of an offer come within reach of the receiver's copier: what shm, cuda_ipc and nccl
// differ in. Transport thread only, except where it says otherwise.
//
//   sender    stage() -> copier checks (and gathers) the pieces -> the offer goes out with note;
//             or, where sums_follow(), the offer at once and the checksums when they are known
//   receiver  accept(note) -> grant() -> "go", where the fabric wants one -> arrived() -> the
//             copier copies into the pages -> release() -> "go", where slots go back
//   sender    on "go": launch()
class Link {
 public:
  virtual ~Link() = default;

  [[nodiscard]] virtual std::string detail() const = 0;  // "peer GPU, NVLink"
  // False until offers can be made over it (a communicator is being built). An error: never.
  [[nodiscard]] virtual Result<bool> ready() = 0;
  // Work is under way that ready(), stage() or arrived() should soon be asked about.
  [[nodiscard]] virtual bool busy() const = 0;

  // ---- sender ----
  struct Staged {
    uint64_t slot = 0;
    std::string note;  // travels with the offer
  };
  // Pieces lie in this process's pool. Sets their `to` when they must be gathered before they can
  // be sent. Empty: no room now; ask again when something was released.
  [[nodiscard]] virtual Result<std::optional<Staged>> stage(std::span<Piece> pieces) = 0;
  // Memory that the receiver must have before what was staged last is offered, told once; most
  // fabrics have none.
  [[nodiscard]] virtual Fd memory() { return {}; }
  // The receiver's go for this slot: the bytes may be sent, or were read (gives_back()).
  [[nodiscard]] virtual Status launch(uint64_t slot) = 0;
  // The same for the last of `count` slots that were offered one after the other.
  [[nodiscard]] virtual Status launch_run(uint64_t last, uint32_t count) {
    if (count == 1) return launch(last);
    return fail(ErrorCode::kCorruptData, "a go for several slots");
  }
  // A staged slot that will not be offered.
  virtual void abandon(uint64_t slot) = 0;
  // Whether an offer goes out before the copier has checked its pages, since the receiver reads
  // them where they lie. Its checksums then follow in a message of their own. The same at both
  // ends.
  [[nodiscard]] virtual bool sums_follow() const { return false; }

  // ---- receiver ----
  // The sender's memory(). kCorruptData when none is wanted or it will not do.
  [[nodiscard]] virtual Status attach(Fd) {
    return fail(ErrorCode::kCorruptData, "memory that nobody asked for");
  }
  // An offer by a peer's note, which is checked: kCorruptData when it makes no sense. `bytes` of
  // the pieces is set. Also called for frames that are not wanted, where a go is owed. The id names
  // the arrival from now on; several may share one when the fabric keeps nothing of them.
  [[nodiscard]] virtual Result<uint64_t> accept(std::string_view note, std::span<Piece> pieces) = 0;
  // Sets the pieces' `from`. False: no room now; asked again, in the order of accept().
  [[nodiscard]] virtual Result<bool> grant(uint64_t arrival, std::span<Piece> pieces) = 0;
  // Whether a sender waits for a go, to be sent after grant(); its slot is the arrival's id.
  [[nodiscard]] virtual bool needs_go() const = 0;
  // After grant(): how many slots a go for this one permits, which is the last of them. 0: none is
  // owed, or a later one permits this one too.
  [[nodiscard]] virtual uint32_t goes(uint64_t arrival) const {
    (void)arrival;
    return needs_go() ? 1 : 0;
  }
  // Whether the pieces' `from` holds the bytes. In the order of accept().
  [[nodiscard]] virtual Result<bool> arrived(uint64_t arrival) = 0;
  virtual void release(uint64_t arrival) = 0;
  // Whether a sender's slot, which is the arrival's id, is its own again after a go that follows
  // release(). Such a sender learns from messages alone when to ask stage() again.
  [[nodiscard]] virtual bool gives_back() const { return false; }
};

// What a fabric and its transport are for.
struct DirectWays {
  bool sends = true;
  bool receives = true;
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;  // "cuda_ipc"; any thread
  [[nodiscard]] virtual std::string version() const = 0;    // "13.0"; any thread
  // Reads a sender's pages, or writes a receiver's. Two where work of one kind would keep that of
  // the other waiting. Any thread.
  [[nodiscard]] virtual PageCopier& copier(bool sender) = 0;
  [[nodiscard]] virtual size_t frame_bytes() const = 0;  // frames aim at this much; any thread
  // Whether the transport's thread waits a little for answers without going to sleep: 30 us a
  // wake-up are then worth more than the processor's time.
  [[nodiscard]] virtual bool stays_awake() const { return false; }  // any thread
  // Called first on the transport's thread.
  [[nodiscard]] virtual Status start() = 0;
  // What a peer must know to open a link; at most 16 KiB. A sender's may differ for every link.
  [[nodiscard]] virtual Result<std::string> hello(bool sender) = 0;
  // `own` is the hello() that this side sent, `peer` what the other said. An error is a mismatch in
  // plain words.
  [[nodiscard]] virtual Result<std::unique_ptr<Link>> open(bool sender, const std::string& own,
                                                           const std::string& peer) = 0;
};

}  // namespace tandem::transport

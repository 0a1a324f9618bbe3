#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/result.h"

namespace tandem::transport {

// A run of bytes of one page: copied from `from` to `to`, or only checked when `to` is null.
struct Piece {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;  // a multiple of 4
};

// Copies pieces and checks them on the way, in the background. add() only collects; what was added
// is set going by flush(), so that the pieces of many frames become one piece of work. Every
// function from any thread.
class PageCopier {
 public:
  using Ticket = uint64_t;
  virtual ~PageCopier() = default;  // waits for what was set going

  // What pieces point to stays valid until taken() or drain() said that they are done.
  [[nodiscard]] virtual Ticket add(std::span<const Piece> pieces) = 0;
  virtual void flush() = 0;
  // The checksums of a ticket's pieces (piece_checksum) once they are done; each ticket is taken
  // once, in the order of add(). Empty: not done yet. An error is kDeviceLost: it can do no more.
  [[nodiscard]] virtual Result<std::optional<std::vector<uint64_t>>> taken(Ticket ticket) = 0;
  [[nodiscard]] virtual bool busy() const = 0;
  // Returns when nothing that was added is still to be written. A barrier for close_receive().
  virtual void drain() = 0;
};

// One for what a process sends and one for what it receives: a check that an offer waits for does
// not stand behind copies that come in.
struct CopierPair {
  std::unique_ptr<PageCopier> sender;
  std::unique_ptr<PageCopier> receiver;
  [[nodiscard]] PageCopier& of(bool sends) const { return sends ? *sender : *receiver; }
};

// The checksum of one piece: the sum over its vectors of 16 bytes (the last one filled up with
// zeros) of what two pairs of words make, each word moved by a key of the vector's place:
// a * b + (a << 32) + b. A multiplication for each pair is what a multiprocessor can afford beside
// copying (a 64-bit mixture kept it at 27 GB/s). A change of one word always shows: a factor of
// 2^32 + b takes no difference of less than 2^32 to zero. Any order of the vectors gives the same,
// so a device adds it up while it copies. It guards against errors, not against an adversary: peers
// are processes of one user.
[[nodiscard]] uint64_t piece_checksum(std::span<const std::byte> bytes);

}  // namespace tandem::transport

#pragma once

#include <cstddef>
#include <span>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace tandem::transport {

// Memory that one process writes and others read: a file without a name (memfd) of fixed size that
// is gone with its last owner, however they end. Any thread.
class Segment {
 public:
  // Readable and writable, zeroed, in place.
  [[nodiscard]] static Result<Segment> create(size_t bytes);
  // A peer's, mapped read-only. kCorruptData unless its size is fixed (a peer that cut it would
  // kill its readers) and at most `most` bytes.
  [[nodiscard]] static Result<Segment> map(const Fd& file, size_t most);

  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  // Writable only where it was created.
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  // For peers; empty in a mapped one.
  [[nodiscard]] Result<Fd> file() const;

 private:
  std::span<std::byte> bytes_;
  Fd file_;
};

}  // namespace tandem::transport

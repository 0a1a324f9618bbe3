#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/kv/block_pool.h"

namespace tandem::kv {

struct Reservation {
  TransferId id = {};
  RequestId request = {};
  Generation writer = {};   // the only process that may write into the blocks
  TimePoint deadline = {};  // the lease
  BlockTable blocks = {};
};

struct ReservationCounters {
  uint64_t opened = 0;
  uint64_t completed = 0;
  uint64_t expired = 0;    // by sweep()
  uint64_t fenced = 0;     // by fence()
  uint64_t abandoned = 0;  // by abandon(): cancelled, failed
};

// Blocks that a remote writer may be writing into. The quiescence rule: blocks of a reservation
// that did not complete return to the pool only when the writer can no longer reach them, that is
// after quiesced() (the transport has closed the receive) or fence() (the writer's generation is
// shut out).
//
//   open -> complete()                      the table goes to the request
//   open -> abandon() | sweep()             quarantined: still held, no longer granted
//   quarantined -> quiesced() | fence()     blocks back to the pool
//
// The control thread only. sweep() is called on every tick, whether or not there is new work.
class Reservations {
 public:
  explicit Reservations(size_t capacity) : capacity_(capacity) {}

  // kInvalidArgument for a known id, kQueueFull beyond `capacity` open reservations.
  [[nodiscard]] Status open(Reservation reservation);
  // Every page has arrived and was checked, and the transport has ended the receive.
  [[nodiscard]] Result<Reservation> complete(TransferId id);
  // True if it was open. The caller then closes the receive and calls quiesced().
  bool abandon(TransferId id);
  // Reservations past their deadline, now quarantined; the caller closes each and calls quiesced().
  [[nodiscard]] std::vector<TransferId> sweep(TimePoint now);
  // The transport guarantees that nothing more is written for this id.
  void quiesced(TransferId id);
  // The transport has shut this writer out: all its reservations end at once. Returns those that
  // were open, so that their requests can be told.
  std::vector<TransferId> fence(Generation writer);

  [[nodiscard]] const Reservation* find(TransferId id) const;  // open ones
  [[nodiscard]] size_t open_count() const { return open_.size(); }
  [[nodiscard]] size_t quarantined_count() const { return quarantined_.size(); }
  [[nodiscard]] const ReservationCounters& counters() const { return counters_; }

 private:
  const size_t capacity_;
  std::unordered_map<TransferId, Reservation> open_;
  std::unordered_map<TransferId, Reservation> quarantined_;
  ReservationCounters counters_;
};

}  // namespace tandem::kv

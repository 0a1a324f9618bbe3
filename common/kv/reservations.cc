#include "common/kv/reservations.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tandem::kv {

Status Reservations::open(Reservation reservation) {
  const TransferId id = reservation.id;
  if (open_.contains(id) || quarantined_.contains(id)) {
    return fail(ErrorCode::kInvalidArgument,
                "transfer " + std::to_string(id.value) + " already has a reservation here",
                "transfer_id");
  }
  if (open_.size() >= capacity_) {
    return fail(ErrorCode::kQueueFull,
                "all " + std::to_string(capacity_) + " KV reservations are open");
  }
  open_.emplace(id, std::move(reservation));
  ++counters_.opened;
  return {};
}

Result<Reservation> Reservations::complete(TransferId id) {
  const auto it = open_.find(id);
  if (it == open_.end()) {
    return fail(ErrorCode::kNotFound,
                "transfer " + std::to_string(id.value) + " has no open reservation", "transfer_id");
  }
  Reservation reservation = std::move(it->second);
  open_.erase(it);
  ++counters_.completed;
  return reservation;
}

bool Reservations::abandon(TransferId id) {
  auto node = open_.extract(id);
  if (node.empty()) return false;
  quarantined_.insert(std::move(node));
  ++counters_.abandoned;
  return true;
}

std::vector<TransferId> Reservations::sweep(TimePoint now) {
  std::vector<TransferId> expired;
  for (const auto& [id, reservation] : open_) {
    if (reservation.deadline <= now) expired.push_back(id);
  }
  std::ranges::sort(expired);  // the same order on every run
  for (const TransferId id : expired) quarantined_.insert(open_.extract(id));
  counters_.expired += expired.size();
  return expired;
}

void Reservations::quiesced(TransferId id) { quarantined_.erase(id); }

std::vector<TransferId> Reservations::fence(Generation writer) {
  std::vector<TransferId> ended;
  for (const auto& [id, reservation] : open_) {
    if (reservation.writer == writer) ended.push_back(id);
  }
  std::ranges::sort(ended);
  for (const TransferId id : ended) open_.erase(id);
  std::erase_if(quarantined_, [&](const auto& entry) { return entry.second.writer == writer; });
  counters_.fenced += ended.size();
  return ended;
}

const Reservation* Reservations::find(TransferId id) const {
  const auto it = open_.find(id);
  return it == open_.end() ? nullptr : &it->second;
}

}  // namespace tandem::kv

#include "common/transport/direct/slot_link.h"

#include <algorithm>
#include <iterator>

#include "common/transport/direct/wire_format.h"

namespace tandem::transport {
namespace {

// An offer's note: the slot, and where it lies in the sender's memory.
struct Note {
  uint64_t slot = 0;
  uint64_t at = 0;
};
std::string encode(const Note& note) { return FieldWriter().put(note.slot).put(note.at).take(); }
Result<Note> parse(std::string_view text) {
  FieldReader fields(text);
  Note note;
  note.slot = fields.get<uint64_t>();
  note.at = fields.get<uint64_t>();
  if (!fields.complete()) return fail(ErrorCode::kCorruptData, "an offer has the wrong length");
  return note;
}

size_t bytes_of(std::span<const Piece> pieces) { return pieces.size() * pieces.front().bytes; }

}  // namespace

SlotLink::~SlotLink() {
  for (const auto& [id, slot] : known_) {
    if (slot.data != nullptr) (sender_ ? slots_.sends : slots_.receives).put(slot.data);
  }
}

Result<std::optional<Link::Staged>> SlotLink::stage(std::span<Piece> pieces) {
  const size_t bytes = bytes_of(pieces);
  if (bytes > slots_.frame_bytes) {
    return fail(ErrorCode::kInvalidArgument, std::string(slots_.name) + ": a page of " +
                                                 std::to_string(bytes) +
                                                 " bytes is larger than a message may be");
  }
  std::byte* const data = slots_.sends.take(bytes);
  if (data == nullptr) return std::nullopt;
  known_[++last_slot_] = {.data = data, .bytes = bytes};
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i].to = data + i * pieces[i].bytes;
  return Staged{last_slot_, encode({last_slot_, slots_.sends.place(data)})};
}

void SlotLink::abandon(uint64_t slot) {
  const auto it = known_.find(slot);
  if (it == known_.end()) return;
  slots_.sends.put(it->second.data);
  known_.erase(it);
}

Status SlotLink::launch_run(uint64_t last, uint32_t count) {
  const auto wrong = [&](const char* what) {
    return fail(ErrorCode::kCorruptData, std::string(slots_.name) + ": a go for " + what);
  };
  const auto end = known_.find(last);
  if (end == known_.end()) return wrong("a slot that was not offered");
  Message message{.id = last, .data = end->second.data, .bytes = end->second.bytes};
  auto first = end;
  for (uint32_t i = 1; i < count; ++i) {
    if (first == known_.begin()) return wrong("more slots than were offered");
    --first;
    message.data -= first->second.bytes;
    message.bytes += first->second.bytes;
    if (message.data != first->second.data) return wrong("slots that lie apart");
  }
  for (auto slot = first; slot != std::next(end); ++slot) {
    if (slot->second.message != 0) return wrong("a slot that was sent");
    slot->second.message = last;
  }
  return send(message);
}

Result<uint64_t> SlotLink::accept(std::string_view text, std::span<Piece> pieces) {
  TANDEM_ASSIGN(const Note note, parse(text));
  const size_t bytes = bytes_of(pieces);
  if (note.slot <= last_slot_ || bytes == 0 || bytes > slots_.frame_bytes) {
    return fail(ErrorCode::kCorruptData,
                std::string(slots_.name) + ": an offer names an impossible slot");
  }
  last_slot_ = note.slot;
  known_[note.slot] = {.data = nullptr, .bytes = bytes, .at = note.at};
  return note.slot;
}

Result<bool> SlotLink::grant(uint64_t arrival, std::span<Piece> pieces) {
  const auto it = known_.find(arrival);
  if (it->second.data == nullptr) TANDEM_TRY(take_room(it));
  const Slot& slot = it->second;
  if (slot.data == nullptr) return false;
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i].from = slot.data + i * pieces[i].bytes;
  return true;
}

// For as many as lie one behind the other at the sender and find room likewise, or for the first.
// That is the peer's word: what cannot be cut apart is not joined.
Status SlotLink::take_room(Known::iterator first) {
  size_t bytes = first->second.bytes;
  uint32_t count = 1;
  auto end = std::next(first);
  for (auto last = first; end != known_.end(); last = end++, ++count) {
    const bool next = last->second.at + last->second.bytes == end->second.at &&
                      last->second.bytes % SlotSpace::kAlign == 0;
    if (!next || bytes + end->second.bytes > slots_.message_bytes) break;
    bytes += end->second.bytes;
  }
  std::byte* data = slots_.receives.take(bytes);
  if (data == nullptr && count > 1) {
    bytes = first->second.bytes;
    count = 1;
    end = std::next(first);
    data = slots_.receives.take(bytes);
  }
  if (data == nullptr) return {};
  const auto last = std::prev(end);
  last->second.goes = count;
  std::byte* rest = data;
  for (auto slot = first; slot != end; ++slot) {
    slot->second.message = last->first;
    slot->second.data = rest;
    if (slot != last) rest = slots_.receives.split(rest, slot->second.bytes);
  }
  return receive({.id = last->first, .data = data, .bytes = bytes});
}

uint32_t SlotLink::goes(uint64_t arrival) const { return known_.at(arrival).goes; }

void SlotLink::ended(uint64_t id) {
  // Its slots have no greater numbers; nothing older is left of an earlier message.
  for (auto it = known_.begin(); it != known_.end() && it->first <= id;) {
    const auto here = it++;
    if (here->second.message != id) continue;
    if (sender_) {
      abandon(here->first);
    } else {
      here->second.here = true;
    }
  }
}

void SlotLink::lose(uint64_t id) {
  std::erase_if(known_, [&](const auto& entry) { return entry.second.message == id; });
}

Result<bool> SlotLink::arrived(uint64_t arrival) { return known_.at(arrival).here; }

void SlotLink::release(uint64_t arrival) {
  const auto it = known_.find(arrival);
  if (it == known_.end()) return;
  if (it->second.data != nullptr) slots_.receives.put(it->second.data);
  known_.erase(it);
}

}  // namespace tandem::transport

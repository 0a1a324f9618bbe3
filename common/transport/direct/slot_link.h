#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/transport/direct/fabric.h"
#include "common/transport/direct/slot_space.h"

namespace tandem::transport {

// What links share whose pages move as messages between slots: gathered into one at the sender,
// sent when the receiver has room, scattered there. nccl and ucx differ in how a message moves.
//
// Frames that were gathered one behind the other and offered by the time the receiver has room
// become one message: a message costs both ends some 10 us, whatever its size. The receiver
// decides: it takes as much room in one piece, and the go names the last of the slots.
//
// Transport thread only.
class SlotLink : public Link {
 public:
  // Lives as long as the link.
  struct Slots {
    std::string_view name;  // of the transport, for errors
    SlotSpace& sends;
    SlotSpace& receives;
    size_t frame_bytes = 0;    // of one slot, at most
    size_t message_bytes = 0;  // of several slots together, at most
  };
  ~SlotLink() override;  // what is left in the maps goes back

  [[nodiscard]] Result<std::optional<Staged>> stage(std::span<Piece> pieces) final;
  [[nodiscard]] Status launch(uint64_t slot) final { return launch_run(slot, 1); }
  [[nodiscard]] Status launch_run(uint64_t last, uint32_t count) final;
  void abandon(uint64_t slot) final;

  [[nodiscard]] Result<uint64_t> accept(std::string_view note, std::span<Piece> pieces) final;
  [[nodiscard]] Result<bool> grant(uint64_t arrival, std::span<Piece> pieces) final;
  [[nodiscard]] bool needs_go() const final { return true; }
  [[nodiscard]] uint32_t goes(uint64_t arrival) const final;
  [[nodiscard]] Result<bool> arrived(uint64_t arrival) final;
  void release(uint64_t arrival) final;

 protected:
  // The id is that of its last slot, at both ends; ids grow.
  struct Message {
    uint64_t id = 0;
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  SlotLink(const Slots& slots, bool sender) : slots_(slots), sender_(sender) {}

  [[nodiscard]] virtual Status send(const Message& message) = 0;
  // Into memory that nobody else has until ended() or lose().
  [[nodiscard]] virtual Status receive(const Message& message) = 0;

  [[nodiscard]] bool sender() const { return sender_; }
  void ended(uint64_t id);  // a message has been sent or has come
  // A message that may yet be read or written though the link ends: its slots are nobody's again.
  void lose(uint64_t id);

 private:
  struct Slot {
    std::byte* data = nullptr;
    size_t bytes = 0;
    uint64_t at = 0;       // receiver: where it lies in the sender's memory
    uint64_t message = 0;  // which it is part of; 0: none yet
    uint32_t goes = 0;     // receiver: slots of the message that it is the last of
    bool here = false;     // receiver: its bytes have come
  };
  using Known = std::map<uint64_t, Slot>;
  [[nodiscard]] Status take_room(Known::iterator first);

  const Slots slots_;
  const bool sender_;
  Known known_;             // staged or accepted, and not yet sent or released
  uint64_t last_slot_ = 0;  // staged or accepted
};

}  // namespace tandem::transport

#pragma once

#include <memory>

#include "common/kv/page_memory.h"
#include "common/transport/direct/fabric.h"

namespace tandem::transport {

// Moves pages between processes of one host through memory that they share: a sender copies pages
// into slots of a segment of its own, one for each receiver, which maps it read-only and copies
// them out. Nobody writes where another process writes, and no one waits for a lock: a process that
// is killed or stopped at any instant leaves only its own segment behind, half-written or not.
//
// `memory` as in TransportDeps.
[[nodiscard]] std::unique_ptr<Fabric> create_shm_fabric(kv::PageMemory* memory);

}  // namespace tandem::transport

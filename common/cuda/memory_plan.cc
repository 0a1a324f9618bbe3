#include "common/cuda/memory_plan.h"

#include <algorithm>
#include <cstdio>

namespace tandem::cuda {
namespace {

std::string amount(uint64_t bytes) {
  char text[32];
  if (bytes >= uint64_t{10} << 30) {
    std::snprintf(text, sizeof(text), "%.1f GiB", static_cast<double>(bytes) / (1 << 30));
  } else if (bytes >= uint64_t{1} << 30) {
    std::snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  } else {
    std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  }
  return text;
}

uint64_t taken_bytes(const MemoryRequest& r) { return r.taken ? bytes_of(r.parts) : 0; }

// What this process may have of the card. A configured number of blocks is taken at its word; only
// "what is left" has to leave something for others.
uint64_t allowance(const MemoryRequest& r) {
  const uint64_t reachable = r.free_bytes + taken_bytes(r);
  if (r.kv_blocks != 0) return reachable;
  const double share = std::clamp(r.utilization, 0.0, 1.0) * static_cast<double>(r.total_bytes);
  return std::min(reachable, static_cast<uint64_t>(share));
}

uint64_t needed_beside_kv(const MemoryRequest& r) {
  return bytes_of(r.parts) + bytes_of(r.later) + r.kv_tail_bytes + r.reserve_bytes;
}

std::string share_text(const MemoryRequest& r) {
  char share[64] = "";
  if (r.kv_blocks == 0)
    std::snprintf(share, sizeof(share), " and gpu_memory_utilization is %.2f", r.utilization);
  return amount(r.free_bytes + taken_bytes(r)) + " of " + amount(r.total_bytes) +
         (taken_bytes(r) == 0 ? " are free" : " are free or this process's") + share;
}

std::string neighbours_text(const MemoryRequest& r) {
  const uint64_t used = r.total_bytes - std::min(r.total_bytes, r.free_bytes + taken_bytes(r));
  // A context of one's own takes about half a gigabyte; more than that is somebody else's.
  constexpr uint64_t kOwnContext = uint64_t{1} << 30;
  if (r.neighbours.empty()) {
    return used > kOwnContext ? "; " + amount(used) + " are in use (nvidia-smi shows by whom)" : "";
  }
  std::string text = "; other processes on the card: ";
  for (size_t i = 0; i < r.neighbours.size(); ++i) {
    const MemoryNeighbour& n = r.neighbours[i];
    if (i > 0) text += ", ";
    text += n.name.empty() ? "process" : n.name;
    text += " (pid " + std::to_string(n.pid) + ") " + amount(n.bytes);
  }
  return text;
}

// "weights 14.2 GiB, activations 310 MiB, open KV pages 5 MiB, "
std::string parts_text(const MemoryRequest& r) {
  std::string text;
  for (const auto* parts : {&r.parts, &r.later}) {
    for (const MemoryPart& part : *parts) text += part.name + " " + amount(part.bytes) + ", ";
  }
  if (r.kv_tail_bytes > 0) text += "open KV pages " + amount(r.kv_tail_bytes) + ", ";
  return text;
}

std::string remedies(const MemoryRequest& r) {
  std::string text = "Use a card with more free memory";
  if (!r.neighbours.empty() || r.free_bytes + taken_bytes(r) < r.total_bytes / 2)
    text += ", end what else uses this one";
  if (r.kv_blocks == 0) {
    if (r.utilization < 0.95) text += ", raise gpu_memory_utilization";
  } else {
    text += ", lower kv.memory or kv.blocks";
  }
  for (const auto* parts : {&r.parts, &r.later}) {
    for (const MemoryPart& part : *parts) {
      if (!part.remedy.empty()) text += ", " + part.remedy + " (" + part.name + ")";
    }
  }
  return text;
}

Error does_not_fit(const MemoryRequest& r, uint64_t kv_blocks) {
  std::string text = r.device + ": the model does not fit. Needed: " + parts_text(r);
  text += std::string("KV cache ") + (r.kv_blocks == 0 ? "at least " : "") +
          amount(kv_blocks * r.kv_block_bytes) + " (" + std::to_string(kv_blocks) + " blocks), " +
          "reserve for CUDA itself " + amount(r.reserve_bytes) + "; together " +
          amount(needed_beside_kv(r) + kv_blocks * r.kv_block_bytes) +
          ". Allowed: " + amount(allowance(r)) + " (" + share_text(r) + neighbours_text(r) + "). " +
          remedies(r) + ".";
  return make_error(ErrorCode::kResourceExhausted, std::move(text));
}

}  // namespace

uint64_t bytes_of(const std::vector<MemoryPart>& parts) {
  uint64_t sum = 0;
  for (const MemoryPart& part : parts) sum += part.bytes;
  return sum;
}

Result<uint64_t> plan_kv_blocks(const MemoryRequest& r) {
  if (r.kv_block_bytes == 0) return fail(ErrorCode::kInternal, "a KV block of 0 bytes");
  const uint64_t allowed = allowance(r);
  const uint64_t room = allowed - std::min(allowed, needed_beside_kv(r));
  const uint64_t fitting = room / r.kv_block_bytes;
  const uint64_t least = r.kv_blocks != 0 ? r.kv_blocks : r.kv_least_blocks;
  if (fitting < least) return fail(does_not_fit(r, least));
  return r.kv_blocks != 0 ? r.kv_blocks : std::min(fitting, r.kv_most_blocks);
}

std::string describe(const MemoryRequest& r, uint64_t kv_blocks) {
  return parts_text(r) + "KV cache " + amount(kv_blocks * r.kv_block_bytes) + " (" +
         std::to_string(kv_blocks) + " blocks) of " + amount(r.total_bytes) + "; " +
         amount(r.reserve_bytes) + " kept for CUDA itself";
}

Error lost_race(const MemoryRequest& r, uint64_t kv_blocks, uint64_t free_bytes_now) {
  MemoryRequest now = r;
  now.free_bytes = free_bytes_now;
  return make_error(
      ErrorCode::kResourceExhausted,
      r.device + ": the plan (" + describe(r, kv_blocks) +
          ") fitted when this process looked, but the card refused: " + share_text(now) + " now" +
          neighbours_text(now) +
          ". Another process is taking memory of the same card: give each a share with "
          "gpu_memory_utilization, or start them one after the other.");
}

}  // namespace tandem::cuda

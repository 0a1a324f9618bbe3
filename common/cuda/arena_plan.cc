#include "common/cuda/arena_plan.h"

#include <algorithm>
#include <cstdio>

namespace tandem::cuda {
namespace {

constexpr uint64_t aligned(uint64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

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

// The bytes of `parts`, each aligned as it will lie.
uint64_t fixed_bytes(const ArenaRequest& r) {
  uint64_t sum = aligned(r.kv_tail_bytes);
  for (const ArenaPart& part : r.parts) sum += aligned(part.bytes);
  return sum;
}

// What the arena may take. A configured number of blocks is taken at its word; only "what is left"
// has to leave something for others.
uint64_t allowance(const ArenaRequest& r) {
  uint64_t allowed = r.free_bytes + r.taken_bytes;
  if (r.kv_blocks == 0) {
    const double share = std::clamp(r.utilization, 0.0, 1.0) * static_cast<double>(r.total_bytes);
    allowed = std::min(allowed, static_cast<uint64_t>(share));
  }
  return allowed - std::min(allowed, r.reserve_bytes);
}

std::string share_text(const ArenaRequest& r) {
  char share[64] = "";
  if (r.kv_blocks == 0)
    std::snprintf(share, sizeof(share), " and gpu_memory_utilization is %.2f", r.utilization);
  return amount(r.free_bytes + r.taken_bytes) + " of " + amount(r.total_bytes) +
         (r.taken_bytes == 0 ? " are free" : " are free or this process's") + share;
}

std::string neighbours_text(const ArenaRequest& r) {
  const uint64_t used = r.total_bytes - std::min(r.total_bytes, r.free_bytes + r.taken_bytes);
  // A context of one's own takes about half a gigabyte; more than that is somebody else's.
  constexpr uint64_t kOwnContext = uint64_t{1} << 30;
  if (r.neighbours.empty()) {
    return used > kOwnContext ? "; " + amount(used) + " are in use (nvidia-smi shows by whom)" : "";
  }
  std::string text = "; other processes on the card: ";
  for (size_t i = 0; i < r.neighbours.size(); ++i) {
    const ArenaNeighbour& n = r.neighbours[i];
    if (i > 0) text += ", ";
    text += n.name.empty() ? "process" : n.name;
    text += " (pid " + std::to_string(n.pid) + ") " + amount(n.bytes);
  }
  return text;
}

std::string remedies(const ArenaRequest& r) {
  std::string text = "Use a card with more free memory";
  if (!r.neighbours.empty() || r.free_bytes + r.taken_bytes < r.total_bytes / 2)
    text += ", end what else uses this one";
  if (r.kv_blocks == 0) {
    if (r.utilization < 0.95) text += ", raise gpu_memory_utilization";
  } else {
    text += ", lower kv.memory or kv.blocks";
  }
  for (const ArenaPart& part : r.parts) {
    if (!part.remedy.empty()) text += ", " + part.remedy + " (" + part.name + ")";
  }
  return text;
}

Error does_not_fit(const ArenaRequest& r, uint64_t kv_blocks) {
  std::string text = r.device + ": the model does not fit. Needed: ";
  uint64_t sum = r.reserve_bytes;
  for (const ArenaPart& part : r.parts) {
    text += part.name + " " + amount(part.bytes) + ", ";
    sum += aligned(part.bytes);
  }
  if (r.kv_tail_bytes > 0) text += "KV tails " + amount(r.kv_tail_bytes) + ", ";
  sum += aligned(r.kv_tail_bytes) + kv_blocks * r.kv_block_bytes;
  text += std::string("KV cache ") + (r.kv_blocks == 0 ? "at least " : "") +
          amount(kv_blocks * r.kv_block_bytes) + " (" + std::to_string(kv_blocks) + " blocks), " +
          "reserve for CUDA itself " + amount(r.reserve_bytes) + "; together " + amount(sum) +
          ". Allowed: " + amount(allowance(r) + r.reserve_bytes) + " (" + share_text(r) +
          neighbours_text(r) + "). " + remedies(r) + ".";
  return make_error(ErrorCode::kResourceExhausted, std::move(text));
}

}  // namespace

Result<ArenaPlan> plan_arena(const ArenaRequest& r) {
  if (r.kv_block_bytes == 0) return fail(ErrorCode::kInternal, "a KV block of 0 bytes");
  const uint64_t fixed = fixed_bytes(r);
  const uint64_t allowed = allowance(r);
  const uint64_t least = r.kv_blocks != 0 ? r.kv_blocks : r.kv_least_blocks;
  // The pages' end is aligned too.
  const uint64_t room = allowed - std::min(allowed, fixed + kArenaAlignment);
  const uint64_t fitting = room / r.kv_block_bytes;
  if (fitting < least) return fail(does_not_fit(r, least));

  ArenaPlan plan;
  plan.kv_blocks = r.kv_blocks != 0 ? r.kv_blocks : std::min(fitting, r.kv_most_blocks);
  plan.parts.resize(r.parts.size());
  auto place = [&plan](uint64_t bytes) {
    const ArenaSpan span{plan.bytes, bytes};
    plan.bytes += aligned(bytes);
    return span;
  };
  for (size_t i = 0; i < r.parts.size(); ++i) {
    if (!r.parts[i].lendable) plan.parts[i] = place(r.parts[i].bytes);
  }
  plan.kv_tails = place(r.kv_tail_bytes);
  plan.kv_pages = place(plan.kv_blocks * r.kv_block_bytes);
  plan.lendable.offset = plan.bytes;
  for (size_t i = 0; i < r.parts.size(); ++i) {
    if (r.parts[i].lendable) plan.parts[i] = place(r.parts[i].bytes);
  }
  plan.lendable.bytes = plan.bytes - plan.lendable.offset;
  return plan;
}

std::string describe(const ArenaRequest& r, const ArenaPlan& plan) {
  std::string text;
  for (const ArenaPart& part : r.parts) text += part.name + " " + amount(part.bytes) + ", ";
  if (r.kv_tail_bytes > 0) text += "KV tails " + amount(r.kv_tail_bytes) + ", ";
  return text + "KV cache " + amount(plan.kv_pages.bytes) + " (" + std::to_string(plan.kv_blocks) +
         " blocks), together " + amount(plan.bytes) + " of " + amount(r.total_bytes) + "; " +
         amount(r.reserve_bytes) + " kept for CUDA itself";
}

Error arena_race(const ArenaRequest& r, const ArenaPlan& plan, uint64_t free_bytes_now) {
  ArenaRequest now = r;
  now.free_bytes = free_bytes_now;
  return make_error(
      ErrorCode::kResourceExhausted,
      r.device + ": " + amount(plan.bytes) + " (" + describe(r, plan) +
          ") fitted when this process looked, but the card refused them: " + share_text(now) +
          " now" + neighbours_text(now) +
          ". Another process is taking memory of the same card: give each a share with "
          "gpu_memory_utilization, or start them one after the other.");
}

}  // namespace tandem::cuda

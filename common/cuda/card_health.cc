#include "common/cuda/card_health.h"

#include <algorithm>

namespace tandem::cuda {
namespace {

// A link that replays now and then is within its specification; one that does so all the time
// loses bandwidth. NVIDIA's own limits are per hour and link.
constexpr double kReplaysPerSecond = 1.0;
constexpr double kCrcErrorsPerSecond = 1.0;

uint64_t grown(uint64_t now, uint64_t before) { return now - std::min(now, before); }

void add_rate(std::vector<std::string>& problems, const char* what, uint64_t count, double seconds,
              double limit) {
  if (seconds <= 0 || static_cast<double>(count) / seconds <= limit) return;
  problems.push_back(std::to_string(count) + " NVLink " + what + " in the last " +
                     std::to_string(static_cast<int>(seconds + 0.5)) + " s");
}

uint64_t slowest_active(const CardHealth& card) {
  uint64_t slowest = 0;
  for (const NvLink& link : card.nvlinks) {
    if (!link.active || !link.bytes_per_second) continue;
    slowest = slowest == 0 ? *link.bytes_per_second : std::min(slowest, *link.bytes_per_second);
  }
  return slowest;
}

uint64_t fastest_active(const CardHealth& card) {
  uint64_t fastest = 0;
  for (const NvLink& link : card.nvlinks) {
    if (link.active) fastest = std::max(fastest, link.bytes_per_second.value_or(0));
  }
  return fastest;
}

}  // namespace

LinkState link_state(const CardHealth& card) {
  LinkState state;
  for (const NvLink& link : card.nvlinks) {
    ++state.links;
    state.replays += link.replays.value_or(0);
    state.recoveries += link.recoveries.value_or(0);
    state.crc_errors += link.crc_errors.value_or(0);
    if (!link.active) continue;
    ++state.active;
    state.bytes_per_second += link.bytes_per_second.value_or(0);
  }
  return state;
}

std::vector<std::string> link_problems(const CardHealth& now, const CardHealth* earlier,
                                       double seconds) {
  std::vector<std::string> problems;
  const LinkState state = link_state(now);
  // None active: a card by itself, or a machine whose other cards belong to somebody else.
  if (state.active > 0 && state.active < state.links) {
    problems.push_back(std::to_string(state.active) + " of " + std::to_string(state.links) +
                       " NVLinks are up");
  }
  if (slowest_active(now) < fastest_active(now)) {
    problems.push_back("an NVLink runs at " + std::to_string(slowest_active(now) / 1'000'000) +
                       " MB/s while others run at " +
                       std::to_string(fastest_active(now) / 1'000'000));
  }
  // Fewer lanes than both ends can do; the generation drops when idle, to save power, and says
  // nothing.
  if (now.pcie_lanes && now.pcie_lanes_max && *now.pcie_lanes < *now.pcie_lanes_max) {
    problems.push_back("PCIe runs on " + std::to_string(*now.pcie_lanes) + " of " +
                       std::to_string(*now.pcie_lanes_max) + " lanes");
  }
  if (earlier == nullptr) return problems;
  const LinkState before = link_state(*earlier);
  if (state.active < before.active) {
    problems.push_back(std::to_string(before.active - state.active) + " NVLinks went down");
  }
  add_rate(problems, "replays", grown(state.replays, before.replays), seconds, kReplaysPerSecond);
  add_rate(problems, "CRC errors", grown(state.crc_errors, before.crc_errors), seconds,
           kCrcErrorsPerSecond);
  // A recovery retrains the link: everything on it stops meanwhile. One is enough to be told.
  const uint64_t recoveries = grown(state.recoveries, before.recoveries);
  if (recoveries > 0) problems.push_back(std::to_string(recoveries) + " NVLink recoveries");
  const uint64_t ecc = grown(now.ecc_uncorrected.value_or(0), earlier->ecc_uncorrected.value_or(0));
  if (ecc > 0) problems.push_back(std::to_string(ecc) + " uncorrectable memory errors");
  return problems;
}

const char* path_name(PairPath path) {
  switch (path) {
    case PairPath::kSameCard:
      return "X";
    case PairPath::kNvLink:
      return "NV";
    case PairPath::kPcieSwitch:
      return "PIX";
    case PairPath::kHostBridge:
      return "PHB";
    case PairPath::kNumaNode:
      return "NODE";
    case PairPath::kSystem:
      return "SYS";
    case PairPath::kUnknown:
      return "?";
  }
  return "?";
}

PairVerdict judge_pair(const CardPair& pair, const std::vector<std::string>& problems_a,
                       const std::vector<std::string>& problems_b) {
  PairVerdict verdict;
  auto add_reason = [&verdict](const std::string& text) {
    if (!verdict.reason.empty()) verdict.reason += "; ";
    verdict.reason += text;
  };
  for (const auto* problems : {&problems_a, &problems_b}) {
    for (const std::string& problem : *problems) add_reason(problem);
  }
  verdict.degraded = !verdict.reason.empty();
  switch (pair.path) {
    case PairPath::kSameCard:
      verdict = {.peer_access = true, .degraded = false, .reason = {}};
      break;
    case PairPath::kNvLink:
      verdict.peer_access = 4 * pair.nvlinks >= pair.nvlinks_all && pair.nvlinks > 0;
      if (!verdict.peer_access) {
        verdict.degraded = true;
        add_reason("only " + std::to_string(pair.nvlinks) + " of " +
                   std::to_string(pair.nvlinks_all) + " NVLinks are left");
      }
      break;
    case PairPath::kPcieSwitch:
      verdict.peer_access = true;
      break;
    case PairPath::kHostBridge:
    case PairPath::kNumaNode:
    case PairPath::kSystem:
      add_reason(std::string("the cards meet only at ") + path_name(pair.path));
      break;
    case PairPath::kUnknown:
      add_reason("how the cards are connected is not known");
      break;
  }
  return verdict;
}

}  // namespace tandem::cuda

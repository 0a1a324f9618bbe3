#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// The state of cards and of the links between them, as NVML tells it, and what to make of it. Plain
// data and pure functions, free of NVIDIA's headers.
namespace tandem::cuda {

struct NvLink {
  bool active = false;
  std::optional<uint64_t> bytes_per_second;  // one way
  // Since the driver was loaded.
  std::optional<uint64_t> replays;
  std::optional<uint64_t> recoveries;
  std::optional<uint64_t> crc_errors;
};

// What a card does not tell stays empty.
struct CardHealth {
  uint32_t index = 0;  // NVML's order (PCI), not CUDA's
  std::string name;
  std::string uuid;
  std::string pci_id;
  std::optional<int> temperature_celsius;
  std::optional<double> power_watts;
  std::optional<double> power_limit_watts;
  std::optional<uint64_t> sm_clock_hertz;
  std::optional<uint64_t> memory_clock_hertz;
  std::optional<uint64_t> sm_clock_max_hertz;
  std::optional<double> busy_ratio;    // share of the last sample period with a kernel running
  std::vector<std::string> slowed_by;  // "power", "temperature", "hardware": why clocks are low
  std::optional<uint64_t> memory_total_bytes;
  std::optional<uint64_t> memory_used_bytes;
  std::optional<uint32_t> pcie_generation, pcie_generation_max;
  std::optional<uint32_t> pcie_lanes, pcie_lanes_max;
  std::optional<uint64_t> pcie_replays;
  std::optional<uint64_t> ecc_corrected, ecc_uncorrected;  // since the driver was loaded
  std::vector<NvLink> nvlinks;

  struct Process {
    uint32_t pid = 0;
    std::string name;  // empty where another container hides it
    uint64_t bytes = 0;
  };
  std::vector<Process> processes;
};

// A card's NVLinks together.
struct LinkState {
  uint32_t links = 0;  // the card has
  uint32_t active = 0;
  uint64_t bytes_per_second = 0;  // of the active ones together, one way; 0: not told
  uint64_t replays = 0, recoveries = 0, crc_errors = 0;
};
[[nodiscard]] LinkState link_state(const CardHealth& card);

// Problems of a card's links that make them slower or less sure than they should be; empty: none.
// Each is one sentence. `earlier` is a reading of the same card some time before (null: none) and
// `seconds` the time between both; errors count by their rate, since a counter of old troubles
// says nothing of today.
[[nodiscard]] std::vector<std::string> link_problems(const CardHealth& now,
                                                     const CardHealth* earlier, double seconds);

// How two cards reach each other, best first.
enum class PairPath : uint8_t {
  kSameCard,
  kNvLink,      // directly or through NVSwitch
  kPcieSwitch,  // one or several PCIe switches
  kHostBridge,  // through the CPU's PCIe root
  kNumaNode,    // through the CPU's interconnect within a NUMA node
  kSystem,      // across sockets
  kUnknown,
};
[[nodiscard]] const char* path_name(
    PairPath path);  // as `nvidia-smi topo -m` has it: "NV18", "PIX"

struct CardPair {
  PairPath path = PairPath::kUnknown;
  uint32_t nvlinks = 0;      // active, at the end that has fewer
  uint32_t nvlinks_all = 0;  // there, working or not
};

// What a transport should do with a pair of cards.
struct PairVerdict {
  bool peer_access = false;  // copies from card to card are worth choosing
  bool degraded = false;     // slower than the hardware is meant to be
  std::string reason;        // one sentence, for the log; empty when all is well
};
// `problems_*`: link_problems() of both ends. A degraded NVLink is used as long as it is expected
// to be faster than going through the host (a quarter of the links, or more).
[[nodiscard]] PairVerdict judge_pair(const CardPair& pair,
                                     const std::vector<std::string>& problems_a,
                                     const std::vector<std::string>& problems_b);

}  // namespace tandem::cuda

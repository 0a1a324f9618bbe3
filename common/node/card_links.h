#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/cuda/card_health.h"

namespace tandem::node {

// Two cards of this box between which KV travels, by CUDA's numbers, and the state of the way.
struct CardLink {
  uint32_t a = 0;
  uint32_t b = 0;
  cuda::CardPair pair;
  std::vector<std::string> problems_a = {};  // cuda::link_problems() of each end, right now
  std::vector<std::string> problems_b = {};

  [[nodiscard]] std::string name() const;  // "cuda:0 - cuda:1"
};

// Where readings come from: NVML on a real machine.
struct CardReadings {
  std::function<Result<cuda::CardHealth>(uint32_t card)> card;
  std::function<Result<cuda::CardPair>(uint32_t a, uint32_t b)> pair;
};
// Opened by the first reading; every reading of a machine without NVML is an error. `folders`:
// gpu.libraries. One thread.
[[nodiscard]] CardReadings nvml_readings(const std::vector<std::string>& folders);

// The cards of every prefill node of the file with those of every decode node, each pair once.
[[nodiscard]] std::vector<std::pair<uint32_t, uint32_t>> card_pairs(const ClusterConfig& config);

// One reading of each pair; what cannot be read is a way that is not known, and a problem. A pair
// of one card is not read. Takes some milliseconds, up to a hundred a card.
[[nodiscard]] std::vector<CardLink> read_card_links(
    const std::vector<std::pair<uint32_t, uint32_t>>& pairs, const CardReadings& readings);

}  // namespace tandem::node

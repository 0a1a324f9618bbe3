#include "common/node/card_links.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "common/config/units.h"
#include "common/cuda/card_monitor.h"
#include "common/cuda/device_info.h"

namespace tandem::node {
namespace {

std::vector<std::string> problems_of(uint32_t card, const CardReadings& readings) {
  const auto health = readings.card(card);
  if (!health) return {"cuda:" + std::to_string(card) + ": " + health.error().detail};
  return cuda::link_problems(*health, nullptr, 0);
}

}  // namespace

std::string CardLink::name() const {
  return "cuda:" + std::to_string(a) + " - cuda:" + std::to_string(b);
}

CardReadings nvml_readings(const std::vector<std::string>& folders) {
  struct Cards {
    Result<cuda::CardMonitor> monitor;
    Result<std::vector<cuda::DeviceInfo>> devices;  // CUDA's numbers
    [[nodiscard]] Result<std::string> uuid(uint32_t card) const {
      if (!monitor) return fail(monitor.error());
      if (!devices) return fail(devices.error());
      if (card < devices->size()) return (*devices)[card].uuid;
      return fail(ErrorCode::kConfig, "there is no device cuda:" + std::to_string(card));
    }
  };
  // Opened by the first reading: most files have none.
  const auto cards = [folders, opened = std::make_shared<std::optional<Cards>>()]() -> Cards& {
    if (!*opened) {
      opened->emplace(
          Cards{.monitor = cuda::CardMonitor::open(folders), .devices = cuda::list_devices()});
    }
    return **opened;
  };
  return {.card = [cards](uint32_t card) -> Result<cuda::CardHealth> {
            TANDEM_ASSIGN(const std::string uuid, cards().uuid(card));
            return cards().monitor->read(uuid);
          },
          .pair = [cards](uint32_t a, uint32_t b) -> Result<cuda::CardPair> {
            TANDEM_ASSIGN(const std::string uuid_a, cards().uuid(a));
            TANDEM_ASSIGN(const std::string uuid_b, cards().uuid(b));
            return cards().monitor->pair(uuid_a, uuid_b);
          }};
}

std::vector<std::pair<uint32_t, uint32_t>> card_pairs(const ClusterConfig& config) {
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (const NodeSettings& prefill : config.prefill) {
    const auto a = parse_device(prefill.device);
    if (!a || !a->cuda) continue;
    for (const NodeSettings& decode : config.decode) {
      const auto b = parse_device(decode.device);
      if (b && b->cuda) pairs.emplace_back(std::minmax(a->index, b->index));
    }
  }
  std::ranges::sort(pairs);
  pairs.erase(std::ranges::unique(pairs).begin(), pairs.end());
  return pairs;
}

std::vector<CardLink> read_card_links(const std::vector<std::pair<uint32_t, uint32_t>>& pairs,
                                      const CardReadings& readings) {
  std::vector<CardLink> links;
  for (const auto& [a, b] : pairs) {
    CardLink link{.a = a, .b = b, .pair = {.path = cuda::PairPath::kSameCard}};
    if (a != b) {
      const auto pair = readings.pair(a, b);
      link.pair = pair.value_or(cuda::CardPair{});
      link.problems_a = problems_of(a, readings);
      link.problems_b = problems_of(b, readings);
      if (!pair) link.problems_a.push_back(pair.error().detail);
    }
    links.push_back(std::move(link));
  }
  return links;
}

}  // namespace tandem::node

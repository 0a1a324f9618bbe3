#include "common/cuda/card_monitor.h"

#include <cstdio>

#include "common/cuda/device.h"
#include "tests/gpu/card.h"

namespace tandem::cuda {
namespace {

using Monitor = CardTest;

// The first line that a command prints; empty when it cannot be run.
std::string line_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  char text[256] = {};
  if (std::fgets(text, sizeof(text), pipe) == nullptr) text[0] = 0;
  pclose(pipe);
  std::string line(text);
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  return line;
}

TEST_F(Monitor, TellsWhatNvidiaSmiTells) {
  const auto device = Device::open(0);
  ASSERT_TRUE(device) << device.error().to_string();
  auto monitor = CardMonitor::open();
  ASSERT_TRUE(monitor) << monitor.error().to_string();
  const auto card = monitor->read(device->info().uuid);
  ASSERT_TRUE(card) << card.error().to_string();
  const std::string query =
      "nvidia-smi --format=csv,noheader,nounits -i " + card->uuid + " --query-gpu=";
  if (line_of(query + "uuid 2>/dev/null") != card->uuid) GTEST_SKIP() << "no nvidia-smi here";
  EXPECT_EQ(line_of(query + "name"), card->name);
  EXPECT_EQ(line_of(query + "driver_version"), monitor->driver_version());
  EXPECT_EQ(line_of(query + "memory.total"),
            std::to_string(card->memory_total_bytes.value_or(0) >> 20));
  EXPECT_EQ(line_of(query + "pcie.link.width.current"),
            std::to_string(card->pcie_lanes.value_or(0)));
  EXPECT_EQ(line_of(query + "pcie.link.gen.gpumax"),
            std::to_string(card->pcie_generation_max.value_or(0)));
  EXPECT_EQ(line_of(query + "ecc.errors.uncorrected.volatile.total"),
            std::to_string(card->ecc_uncorrected.value_or(0)));
  EXPECT_NEAR(std::stod(line_of(query + "temperature.gpu")),
              card->temperature_celsius.value_or(-1000), 10);
  EXPECT_NEAR(std::stod(line_of(query + "enforced.power.limit")),
              card->power_limit_watts.value_or(0), 1);
  EXPECT_GT(card->power_watts.value_or(0), 1);
  const LinkState links = link_state(*card);
  const std::string speed =
      line_of("nvidia-smi nvlink --status -i " + card->uuid +
              " | awk '/GB\\/s/ {sum += $3} END {printf \"%d\", sum * 1000}'");
  EXPECT_NEAR(std::stod(speed) * 1e6, static_cast<double>(links.bytes_per_second), 1e9) << speed;
  std::printf(
      "%u of %u NVLinks, %.1f GB/s, replays %llu; PCIe gen %u x%u; SM %llu MHz; %zu processes\n",
      links.active, links.links, static_cast<double>(links.bytes_per_second) / 1e9,
      static_cast<unsigned long long>(links.replays), card->pcie_generation.value_or(0),
      card->pcie_lanes.value_or(0),
      static_cast<unsigned long long>(card->sm_clock_hertz.value_or(0) / 1'000'000),
      card->processes.size());
}

TEST_F(Monitor, TheMatrixIsSymmetricWithItselfOnTheDiagonal) {
  auto monitor = CardMonitor::open();
  ASSERT_TRUE(monitor) << monitor.error().to_string();
  const auto matrix = monitor->topology();
  ASSERT_TRUE(matrix) << matrix.error().to_string();
  for (size_t i = 0; i < matrix->size(); ++i) {
    EXPECT_EQ((*matrix)[i][i].path, PairPath::kSameCard);
    for (size_t j = 0; j < matrix->size(); ++j) {
      EXPECT_EQ((*matrix)[i][j].path, (*matrix)[j][i].path);
      EXPECT_NE((*matrix)[i][j].path, PairPath::kUnknown);
    }
  }
}

TEST_F(Monitor, AnUnknownCardIsAnError) {
  auto monitor = CardMonitor::open();
  ASSERT_TRUE(monitor);
  const auto card = monitor->read("GPU-00000000-0000-0000-0000-000000000000");
  ASSERT_FALSE(card);
  EXPECT_NE(card.error().detail.find("NVML"), std::string::npos);
}

}  // namespace
}  // namespace tandem::cuda

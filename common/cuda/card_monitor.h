#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/cuda/card_health.h"

namespace tandem::cuda {

// NVML (libnvidia-ml.so.1, part of the driver), opened at run time. It needs no CUDA context and
// sees every card of the machine. A reading takes a millisecond or, at bad times, a hundred: never
// call it on a thread that serves. One thread at a time.
class CardMonitor {
 public:
  [[nodiscard]] static Result<CardMonitor> open(std::span<const std::string> folders = {});
  CardMonitor(CardMonitor&&) noexcept;
  CardMonitor& operator=(CardMonitor&&) noexcept;
  ~CardMonitor();

  [[nodiscard]] Result<std::vector<CardHealth>> read_all();
  [[nodiscard]] Result<CardHealth> read(std::string_view uuid);  // as DeviceInfo has it
  // The matrix of `nvidia-smi topo -m`: [i][j] for cards in the order of read_all().
  [[nodiscard]] Result<std::vector<std::vector<CardPair>>> topology();
  [[nodiscard]] Result<CardPair> pair(std::string_view uuid_a, std::string_view uuid_b);
  [[nodiscard]] std::string driver_version() const;  // "580.159.04"

 private:
  struct Impl;
  explicit CardMonitor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::cuda

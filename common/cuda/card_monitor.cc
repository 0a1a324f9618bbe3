#include "common/cuda/card_monitor.h"

#include <nvml.h>

#include <algorithm>
#include <array>

#include "common/base/dynamic_library.h"

namespace tandem::cuda {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

// Functions without which there is no reading at all.
#define TANDEM_NVML_NEEDED(X)      \
  X(nvmlInit_v2)                   \
  X(nvmlShutdown)                  \
  X(nvmlErrorString)               \
  X(nvmlSystemGetDriverVersion)    \
  X(nvmlDeviceGetCount_v2)         \
  X(nvmlDeviceGetHandleByIndex_v2) \
  X(nvmlDeviceGetHandleByUUID)     \
  X(nvmlDeviceGetName)             \
  X(nvmlDeviceGetUUID)             \
  X(nvmlDeviceGetPciInfo_v3)

// Those that an older driver may lack; what they tell stays empty then.
#define TANDEM_NVML_OPTIONAL(X)              \
  X(nvmlDeviceGetTemperatureV)               \
  X(nvmlDeviceGetPowerUsage)                 \
  X(nvmlDeviceGetEnforcedPowerLimit)         \
  X(nvmlDeviceGetClockInfo)                  \
  X(nvmlDeviceGetMaxClockInfo)               \
  X(nvmlDeviceGetUtilizationRates)           \
  X(nvmlDeviceGetCurrentClocksEventReasons)  \
  X(nvmlDeviceGetMemoryInfo)                 \
  X(nvmlDeviceGetCurrPcieLinkGeneration)     \
  X(nvmlDeviceGetMaxPcieLinkGeneration)      \
  X(nvmlDeviceGetCurrPcieLinkWidth)          \
  X(nvmlDeviceGetMaxPcieLinkWidth)           \
  X(nvmlDeviceGetPcieReplayCounter)          \
  X(nvmlDeviceGetTotalEccErrors)             \
  X(nvmlDeviceGetFieldValues)                \
  X(nvmlDeviceGetNvLinkState)                \
  X(nvmlDeviceGetNvLinkVersion)              \
  X(nvmlDeviceGetNvLinkErrorCounter)         \
  X(nvmlDeviceGetComputeRunningProcesses_v3) \
  X(nvmlSystemGetProcessName)                \
  X(nvmlDeviceGetP2PStatus)                  \
  X(nvmlDeviceGetTopologyCommonAncestor)

struct Api {
#define TANDEM_NVML_MEMBER(name) decltype(&::name) name = nullptr;
  TANDEM_NVML_NEEDED(TANDEM_NVML_MEMBER)
  TANDEM_NVML_OPTIONAL(TANDEM_NVML_MEMBER)
#undef TANDEM_NVML_MEMBER
};

Result<Api> bind(const DynamicLibrary& library) {
  Api api;
#define TANDEM_NVML_BIND(name) TANDEM_TRY(library.bind(api.name, #name));
  TANDEM_NVML_NEEDED(TANDEM_NVML_BIND)
#undef TANDEM_NVML_BIND
#define TANDEM_NVML_BIND(name) \
  if (library.has(#name)) TANDEM_TRY(library.bind(api.name, #name));
  TANDEM_NVML_OPTIONAL(TANDEM_NVML_BIND)
#undef TANDEM_NVML_BIND
  return api;
}

// One number from a getter of the form f(device, arguments..., &value).
template <typename Value, typename Function, typename... Arguments>
std::optional<Value> ask(Function* function, nvmlDevice_t device, Arguments... arguments) {
  Value value{};
  if (function == nullptr || function(device, arguments..., &value) != NVML_SUCCESS) return {};
  return value;
}

std::optional<uint64_t> widened(std::optional<unsigned> value, uint64_t factor = 1) {
  if (!value) return {};
  return uint64_t{*value} * factor;
}

std::optional<uint64_t> number(const nvmlFieldValue_t& field) {
  if (field.nvmlReturn != NVML_SUCCESS) return {};
  switch (field.valueType) {
    case NVML_VALUE_TYPE_DOUBLE:
      return static_cast<uint64_t>(std::max(0.0, field.value.dVal));
    case NVML_VALUE_TYPE_UNSIGNED_INT:
      return field.value.uiVal;
    case NVML_VALUE_TYPE_UNSIGNED_LONG:
      return field.value.ulVal;
    case NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
      return field.value.ullVal;
    case NVML_VALUE_TYPE_SIGNED_LONG_LONG:
      return static_cast<uint64_t>(std::max(0LL, field.value.sllVal));
    case NVML_VALUE_TYPE_SIGNED_INT:
      return static_cast<uint64_t>(std::max(0, field.value.siVal));
    case NVML_VALUE_TYPE_UNSIGNED_SHORT:
      return field.value.usVal;
    case NVML_VALUE_TYPE_COUNT:
      break;
  }
  return {};
}

std::vector<std::string> slow_reasons(unsigned long long bits) {
  constexpr unsigned long long kHardwareSlowdown = 0x8, kHardwareThermal = 0x40,
                               kPowerBrake = 0x80;  // spelled only in deprecated names
  std::vector<std::string> reasons;
  if ((bits & (nvmlClocksEventReasonSwPowerCap | kPowerBrake)) != 0) reasons.push_back("power");
  if ((bits & (nvmlClocksEventReasonSwThermalSlowdown | kHardwareThermal)) != 0)
    reasons.push_back("temperature");
  if ((bits & kHardwareSlowdown) != 0) reasons.push_back("hardware");
  return reasons;
}

PairPath path_of(nvmlGpuTopologyLevel_t level) {
  switch (level) {
    case NVML_TOPOLOGY_INTERNAL:
    case NVML_TOPOLOGY_SINGLE:
    case NVML_TOPOLOGY_MULTIPLE:
      return PairPath::kPcieSwitch;
    case NVML_TOPOLOGY_HOSTBRIDGE:
      return PairPath::kHostBridge;
    case NVML_TOPOLOGY_NODE:
      return PairPath::kNumaNode;
    case NVML_TOPOLOGY_SYSTEM:
      return PairPath::kSystem;
  }
  return PairPath::kUnknown;
}

}  // namespace

struct CardMonitor::Impl {
  DynamicLibrary library;
  Api api;
  bool started = false;

  ~Impl() {
    if (started) (void)api.nvmlShutdown();
  }

  Status status(nvmlReturn_t code, const char* call) const {
    if (code == NVML_SUCCESS) return {};
    const ErrorCode kind = code == NVML_ERROR_GPU_IS_LOST ? ErrorCode::kDeviceLost
                           : code == NVML_ERROR_NOT_FOUND ? ErrorCode::kNotFound
                                                          : ErrorCode::kUnavailable;
    return fail(kind, std::string("NVML: ") + call + ": " + api.nvmlErrorString(code));
  }

  Result<std::vector<nvmlDevice_t>> handles() const {
    unsigned count = 0;
    TANDEM_TRY(status(api.nvmlDeviceGetCount_v2(&count), "nvmlDeviceGetCount"));
    std::vector<nvmlDevice_t> result(count);
    for (unsigned i = 0; i < count; ++i) {
      TANDEM_TRY(status(api.nvmlDeviceGetHandleByIndex_v2(i, &result[i]), "nvmlDeviceGetHandle"));
    }
    return result;
  }

  Result<nvmlDevice_t> handle(std::string_view uuid) const {
    nvmlDevice_t device = nullptr;
    TANDEM_TRY(status(api.nvmlDeviceGetHandleByUUID(std::string(uuid).c_str(), &device),
                      "nvmlDeviceGetHandleByUUID"));
    return device;
  }

  // What a link of its generation carries one way, in MB/s; 0: unknown.
  uint64_t by_generation(nvmlDevice_t device, unsigned link) const {
    switch (ask<unsigned>(api.nvmlDeviceGetNvLinkVersion, device, link)
                .value_or(NVML_NVLINK_VERSION_INVALID)) {
      case NVML_NVLINK_VERSION_1_0:
        return 20'000;
      case NVML_NVLINK_VERSION_2_0:
      case NVML_NVLINK_VERSION_2_2:
      case NVML_NVLINK_VERSION_3_0:
      case NVML_NVLINK_VERSION_3_1:
        return 25'000;
      case NVML_NVLINK_VERSION_4_0:
        return 26'562;
      case NVML_NVLINK_VERSION_5_0:
        return 53'125;
    }
    return 0;
  }

  std::vector<NvLink> nvlinks(nvmlDevice_t device) const {
    if (api.nvmlDeviceGetFieldValues == nullptr) return {};
    std::array<nvmlFieldValue_t, 2> common{};
    common[0].fieldId = NVML_FI_DEV_NVLINK_LINK_COUNT;
    common[1].fieldId = NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON;
    common[1].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    if (api.nvmlDeviceGetFieldValues(device, common.size(), common.data()) != NVML_SUCCESS)
      return {};
    const auto& [count, speed] = common;
    const auto links =
        static_cast<unsigned>(std::min<uint64_t>(number(count).value_or(0), NVML_NVLINK_MAX_LINKS));
    constexpr std::array kFields{NVML_FI_DEV_NVLINK_GET_STATE, NVML_FI_DEV_NVLINK_GET_SPEED,
                                 NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
                                 NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
                                 NVML_FI_DEV_NVLINK_ERROR_DL_CRC};
    std::vector<nvmlFieldValue_t> values(links * kFields.size());
    for (unsigned link = 0; link < links; ++link) {
      for (size_t field = 0; field < kFields.size(); ++field) {
        nvmlFieldValue_t& value = values[link * kFields.size() + field];
        value.fieldId = static_cast<unsigned>(kFields[field]);
        value.scopeId = link;
        value.nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
      }
    }
    if (links == 0 || api.nvmlDeviceGetFieldValues(device, static_cast<int>(values.size()),
                                                   values.data()) != NVML_SUCCESS) {
      return {};
    }
    std::vector<NvLink> result(links);
    for (unsigned link = 0; link < links; ++link) {
      const nvmlFieldValue_t* v = &values[link * kFields.size()];
      // Hopper's driver leaves most of the fields empty that name one link, and has functions for
      // them instead.
      const auto state = ask<nvmlEnableState_t>(api.nvmlDeviceGetNvLinkState, device, link);
      // Down is what the driver calls so: a call that fails says nothing of the link, and fields
      // that Hopper's driver leaves empty look like "disabled".
      const bool by_field = api.nvmlDeviceGetNvLinkState == nullptr;
      result[link].active =
          by_field ? number(v[0]) == NVML_FEATURE_ENABLED : state != NVML_FEATURE_DISABLED;
      uint64_t megabytes = number(v[1]).value_or(0);
      if (megabytes == 0) megabytes = number(speed).value_or(0);
      if (megabytes == 0) megabytes = by_generation(device, link);
      if (megabytes > 0) result[link].bytes_per_second = megabytes * 1'000'000;
      const auto errors = [&](const nvmlFieldValue_t& field,
                              nvmlNvLinkErrorCounter_t counter) -> std::optional<uint64_t> {
        if (const auto value = number(field)) return value;
        return ask<unsigned long long>(api.nvmlDeviceGetNvLinkErrorCounter, device, link, counter);
      };
      result[link].replays = errors(v[2], NVML_NVLINK_ERROR_DL_REPLAY);
      result[link].recoveries = errors(v[3], NVML_NVLINK_ERROR_DL_RECOVERY);
      result[link].crc_errors = errors(v[4], NVML_NVLINK_ERROR_DL_CRC_FLIT);
    }
    return result;
  }

  std::vector<CardHealth::Process> processes(nvmlDevice_t device) const {
    if (api.nvmlDeviceGetComputeRunningProcesses_v3 == nullptr) return {};
    std::array<nvmlProcessInfo_t, 64> infos{};
    unsigned count = infos.size();
    if (api.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos.data()) != NVML_SUCCESS)
      return {};
    std::vector<CardHealth::Process> result;
    for (unsigned i = 0; i < count; ++i) {
      CardHealth::Process process;
      process.pid = infos[i].pid;
      if (infos[i].usedGpuMemory != static_cast<unsigned long long>(NVML_VALUE_NOT_AVAILABLE))
        process.bytes = infos[i].usedGpuMemory;
      char name[256] = {};
      if (api.nvmlSystemGetProcessName != nullptr &&
          api.nvmlSystemGetProcessName(process.pid, name, sizeof(name)) == NVML_SUCCESS) {
        process.name = std::string_view(name).substr(std::string_view(name).rfind('/') + 1);
      }
      result.push_back(std::move(process));
    }
    return result;
  }

  void read_speeds(nvmlDevice_t d, CardHealth& card) const {
    constexpr uint64_t kMega = 1'000'000;
    nvmlTemperature_t temperature{};
    temperature.version = nvmlTemperature_v1;
    temperature.sensorType = NVML_TEMPERATURE_GPU;
    if (api.nvmlDeviceGetTemperatureV != nullptr &&
        api.nvmlDeviceGetTemperatureV(d, &temperature) == NVML_SUCCESS) {
      card.temperature_celsius = temperature.temperature;
    }
    if (const auto mw = ask<unsigned>(api.nvmlDeviceGetPowerUsage, d)) card.power_watts = *mw / 1e3;
    if (const auto mw = ask<unsigned>(api.nvmlDeviceGetEnforcedPowerLimit, d))
      card.power_limit_watts = *mw / 1e3;
    card.sm_clock_hertz =
        widened(ask<unsigned>(api.nvmlDeviceGetClockInfo, d, NVML_CLOCK_SM), kMega);
    card.memory_clock_hertz =
        widened(ask<unsigned>(api.nvmlDeviceGetClockInfo, d, NVML_CLOCK_MEM), kMega);
    card.sm_clock_max_hertz =
        widened(ask<unsigned>(api.nvmlDeviceGetMaxClockInfo, d, NVML_CLOCK_SM), kMega);
    if (const auto use = ask<nvmlUtilization_t>(api.nvmlDeviceGetUtilizationRates, d))
      card.busy_ratio = use->gpu / 100.0;
    if (const auto bits = ask<unsigned long long>(api.nvmlDeviceGetCurrentClocksEventReasons, d)) {
      card.slowed_by = slow_reasons(*bits);
    }
  }

  void read_links(nvmlDevice_t d, CardHealth& card) const {
    card.pcie_generation = ask<unsigned>(api.nvmlDeviceGetCurrPcieLinkGeneration, d);
    card.pcie_generation_max = ask<unsigned>(api.nvmlDeviceGetMaxPcieLinkGeneration, d);
    card.pcie_lanes = ask<unsigned>(api.nvmlDeviceGetCurrPcieLinkWidth, d);
    card.pcie_lanes_max = ask<unsigned>(api.nvmlDeviceGetMaxPcieLinkWidth, d);
    card.pcie_replays = widened(ask<unsigned>(api.nvmlDeviceGetPcieReplayCounter, d));
    card.ecc_corrected = ask<unsigned long long>(
        api.nvmlDeviceGetTotalEccErrors, d, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC);
    card.ecc_uncorrected = ask<unsigned long long>(
        api.nvmlDeviceGetTotalEccErrors, d, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC);
    card.nvlinks = nvlinks(d);
  }

  Result<CardHealth> read(nvmlDevice_t d, uint32_t index) const {
    CardHealth card;
    card.index = index;
    char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = {};
    TANDEM_TRY(status(api.nvmlDeviceGetName(d, text, sizeof(text)), "nvmlDeviceGetName"));
    card.name = text;
    TANDEM_TRY(status(api.nvmlDeviceGetUUID(d, text, sizeof(text)), "nvmlDeviceGetUUID"));
    card.uuid = text;
    nvmlPciInfo_t pci{};
    TANDEM_TRY(status(api.nvmlDeviceGetPciInfo_v3(d, &pci), "nvmlDeviceGetPciInfo"));
    card.pci_id = pci.busId;
    if (const auto memory = ask<nvmlMemory_t>(api.nvmlDeviceGetMemoryInfo, d)) {
      card.memory_total_bytes = memory->total;
      card.memory_used_bytes = memory->used;
    }
    read_speeds(d, card);
    read_links(d, card);
    card.processes = processes(d);
    return card;
  }

  CardPair pair(nvmlDevice_t a, nvmlDevice_t b) const {
    if (a == b) return {.path = PairPath::kSameCard, .nvlinks = 0, .nvlinks_all = 0};
    CardPair result;
    nvmlGpuP2PStatus_t p2p = NVML_P2P_STATUS_NOT_SUPPORTED;
    const bool asked =
        api.nvmlDeviceGetP2PStatus != nullptr &&
        api.nvmlDeviceGetP2PStatus(a, b, NVML_P2P_CAPS_INDEX_NVLINK, &p2p) == NVML_SUCCESS;
    if (asked && p2p == NVML_P2P_STATUS_OK) {
      CardHealth one, other;
      one.nvlinks = nvlinks(a);
      other.nvlinks = nvlinks(b);
      const LinkState x = link_state(one), y = link_state(other);
      return {.path = PairPath::kNvLink,
              .nvlinks = std::min(x.active, y.active),
              .nvlinks_all = std::max(x.links, y.links)};
    }
    nvmlGpuTopologyLevel_t level = NVML_TOPOLOGY_SYSTEM;
    if (api.nvmlDeviceGetTopologyCommonAncestor != nullptr &&
        api.nvmlDeviceGetTopologyCommonAncestor(a, b, &level) == NVML_SUCCESS) {
      result.path = path_of(level);
    }
    return result;
  }
};

CardMonitor::CardMonitor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CardMonitor::CardMonitor(CardMonitor&&) noexcept = default;
CardMonitor& CardMonitor::operator=(CardMonitor&&) noexcept = default;
CardMonitor::~CardMonitor() = default;

Result<CardMonitor> CardMonitor::open(std::span<const std::string> folders) {
  auto impl = std::make_unique<Impl>();
  TANDEM_ASSIGN(impl->library, DynamicLibrary::open(kLibrary, folders));
  TANDEM_ASSIGN(impl->api, bind(impl->library));
  TANDEM_TRY(impl->status(impl->api.nvmlInit_v2(), "nvmlInit"));
  impl->started = true;
  return CardMonitor(std::move(impl));
}

Result<std::vector<CardHealth>> CardMonitor::read_all() {
  TANDEM_ASSIGN(const std::vector<nvmlDevice_t> devices, impl_->handles());
  std::vector<CardHealth> cards;
  for (size_t i = 0; i < devices.size(); ++i) {
    TANDEM_ASSIGN(CardHealth card, impl_->read(devices[i], static_cast<uint32_t>(i)));
    cards.push_back(std::move(card));
  }
  return cards;
}

Result<CardHealth> CardMonitor::read(std::string_view uuid) {
  TANDEM_ASSIGN(const nvmlDevice_t device, impl_->handle(uuid));
  TANDEM_ASSIGN(const std::vector<nvmlDevice_t> all, impl_->handles());
  const auto at = std::find(all.begin(), all.end(), device);
  return impl_->read(device, static_cast<uint32_t>(at - all.begin()));
}

Result<std::vector<std::vector<CardPair>>> CardMonitor::topology() {
  TANDEM_ASSIGN(const std::vector<nvmlDevice_t> devices, impl_->handles());
  std::vector<std::vector<CardPair>> matrix(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    for (nvmlDevice_t other : devices) matrix[i].push_back(impl_->pair(devices[i], other));
  }
  return matrix;
}

Result<CardPair> CardMonitor::pair(std::string_view uuid_a, std::string_view uuid_b) {
  TANDEM_ASSIGN(const nvmlDevice_t a, impl_->handle(uuid_a));
  TANDEM_ASSIGN(const nvmlDevice_t b, impl_->handle(uuid_b));
  return impl_->pair(a, b);
}

std::string CardMonitor::driver_version() const {
  char text[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE] = {};
  if (impl_->api.nvmlSystemGetDriverVersion(text, sizeof(text)) != NVML_SUCCESS) return "unknown";
  return text;
}

}  // namespace tandem::cuda

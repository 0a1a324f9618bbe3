// A libnvidia-ml.so.1 of two cards that tells of NVLinks what Hopper's driver does: how many there
// are, but no field of a single link, and a speed of zero; for the rest it has functions.
#include <nvml.h>

#include <cstdio>
#include <cstring>

namespace {

constexpr unsigned kCards = 2;
constexpr unsigned kLinks = 18;
int cards[kCards];

unsigned index_of(nvmlDevice_t device) {
  return static_cast<unsigned>(reinterpret_cast<int*>(device) - cards);
}
nvmlReturn_t text(char* to, unsigned length, const char* what, unsigned card) {
  std::snprintf(to, length, "%s %u", what, card);
  return NVML_SUCCESS;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown() { return NVML_SUCCESS; }
const char* nvmlErrorString(nvmlReturn_t) { return "no"; }
nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length) {
  return text(version, length, "fake", 0);
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  *count = kCards;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  *device = reinterpret_cast<nvmlDevice_t>(&cards[index]);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex_v2(uuid[std::strlen(uuid) - 1] == '0' ? 0 : 1, device);
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned length) {
  return text(name, length, "Card", index_of(device));
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  return text(uuid, length, "GPU", index_of(device));
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t, nvmlPciInfo_t*) { return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t, int count, nvmlFieldValue_t* values) {
  for (int i = 0; i < count; ++i) {
    values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    values[i].nvmlReturn = NVML_SUCCESS;
    if (values[i].fieldId == NVML_FI_DEV_NVLINK_LINK_COUNT) {
      values[i].value.uiVal = kLinks;
    } else if (values[i].fieldId == NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON) {
      values[i].value.uiVal = 0;
    } else {
      values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
  }
  return NVML_SUCCESS;
}
// One link of the second card is down, and of two of either card nothing can be told.
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link,
                                      nvmlEnableState_t* state) {
  if (link == 5 || link == 6) return NVML_ERROR_UNKNOWN;
  *state = index_of(device) == 1 && link == 3 ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t, unsigned, unsigned* version) {
  *version = NVML_NVLINK_VERSION_4_0;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t, unsigned link,
                                             nvmlNvLinkErrorCounter_t counter,
                                             unsigned long long* value) {
  if (counter == NVML_NVLINK_ERROR_DL_CRC_DATA) return NVML_ERROR_NOT_SUPPORTED;
  *value = link + (counter == NVML_NVLINK_ERROR_DL_REPLAY ? 100 : 0);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t, nvmlDevice_t, nvmlGpuP2PCapsIndex_t,
                                    nvmlGpuP2PStatus_t* status) {
  *status = NVML_P2P_STATUS_OK;
  return NVML_SUCCESS;
}
}

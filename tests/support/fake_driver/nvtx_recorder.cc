// What a profiler is to NVTX: a library that NVTX_INJECTION64_PATH names, which is told of every
// range. This one writes down their names, for tests.
#include <nvtx3/nvToolsExt.h>

#include <mutex>
#include <string>

namespace {

std::mutex mutex;
std::string told;

int on_push(const char* name) {
  const std::lock_guard lock(mutex);
  told += std::string(name) + " {";
  return 0;
}
int on_pop() {
  const std::lock_guard lock(mutex);
  told += "}";
  return 0;
}

}  // namespace

// What was told so far: "name {inner {}}".
extern "C" const char* nvtx_recorded() { return told.c_str(); }

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE_RangePop) {
    return 0;
  }
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&on_push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&on_pop);
  return 1;
}

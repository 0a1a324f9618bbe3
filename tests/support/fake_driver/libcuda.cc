// A libcuda.so.1 that goes no further than CUDA's first questions: which version the driver speaks
// and whether there is a card. The CUDA runtime finds it where it is loaded already.
#include <cstdlib>

namespace {

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = number("FAKE_DRIVER_VERSION", 13000);
  return 0;
}

__attribute__((visibility("default"))) int cuInit(unsigned) {
  return number("FAKE_DRIVER_INIT", 0);
}

// Every other function is there by name, and says that it is not supported. Success would be a lie:
// the runtime would then read results that nobody wrote.
__attribute__((visibility("default"))) int cuAnything() { return 801; }

__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* symbol, void** function,
                                                               int, unsigned long long, int* found);
}

namespace {

bool same(const char* a, const char* b) {
  while (*a != 0 && *a == *b) ++a, ++b;
  return *a == *b;
}

}  // namespace

int cuGetProcAddress_v2(const char* symbol, void** function, int, unsigned long long, int* found) {
  if (same(symbol, "cuDriverGetVersion")) {
    *function = reinterpret_cast<void*>(&cuDriverGetVersion);
  } else if (same(symbol, "cuInit")) {
    *function = reinterpret_cast<void*>(&cuInit);
  } else if (same(symbol, "cuGetProcAddress")) {
    *function = reinterpret_cast<void*>(&cuGetProcAddress_v2);
  } else {
    *function = reinterpret_cast<void*>(&cuAnything);
  }
  if (found != nullptr) *found = 0;
  return 0;
}

// A target with a bug that only a mutation of the seed reaches: proves that driver.cc mutates and
// runs.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The seed begins with "TNDM"; one changed byte behind it is enough.
  if (size > 5 && data[0] == 'T' && data[1] == 'N' && data[2] == 'D' && data[4] == 0xff) {
    std::puts("planted bug reached");
    std::fflush(stdout);
    std::exit(1);
  }
  return 0;
}

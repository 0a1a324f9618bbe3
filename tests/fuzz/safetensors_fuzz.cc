// A safetensors file of any content: entries that lie within it, or an error.
#include <cstdint>
#include <span>

#include "common/base/check.h"
#include "common/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto entries =
      tandem::model::parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz");
  if (!entries) {
    TANDEM_CHECK(!entries.error().detail.empty(), "an error without a message");
    return 0;
  }
  unsigned sum = 0;
  for (const auto& e : *entries) {
    int64_t elements = 1;
    for (const int64_t d : e.shape) elements *= d;
    if (e.type)
      TANDEM_CHECK(
          e.bytes.size() == tandem::model::storage_bytes(*e.type, static_cast<size_t>(elements)),
          "bytes that contradict the shape");
    for (const std::byte b : e.bytes) sum += static_cast<unsigned>(b);  // every byte can be read
  }
  volatile unsigned sink = sum;
  (void)sink;
  return 0;
}

// Cluster files: any text is parsed or refused, and what was parsed prints and parses to the same.
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "common/config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = tandem::parse_cluster_config(text, "fuzz.yaml", "/folder", {});
  if (!config) {
    TANDEM_CHECK(config.error().detail.find("fuzz.yaml") != std::string::npos,
                 "an error names the file");
    return 0;
  }
  const std::string printed = tandem::print_config(*config, tandem::Secrets::kShow);
  const auto again = tandem::parse_cluster_config(printed, "fuzz.yaml", "/folder", {});
  TANDEM_CHECK(again.has_value(), "what is printed parses");
  TANDEM_CHECK(tandem::print_config(*again, tandem::Secrets::kShow) == printed,
               "and means the same");
  return 0;
}

// config.json and generation_config.json of any content (split at the first NUL): a config within
// bounds whose tensors and rope can be listed, or an error.
#include <cstdint>
#include <optional>
#include <string_view>

#include "common/base/check.h"
#include "common/model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t cut = all.find('\0');
  std::optional<std::string_view> generation;
  if (cut != std::string_view::npos) generation = all.substr(cut + 1);
  const auto c = tandem::model::parse_config(all.substr(0, cut), "fuzz", generation, "fuzz2");
  if (!c) {
    TANDEM_CHECK(!c.error().detail.empty(), "an error without a message");
    return 0;
  }
  TANDEM_CHECK(tandem::model::validate(*c, "fuzz").has_value(),
               "a parsed config that is not valid");
  TANDEM_CHECK(c->windows.size() == c->layers, "a window per layer");
  for (const auto& spec : tandem::model::expected_tensors(*c))
    for (const int64_t d : spec.shape) TANDEM_CHECK(d > 0, "an empty tensor");
  TANDEM_CHECK(!c->canonical().empty() && !c->describe().empty(), "a config that cannot be told");
  return 0;
}

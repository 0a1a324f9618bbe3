#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace tandem {

// A YAML document as far as configuration needs it: aliases resolved, sizes bounded, every node
// with its place in the file.
struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kSequence, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  bool quoted = false;  // a scalar that was quoted is text, whatever it looks like
  int line = 0;         // from 1
  std::string scalar;
  std::vector<YamlNode> items;
  std::vector<Entry> entries;
};

struct YamlNode::Entry {
  std::string key;
  int line = 0;
  YamlNode value;
};

inline constexpr size_t kMaxYamlBytes = 1 << 20;
inline constexpr size_t kMaxYamlDepth = 32;
inline constexpr size_t kMaxYamlNodes = 20'000;  // after aliases are written out

// `source` stands in front of messages ("cluster.yaml:3: …"). Refuses syntax errors, several
// documents, duplicate and non-scalar keys, and whatever is over the bounds above. An empty
// document is an empty map.
[[nodiscard]] Result<YamlNode> parse_yaml(std::string_view text, std::string_view source);

}  // namespace tandem

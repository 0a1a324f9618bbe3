#include "common/config/reader.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/base/utf8.h"
#include "common/config/units.h"

namespace tandem {
namespace {

constexpr size_t kMaxListItems = 1024;

std::string_view describe_kind(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return "a single value";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a section";
  }
  return "something else";
}

bool is_plain_text(std::string_view text) {
  if (!is_valid_utf8(text)) return false;
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

std::string join(std::span<const std::string_view> names) {
  std::string text;
  for (const auto name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

std::string out_of_range(const std::string& value, const std::string& min, const std::string& max) {
  return value + " is out of range; allowed are " + min + " to " + max;
}

std::vector<std::string> split_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view part = text.substr(0, comma);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    if (!part.empty()) parts.emplace_back(part);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

ConfigReader::ConfigReader(const YamlNode& root, std::string_view source, std::string_view folder,
                           const Environment& environment,
                           const std::vector<std::string>& known_keys)
    : root_(root),
      source_(source),
      folder_(folder),
      environment_(environment),
      known_keys_(known_keys) {
  Scope top;
  if (root_.kind == YamlNode::Kind::kMap) {
    top.map = &root_;
  } else {
    report(source_ + ":" + std::to_string(root_.line), "",
           "the file holds " + std::string(describe_kind(root_)) + ", not a list of sections");
  }
  scopes_.push_back(std::move(top));
}

void ConfigReader::finish() {
  report_unknown_keys(scopes_.front());
  // A misspelled variable is refused like a misspelled key, but only where it can be meant for us:
  // at or below the name of a section.
  for (const auto& variable : environment_) {
    const std::string& name = variable.first;
    if (!name.starts_with("TANDEM_") || used_variables_.contains(name)) continue;
    const bool ours = std::any_of(
        scopes_.front().keys.begin(), scopes_.front().keys.end(), [&](const std::string& section) {
          const std::string variable_of = environment_name(section);
          return name == variable_of || name.starts_with(variable_of + "_");
        });
    if (!ours || is_service_link(environment_, name)) continue;
    std::string nearest;
    size_t best = 4;
    for (const auto& [key, origin] : origins_) {
      const std::string candidate = environment_name(key);
      const size_t distance = edit_distance(candidate, name);
      if (distance > 0 && distance < best) {  // 0: a section, which has no variable
        best = distance;
        nearest = candidate;
      }
    }
    report("environment variable " + name, "",
           nearest.empty() ? "belongs to no key; docs/configuration.md lists those that exist"
                           : "belongs to no key; did you mean " + nearest + "?");
  }
}

std::string ConfigReader::origin(const std::string& key) const {
  const auto it = origins_.find(key);
  return it == origins_.end() || it->second.empty() ? source_ : it->second;
}

std::string ConfigReader::full_key(std::string_view key) const {
  const std::string& prefix = scopes_.back().prefix;
  return prefix.empty() ? std::string(key) : prefix + "." + std::string(key);
}

void ConfigReader::report(std::string origin, std::string key, std::string what) {
  problems_.push_back({std::move(origin), std::move(key), std::move(what)});
}

const YamlNode* ConfigReader::take(std::string_view key) {
  Scope& scope = scopes_.back();
  scope.keys.emplace(key);
  if (scope.map == nullptr) return nullptr;
  for (const auto& entry : scope.map->entries) {
    if (entry.key == key) {
      origins_[full_key(key)] = source_ + ":" + std::to_string(entry.line);
      return &entry.value;
    }
  }
  return nullptr;
}

bool ConfigReader::take_scalar(const FieldInfo& info, Raw& raw) {
  const std::string key = full_key(info.key);
  const YamlNode* node = take(info.key);
  const std::string variable = environment_name(key);
  std::string& origin = origins_[key];
  if (const auto it = environment_.find(variable);
      it != environment_.end() && !is_service_link(environment_, variable)) {
    used_variables_.insert(variable);
    origin = "environment variable " + variable;
    raw = {it->second, false, true, origin};
    return true;
  }
  if (node == nullptr) return false;
  if (node->kind != YamlNode::Kind::kScalar) {
    report(origin, key,
           node->kind == YamlNode::Kind::kNull
               ? "has no value; give one or remove the key"
               : "wants a single value, not " + std::string(describe_kind(*node)));
    return false;
  }
  raw = {node->scalar, node->quoted, false, origin};
  return true;
}

bool ConfigReader::take_scalars(const FieldInfo& info, std::vector<Raw>& raws) {
  const std::string key = full_key(info.key);
  const YamlNode* node = take(info.key);
  const std::string variable = environment_name(key);
  std::string& origin = origins_[key];
  if (const auto it = environment_.find(variable); it != environment_.end()) {
    used_variables_.insert(variable);
    origin = "environment variable " + variable;
    for (auto& part : split_commas(it->second)) raws.push_back({part, false, true, origin});
    return true;
  }
  if (node == nullptr) return false;
  if (node->kind != YamlNode::Kind::kSequence) {
    report(origin, key,
           "wants a list, such as " + std::string(info.example.empty() ? "[a, b]" : info.example) +
               ", not " + std::string(describe_kind(*node)));
    return false;
  }
  for (size_t i = 0; i < node->items.size(); ++i) {
    const YamlNode& item = node->items[i];
    const std::string item_origin = source_ + ":" + std::to_string(item.line);
    if (item.kind != YamlNode::Kind::kScalar) {
      report(item_origin, key + "[" + std::to_string(i) + "]",
             "wants a single value, not " + std::string(describe_kind(item)));
      return false;
    }
    raws.push_back({item.scalar, item.quoted, false, item_origin});
  }
  if (raws.size() > kMaxListItems) {
    report(origin, key, "has more than " + std::to_string(kMaxListItems) + " entries");
    return false;
  }
  return true;
}

void ConfigReader::take_text(const FieldInfo& info, std::string& value, bool is_path) {
  Raw raw;
  const std::string key = full_key(info.key);
  if (!take_scalar(info, raw)) {
    if (info.required && value.empty()) {
      report(origin(key), key, "is required, such as " + std::string(info.example));
    }
    return;
  }
  if (!is_plain_text(raw.text)) {
    report(raw.origin, key, "holds line breaks, control characters or invalid UTF-8");
    return;
  }
  if (info.required && raw.text.empty()) {
    report(raw.origin, key, "must not be empty; give a value such as " + std::string(info.example));
    return;
  }
  value = is_path ? resolved(raw) : raw.text;
}

// A path as it is to be used: those in the file count from its folder.
std::string ConfigReader::resolved(const Raw& raw) const {
  const std::filesystem::path path(raw.text);
  if (raw.text.empty() || raw.from_environment || folder_.empty() || !path.is_relative())
    return raw.text;
  return (std::filesystem::path(folder_) / path).lexically_normal().string();
}

void ConfigReader::text(const FieldInfo& info, std::string& value) {
  take_text(info, value, false);
}

void ConfigReader::path(const FieldInfo& info, std::string& value) { take_text(info, value, true); }

// `parse` returns Result<T>; a quoted value is text and no number.
template <typename T, typename Parse>
void ConfigReader::take_plain(const FieldInfo& info, T& value, Parse parse) {
  Raw raw;
  if (!take_scalar(info, raw)) return;
  auto parsed = parse(raw);
  if (parsed) {
    value = *parsed;
  } else {
    report(raw.origin, full_key(info.key), parsed.error().detail);
  }
}

void ConfigReader::boolean(const FieldInfo& info, bool& value) {
  take_plain(info, value, [](const Raw& raw) -> Result<bool> {
    if (!raw.quoted && raw.text == "true") return true;
    if (!raw.quoted && raw.text == "false") return false;
    return fail(ErrorCode::kConfig, "wants true or false, not '" + raw.text + "'");
  });
}

namespace {

tl::unexpected<Error> quoted_number(const std::string& text) {
  return fail(ErrorCode::kConfig, "wants a number, not text; remove the quotes of '" + text + "'");
}

Result<uint64_t> integer_within(const std::string& text, bool quoted, Bounds<uint64_t> bounds) {
  if (quoted) return quoted_number(text);
  const std::string min = std::to_string(bounds.min), max = std::to_string(bounds.max);
  if (text.starts_with('-') && parse_integer(text.substr(1))) {
    return fail(ErrorCode::kConfig, out_of_range(text, min, max));
  }
  auto parsed = parse_integer(text);
  if (!parsed) {
    return fail(ErrorCode::kConfig, parsed.error().detail + "; allowed are " + min + " to " + max);
  }
  if (*parsed < bounds.min || *parsed > bounds.max) {
    return fail(ErrorCode::kConfig, out_of_range(text, min, max));
  }
  return parsed;
}

Result<double> number_within(const std::string& text, bool quoted, Bounds<double> bounds) {
  if (quoted) return quoted_number(text);
  TANDEM_ASSIGN(const double parsed, parse_number(text));
  if (parsed < bounds.min || parsed > bounds.max) {
    return fail(ErrorCode::kConfig,
                out_of_range(text, std::to_string(bounds.min), std::to_string(bounds.max)));
  }
  return parsed;
}

}  // namespace

void ConfigReader::visit_integer(const FieldInfo& info, uint64_t& value, Bounds<uint64_t> bounds) {
  take_plain(info, value,
             [&](const Raw& raw) { return integer_within(raw.text, raw.quoted, bounds); });
}

void ConfigReader::number(const FieldInfo& info, double& value, Bounds<double> bounds) {
  take_plain(info, value,
             [&](const Raw& raw) { return number_within(raw.text, raw.quoted, bounds); });
}

void ConfigReader::number_or_auto(const FieldInfo& info, std::optional<double>& value,
                                  Bounds<double> bounds) {
  take_plain(info, value, [&](const Raw& raw) -> Result<std::optional<double>> {
    if (raw.text == "auto") return std::optional<double>();
    TANDEM_ASSIGN(const double number, number_within(raw.text, raw.quoted, bounds));
    return std::optional<double>(number);
  });
}

void ConfigReader::integer_or_auto(const FieldInfo& info, std::optional<uint32_t>& value,
                                   Bounds<uint64_t> bounds) {
  take_plain(info, value, [&](const Raw& raw) -> Result<std::optional<uint32_t>> {
    if (raw.text == "auto") return std::optional<uint32_t>();
    TANDEM_ASSIGN(const uint64_t number, integer_within(raw.text, raw.quoted, bounds));
    return std::optional<uint32_t>(static_cast<uint32_t>(number));
  });
}

void ConfigReader::duration(const FieldInfo& info, Duration& value, Bounds<Duration> bounds) {
  take_plain(info, value, [&](const Raw& raw) -> Result<Duration> {
    TANDEM_ASSIGN(const Duration parsed, parse_duration(raw.text));
    if (parsed < bounds.min || parsed > bounds.max) {
      return fail(ErrorCode::kConfig,
                  out_of_range(raw.text, format_duration(bounds.min), format_duration(bounds.max)));
    }
    return parsed;
  });
}

void ConfigReader::size(const FieldInfo& info, ByteSize& value, Bounds<ByteSize> bounds) {
  take_plain(info, value, [&](const Raw& raw) -> Result<ByteSize> {
    TANDEM_ASSIGN(const ByteSize parsed, parse_size(raw.text));
    if (parsed < bounds.min || parsed > bounds.max) {
      return fail(ErrorCode::kConfig,
                  out_of_range(raw.text, format_size(bounds.min), format_size(bounds.max)));
    }
    return parsed;
  });
}

void ConfigReader::visit_choice(const FieldInfo& info, size_t& index,
                                std::span<const std::string_view> names) {
  take_plain(info, index, [&](const Raw& raw) -> Result<size_t> {
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == raw.text) return i;
    }
    return fail(ErrorCode::kConfig, "'" + raw.text + "' is none of " + join(names));
  });
}

void ConfigReader::take_texts(const FieldInfo& info, std::vector<std::string>& values,
                              bool are_paths) {
  std::vector<Raw> raws;
  if (!take_scalars(info, raws)) return;
  values.clear();
  for (const Raw& raw : raws) {
    if (raw.text.empty() || !is_plain_text(raw.text)) {
      report(
          raw.origin, full_key(info.key),
          "holds an entry that is empty or has line breaks, control characters or invalid UTF-8");
      return;
    }
    values.push_back(are_paths ? resolved(raw) : raw.text);
  }
}

void ConfigReader::texts(const FieldInfo& info, std::vector<std::string>& values) {
  take_texts(info, values, false);
}

void ConfigReader::paths(const FieldInfo& info, std::vector<std::string>& values) {
  take_texts(info, values, true);
}

void ConfigReader::integers(const FieldInfo& info, std::vector<uint32_t>& values,
                            Bounds<uint64_t> bounds) {
  std::vector<Raw> raws;
  if (!take_scalars(info, raws)) return;
  values.clear();
  for (const Raw& raw : raws) {
    const auto parsed = parse_integer(raw.text);
    if (raw.quoted || !parsed || *parsed < bounds.min || *parsed > bounds.max) {
      report(raw.origin, full_key(info.key),
             "'" + raw.text + "' is not a whole number from " + std::to_string(bounds.min) +
                 " to " + std::to_string(bounds.max));
      return;
    }
    values.push_back(static_cast<uint32_t>(*parsed));
  }
}

void ConfigReader::begin_section(const FieldInfo& info) {
  Scope scope;
  scope.prefix = full_key(info.key);
  const YamlNode* node = take(info.key);
  if (node != nullptr && node->kind == YamlNode::Kind::kMap) {
    scope.map = node;
  } else if (node != nullptr && node->kind != YamlNode::Kind::kNull) {
    report(origin(scope.prefix), scope.prefix,
           "is a section of keys, not " + std::string(describe_kind(*node)));
  }
  scopes_.push_back(std::move(scope));
}

void ConfigReader::end_section() {
  report_unknown_keys(scopes_.back());
  scopes_.pop_back();
}

SchemaVisitor::ListPlan ConfigReader::begin_list(const FieldInfo& info, size_t size) {
  Scope scope;
  scope.prefix = full_key(info.key);
  const YamlNode* node = take(info.key);
  ListPlan plan{false, size};
  if (node != nullptr && node->kind == YamlNode::Kind::kSequence) {
    if (node->items.size() > kMaxListItems) {
      report(origin(scope.prefix), scope.prefix,
             "has more than " + std::to_string(kMaxListItems) + " entries");
      plan = {true, 0};
    } else {
      scope.sequence = node;
      plan = {true, node->items.size()};
    }
  } else if (node != nullptr) {
    report(origin(scope.prefix), scope.prefix,
           "is a list of sections, each beginning with a dash, not " +
               std::string(describe_kind(*node)));
  }
  scopes_.push_back(std::move(scope));
  return plan;
}

void ConfigReader::begin_item(size_t index) {
  Scope scope;
  const Scope& list = scopes_.back();
  scope.prefix = list.prefix + "[" + std::to_string(index) + "]";
  if (list.sequence != nullptr) {
    const YamlNode& node = list.sequence->items[index];
    origins_[scope.prefix] = source_ + ":" + std::to_string(node.line);
    if (node.kind == YamlNode::Kind::kMap) {
      scope.map = &node;
    } else if (node.kind != YamlNode::Kind::kNull) {
      report(origin(scope.prefix), scope.prefix,
             "is a section of keys, not " + std::string(describe_kind(node)));
    }
  }
  scopes_.push_back(std::move(scope));
}

void ConfigReader::end_item() { end_section(); }

void ConfigReader::end_list() { scopes_.pop_back(); }

void ConfigReader::report_unknown_keys(const Scope& scope) {
  if (scope.map == nullptr) return;
  for (const auto& entry : scope.map->entries) {
    if (scope.keys.contains(entry.key)) continue;
    const std::string key = scope.prefix.empty() ? entry.key : scope.prefix + "." + entry.key;
    report(source_ + ":" + std::to_string(entry.line), key,
           "unknown key" + did_you_mean(entry.key, scope.keys, scope.prefix));
  }
}

std::string ConfigReader::did_you_mean(const std::string& key,
                                       const std::set<std::string, std::less<>>& siblings,
                                       const std::string& prefix) const {
  constexpr size_t kLongestKey = 64;
  if (key.size() > kLongestKey) return "";
  std::string nearest;
  size_t best = std::max<size_t>(2, key.size() / 2) + 1;
  for (const auto& sibling : siblings) {
    const size_t distance = edit_distance(key, sibling);
    if (distance < best) {
      best = distance;
      nearest = sibling;
    }
  }
  // The same word elsewhere beats a distant neighbour here.
  if (best > 2) {
    for (const auto& known : known_keys_) {
      const size_t dot = known.rfind('.');
      if ((dot == std::string::npos ? known : known.substr(dot + 1)) == key) {
        return "; did you mean " + known + "?";
      }
    }
  }
  if (!nearest.empty()) {
    return "; did you mean " + (prefix.empty() ? nearest : prefix + "." + nearest) + "?";
  }
  std::string all;
  for (const auto& sibling : siblings) all += (all.empty() ? "" : ", ") + sibling;
  return "; known here: " + all;
}

}  // namespace tandem

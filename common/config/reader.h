#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/environment.h"
#include "common/config/schema.h"
#include "common/config/yaml_tree.h"

namespace tandem {

// Where a value came from: "cluster.yaml:12", "environment variable TANDEM_LOG_LEVEL", or empty for
// a default.
struct Problem {
  std::string origin;
  std::string key;
  std::string what;
};

// Fills a config struct from a YAML tree and the environment, collecting problems.
class ConfigReader final : public SchemaVisitor {
 public:
  // All three outlive the reader. `folder` resolves relative paths of the file.
  ConfigReader(const YamlNode& root, std::string_view source, std::string_view folder,
               const Environment& environment, const std::vector<std::string>& known_keys);

  // After describe(): variables and top-level keys that nobody asked for.
  void finish();

  [[nodiscard]] const std::vector<Problem>& problems() const { return problems_; }
  [[nodiscard]] const std::map<std::string, std::string, std::less<>>& origins() const {
    return origins_;
  }
  // Where the value of `key` came from.
  [[nodiscard]] std::string origin(const std::string& key) const;

  void boolean(const FieldInfo& info, bool& value) override;
  void text(const FieldInfo& info, std::string& value) override;
  void path(const FieldInfo& info, std::string& value) override;
  void number(const FieldInfo& info, double& value, Bounds<double> bounds) override;
  void number_or_auto(const FieldInfo& info, std::optional<double>& value,
                      Bounds<double> bounds) override;
  void integer_or_auto(const FieldInfo& info, std::optional<uint32_t>& value,
                       Bounds<uint64_t> bounds) override;
  void duration(const FieldInfo& info, Duration& value, Bounds<Duration> bounds) override;
  void size(const FieldInfo& info, ByteSize& value, Bounds<ByteSize> bounds) override;
  void texts(const FieldInfo& info, std::vector<std::string>& values) override;
  void paths(const FieldInfo& info, std::vector<std::string>& values) override;
  void integers(const FieldInfo& info, std::vector<uint32_t>& values,
                Bounds<uint64_t> bounds) override;

 protected:
  void visit_integer(const FieldInfo& info, uint64_t& value, Bounds<uint64_t> bounds) override;
  void visit_choice(const FieldInfo& info, size_t& index,
                    std::span<const std::string_view> names) override;
  void begin_section(const FieldInfo& info) override;
  void end_section() override;
  ListPlan begin_list(const FieldInfo& info, size_t size) override;
  void begin_item(size_t index) override;
  void end_item() override;
  void end_list() override;

 private:
  struct Scope {
    const YamlNode* map = nullptr;       // null: absent or not a map
    const YamlNode* sequence = nullptr;  // of the list being read
    std::string prefix;                  // "router.http"
    std::set<std::string, std::less<>> keys;
  };
  // One value to be parsed and where it stands.
  struct Raw {
    std::string text;
    bool quoted = false;
    bool from_environment = false;
    std::string origin;
  };

  [[nodiscard]] std::string full_key(std::string_view key) const;
  const YamlNode* take(std::string_view key);
  // The scalar to parse, if there is one; a wrong kind of node is reported.
  bool take_scalar(const FieldInfo& info, Raw& raw);
  bool take_scalars(const FieldInfo& info, std::vector<Raw>& raws);
  void take_text(const FieldInfo& info, std::string& value, bool is_path);
  void take_texts(const FieldInfo& info, std::vector<std::string>& values, bool are_paths);
  [[nodiscard]] std::string resolved(const Raw& raw) const;
  template <typename T, typename Parse>
  void take_plain(const FieldInfo& info, T& value, Parse parse);
  void report(std::string origin, std::string key, std::string what);
  void report_unknown_keys(const Scope& scope);
  [[nodiscard]] std::string did_you_mean(const std::string& key,
                                         const std::set<std::string, std::less<>>& siblings,
                                         const std::string& prefix) const;

  const YamlNode& root_;
  const std::string source_;
  const std::string folder_;
  const Environment& environment_;
  const std::vector<std::string>& known_keys_;
  std::vector<Scope> scopes_;
  std::map<std::string, std::string, std::less<>> origins_;
  std::set<std::string, std::less<>> used_variables_;
  std::vector<Problem> problems_;
};

// Edit distance with transpositions (optimal string alignment).
[[nodiscard]] size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace tandem

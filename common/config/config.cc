#include "common/config/config.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/config/printer.h"
#include "common/config/reader.h"
#include "common/config/validate.h"
#include "common/config/yaml_tree.h"

namespace tandem {
namespace {

constexpr size_t kMaxProblems = 20;

class KeyCollector final : public KeyedVisitor {
 public:
  std::vector<std::string> keys;

 protected:
  void leaf(const FieldInfo& info, const std::string&, const std::string&,
            const std::string&) override {
    keys.push_back(key_of(info));
  }
  ListPlan begin_list(const FieldInfo& info, size_t) override {
    push(std::string(info.key) + "[].");
    return {true, 1};
  }
  void begin_item(size_t) override {}
  void end_item() override {}
};

Result<std::string> read_text(const std::string& path, size_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return fail(ErrorCode::kConfig, path + ": there is no such file");
  }
  if (std::filesystem::is_directory(status)) {
    return fail(ErrorCode::kConfig, path + ": is a folder, not a file");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(max_bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (!file.eof() && file.fail())) {
    return fail(ErrorCode::kConfig, path + ": cannot be read; check its permissions");
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > max_bytes) {
    return fail(ErrorCode::kConfig,
                path + ": is larger than " + std::to_string(max_bytes) + " bytes");
  }
  return text;
}

Error problems_error(const std::vector<Problem>& problems) {
  std::string detail;
  for (size_t i = 0; i < problems.size(); ++i) {
    if (i == kMaxProblems) {
      detail += "\nand " + std::to_string(problems.size() - i) + " more";
      break;
    }
    if (i > 0) detail += "\n";
    detail += problems[i].origin + ": ";
    if (!problems[i].key.empty()) detail += problems[i].key + ": ";
    detail += problems[i].what;
  }
  return make_error(ErrorCode::kConfig, std::move(detail), problems.front().key);
}

Result<ClusterFile> read(std::string_view text, std::string_view source, std::string_view folder,
                         const Environment& environment, bool look_at_disk) {
  TANDEM_ASSIGN(const YamlNode root, parse_yaml(text, source));
  KeyCollector collector;
  ClusterConfig config;
  describe(collector, config);
  config = ClusterConfig{};
  ConfigReader reader(root, source, folder, environment, collector.keys);
  describe(reader, config);
  reader.finish();
  std::vector<Problem> problems = reader.problems();
  if (problems.empty()) {
    fill_node_names(config);
    const ProblemSink report = [&](std::string key, std::string what) {
      const std::string origin = reader.origin(key);
      problems.push_back({origin, std::move(key), std::move(what)});
    };
    validate(config, report);
    if (look_at_disk) validate_paths(config, report);
  }
  if (!problems.empty()) return fail(problems_error(problems));
  return ClusterFile{std::move(config), std::string(source), reader.origins()};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  std::string line;
  while (std::getline(stream, line)) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    const size_t end = line.find_last_not_of(" \t\r");
    lines.push_back(line.substr(begin, end - begin + 1));
  }
  return lines;
}

}  // namespace

std::string ClusterFile::origin(std::string_view key) const {
  while (!key.empty()) {
    const auto it = origins.find(key);
    if (it != origins.end() && !it->second.empty()) return it->second;
    const size_t parent = key.find_last_of(".[");
    key = key.substr(0, parent == std::string_view::npos ? 0 : parent);
  }
  return path;
}

Result<ClusterFile> load_cluster_file(const std::string& path, const Environment& environment) {
  TANDEM_ASSIGN(const std::string text, read_text(path, kMaxYamlBytes));
  std::error_code error;
  std::filesystem::path folder = std::filesystem::absolute(path, error).parent_path();
  return read(text, path, folder.string(), environment, true);
}

Result<ClusterConfig> load_cluster_config(const std::string& path, const Environment& environment) {
  TANDEM_ASSIGN(ClusterFile file, load_cluster_file(path, environment));
  return std::move(file.config);
}

Result<ClusterConfig> parse_cluster_config(std::string_view text, std::string_view source,
                                           std::string_view folder,
                                           const Environment& environment) {
  TANDEM_ASSIGN(ClusterFile file, read(text, source, folder, environment, false));
  return std::move(file.config);
}

Result<std::vector<std::string>> load_api_keys(const HttpSettings& http) {
  std::vector<std::string> keys = http.api_keys;
  if (!http.api_keys_file.empty()) {
    TANDEM_ASSIGN(const std::string text, read_text(http.api_keys_file, kMaxYamlBytes));
    const std::vector<std::string> lines = lines_of(text);
    // An empty list would open the server to everybody; whoever names a file wants keys.
    if (lines.empty()) {
      return fail(ErrorCode::kConfig, http.api_keys_file + ": holds no key",
                  "router.http.api_keys_file");
    }
    keys.insert(keys.end(), lines.begin(), lines.end());
  }
  return keys;
}

Result<std::string> load_shared_key(const ControlSettings& control) {
  if (control.shared_key_file.empty()) return control.shared_key;
  TANDEM_ASSIGN(const std::string text, read_text(control.shared_key_file, kMaxYamlBytes));
  const std::vector<std::string> lines = lines_of(text);
  if (lines.empty()) {
    return fail(ErrorCode::kConfig, control.shared_key_file + ": holds no key",
                "router.control.shared_key_file");
  }
  return lines.front();
}

}  // namespace tandem

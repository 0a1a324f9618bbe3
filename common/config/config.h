#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/cluster_config.h"
#include "common/config/environment.h"

namespace tandem {

// Reads `path`, lets TANDEM_… variables override it, fills in node names and checks everything.
// Errors (kConfig) hold one problem a line, each with file, line, key and what to do; all problems
// of a file are told at once. Relative paths in the file are resolved against its folder, those in
// variables against the working directory.
[[nodiscard]] Result<ClusterConfig> load_cluster_config(const std::string& path,
                                                        const Environment& environment);

// A cluster file with where its values come from, for who judges them further.
struct ClusterFile {
  ClusterConfig config;
  std::string path;
  std::map<std::string, std::string, std::less<>> origins;  // of the keys that are set
  // "cluster.yaml:12" or "environment variable TANDEM_…": of the key, of what it stands in where
  // it has its default, or of the whole file.
  [[nodiscard]] std::string origin(std::string_view key) const;
};
[[nodiscard]] Result<ClusterFile> load_cluster_file(const std::string& path,
                                                    const Environment& environment);

// The same for text that has been read already, without looking at the disk. `source` names it in
// messages; `folder` is what relative paths are resolved against.
[[nodiscard]] Result<ClusterConfig> parse_cluster_config(std::string_view text,
                                                         std::string_view source,
                                                         std::string_view folder,
                                                         const Environment& environment);

enum class Secrets : uint8_t { kHide, kShow };

// Every key with its value, as YAML that parses back to the same configuration (hidden secrets are
// left out, with a comment that says so).
[[nodiscard]] std::string print_config(const ClusterConfig& config,
                                       Secrets secrets = Secrets::kHide);

// Every key with its value as it stands in a file: {"decode[0].cpus", "[0, 1]"}. Secrets are "".
[[nodiscard]] std::map<std::string, std::string, std::less<>> spell_values(
    const ClusterConfig& config);

// docs/configuration.md.
[[nodiscard]] std::string generate_config_docs();

// The API keys of both places; the control channel's shared key, empty when there is none.
// Errors: a file that cannot be read or holds nothing.
[[nodiscard]] Result<std::vector<std::string>> load_api_keys(const HttpSettings& http);
[[nodiscard]] Result<std::string> load_shared_key(const ControlSettings& control);

}  // namespace tandem

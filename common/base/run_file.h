#pragma once

#include <map>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tandem {

// What a role tells its supervisor (tandem up) and the tests once it listens, ports that were 0 in
// the configuration included. Every role binary takes `--run-dir DIR` and calls this after all its
// listeners are open:
//   publish_endpoints(dir, "router", "router", {{"http", "127.0.0.1:40123"}, {"control",
//   "127.0.0.1:40124"}}); publish_endpoints(dir, "decode", "decode-0", {{"metrics",
//   "127.0.0.1:40125"}});
// which writes DIR/NAME.json in one atomic step, so that a reader never sees half of it:
//   {"role":"decode","name":"decode-0","pid":4711,"endpoints":{"metrics":"127.0.0.1:40125"}}
[[nodiscard]] Status publish_endpoints(const std::string& run_dir, std::string_view role,
                                       std::string_view name,
                                       const std::map<std::string, std::string>& endpoints);

// Writes a file next to `path` and renames it over `path`. Readers see the old or the new content.
// Error: kIo with the path and the system's reason.
[[nodiscard]] Status write_file_atomically(const std::string& path, std::string_view content);

}  // namespace tandem

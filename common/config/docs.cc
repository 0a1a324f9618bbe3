#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/config/printer.h"

namespace tandem {
namespace {

constexpr std::string_view kIntroduction = R"(# Configuration

<!-- Made from common/config/cluster_config.cc by `tandem-config-docs`; a test compares the two. -->

One YAML file describes the roles of a box: `tandem up FILE.yaml` starts them all, `tandem-router`, `tandem-prefill` and
`tandem-decode` each read the same file with `--config FILE.yaml`. Every key has a default except `model.path`, so this
is a whole cluster of one router, one prefill node and one decode node:

```yaml
model:
  path: models/chat-6m
```

- **Durations** carry a unit: `250ms`, `3s`, `1.5m`, `1h` (`ns`, `us`, `ms`, `s`, `m`, `h`). **Sizes** too: `64MiB`, `2GiB`
  (`B`, `KiB`, `MiB`, `GiB`, `TiB`, or the decimal `KB`, `MB`, `GB`, `TB`). A bare number is refused.
- **Environment variables** override the file: `TANDEM_` and the key in capitals with `_` for each dot, such as
  `TANDEM_ROUTER_HTTP_PORT=9000`; elements of lists by number, such as `TANDEM_DECODE_0_THREADS=4`; lists of text or
  numbers apart by commas. A variable below one of the sections that belongs to no key is refused like an unknown key.
- **Relative paths** in the file count from the file's folder, those in variables from the working directory.
- **Mistakes** stop the start with exit code 2; every one is told with file, line, key and, for a misspelled key, the nearest
  one that exists. `--print-config` shows the values in force, defaults included, without secrets.
)";

std::string escape_cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

// Writes one table per section, in the order of the fields; sections inside come after their
// parent.
class DocsWriter final : public KeyedVisitor {
 public:
  std::string take() {
    std::string out(kIntroduction);
    for (const Table& table : tables_) {
      if (table.rows.empty() && table.key.empty()) continue;
      out += "\n## `" + table.key + "`\n\n" + table.doc + "\n";
      if (table.rows.empty()) continue;
      out +=
          "\n| key | type | default | allowed | what it does | example "
          "|\n|---|---|---|---|---|---|\n";
      out += table.rows;
    }
    return out;
  }

 protected:
  void leaf(const FieldInfo& info, const std::string& spelling, const std::string& type,
            const std::string& allowed) override {
    const std::string shown =
        info.required && spelling == "\"\"" ? "(required)" : "`" + spelling + "`";
    tables_[open_.back()].rows +=
        "| `" + std::string(info.key) + "`<br>`" + environment_name_of(key_of(info)) + "` | " +
        type + " | " + escape_cell(shown) + " | " + escape_cell(allowed) + " | " +
        escape_cell(info.doc) + " | `" + escape_cell(info.example) + "` |\n";
  }
  void entered(const FieldInfo& info) override {
    tables_.push_back({section(), std::string(info.doc), {}});
    open_.push_back(tables_.size() - 1);
  }
  void left() override { open_.pop_back(); }
  ListPlan begin_list(const FieldInfo& info, size_t) override {
    push(std::string(info.key) + "[].");
    entered(info);
    return {true, 1};
  }
  void begin_item(size_t) override {}
  void end_item() override {}

 private:
  struct Table {
    std::string key;
    std::string doc;
    std::string rows;
  };

  static std::string environment_name_of(std::string pattern) {
    const size_t hole = pattern.find("[]");
    if (hole != std::string::npos) pattern.replace(hole, 2, "[N]");
    return environment_name(pattern);
  }

  std::vector<Table> tables_{Table{}};
  std::vector<size_t> open_{0};
};

}  // namespace

std::string generate_config_docs() {
  DocsWriter writer;
  ClusterConfig config;
  describe(writer, config);
  return writer.take();
}

}  // namespace tandem

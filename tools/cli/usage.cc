#include "tools/cli/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/exit.h"
#include "common/config/reader.h"

namespace tandem::cli {
namespace {

bool is_option(const std::string& word) { return word.starts_with('-'); }

// The subcommand that the words led to.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (true) {
    const auto parsed = at->get_subcommands();
    const auto next = std::find_if(parsed.begin(), parsed.end(),
                                   [](const CLI::App* sub) { return !sub->get_name().empty(); });
    if (next == parsed.end()) return *at;
    at = *next;
  }
}

// What could have stood there: options with their dashes, and subcommands.
void collect_names(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (sub->get_name().empty()) {
      collect_names(*sub, names);  // a group of options
    } else {
      names.push_back(sub->get_name());
    }
  }
}

std::string suggestion(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  collect_names(app, names);
  const std::string bare = word.substr(0, word.find('='));
  const std::string* nearest = nullptr;
  size_t best = std::max<size_t>(1, bare.size() / 3) + 1;
  for (const std::string& name : names) {
    if (is_option(name) != is_option(bare)) continue;
    if (const size_t distance = edit_distance(bare, name); distance < best) {
      best = distance;
      nearest = &name;
    }
  }
  return nearest == nullptr ? "" : "; did you mean " + *nearest + "?";
}

}  // namespace

int report_usage(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(true);
  const bool by_unknown = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr ||
                          dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (unknown.empty() || !by_unknown) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  const CLI::App& command = innermost(app);
  // A value may have belonged to the option before it.
  auto word = std::find_if(unknown.begin(), unknown.end(), is_option);
  if (word == unknown.end() || &command == &app) word = unknown.begin();
  const std::string name =
      &command == &app ? app.get_name() : app.get_name() + " " + command.get_name();
  std::fprintf(stderr, "%s: unknown %s %s%s\nRun with --help for more information.\n", name.c_str(),
               is_option(*word) ? "option" : "word", word->c_str(),
               suggestion(command, *word).c_str());
  return kExitUsage;
}

}  // namespace tandem::cli

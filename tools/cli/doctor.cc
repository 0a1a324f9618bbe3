#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "common/config/config.h"
#include "tools/cli/command.h"
#include "tools/doctor/collect.h"
#include "tools/version.h"

namespace tandem::cli {
namespace {

struct Flags {
  std::string config;
  bool json = false;
};

// Without a cluster file the environment may still name folders.
std::vector<std::string> folders_from(const Environment& environment) {
  std::vector<std::string> folders;
  const auto it = environment.find("TANDEM_GPU_LIBRARIES");
  if (it == environment.end()) return folders;
  std::string_view rest = it->second;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    if (end > 0) folders.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return folders;
}

Status doctor(const Flags& flags, CommandContext& context) {
  std::optional<ClusterConfig> config;
  if (!flags.config.empty()) {
    TANDEM_ASSIGN(config, load_cluster_config(flags.config, context.environment));
  }
  const std::vector<std::string> folders =
      config ? config->gpu.libraries : folders_from(context.environment);
  const doctor::Report report =
      doctor::collect(config ? &*config : nullptr, folders, TANDEM_VERSION);
  const std::vector<doctor::Finding> findings = doctor::find(report);
  const std::string text = flags.json ? doctor::render_json(report, findings) + "\n"
                                      : doctor::render_text(report, findings);
  std::fputs(text.c_str(), stdout);
  if (!doctor::healthy(findings)) context.exit_code = kExitFailure;
  return {};
}

}  // namespace

void add_doctor(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "doctor",
      "this machine: cards, driver, libraries, links, transports; exit code 1 if "
      "something that should work does not");
  command->add_option("--config", flags->config, "cluster file: also check what its nodes ask for");
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback(
      [flags, &context] { run(context, "doctor", [&] { return doctor(*flags, context); }); });
}

}  // namespace tandem::cli

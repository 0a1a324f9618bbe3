#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "common/config/config.h"
#include "common/preflight/judge.h"
#include "tools/cli/command.h"
#include "tools/doctor/collect.h"
#include "tools/run_dir/run_dir.h"
#include "tools/version.h"

namespace tandem::cli {
namespace {

struct Flags {
  std::string config;
  std::string run_dir;
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

// A file that is no cluster file: each line of the error is a problem of it.
preflight::Findings problems_of(const std::string& path, const Error& error) {
  preflight::Findings findings;
  std::istringstream lines(error.detail);
  for (std::string line; std::getline(lines, line);) {
    findings.push_back(
        {.refuses = true,
         .origin = {},
         .key = path,
         .value = {},
         .reason = line.starts_with(path + ": ") ? line.substr(path.size() + 2) : line,
         .remedy = {}});
  }
  return findings;
}

Status doctor(const Flags& flags, CommandContext& context) {
  std::optional<ClusterFile> file;
  preflight::Findings of_file;
  std::optional<pid_t> supervisor;
  Status read;
  if (!flags.config.empty()) {
    auto loaded = load_cluster_file(flags.config, context.environment);
    if (loaded) {
      file = std::move(*loaded);
      supervisor = rundir::supervisor_of(
          flags.run_dir.empty() ? rundir::default_run_dir(context.environment) : flags.run_dir,
          flags.config);
      of_file =
          preflight::judge(*file, preflight::read_machine(file->config), context.clock,
                           supervisor ? preflight::Ports::kOurs : preflight::Ports::kMustBeFree);
    } else if (flags.json) {
      read = fail(loaded.error());
      of_file = problems_of(flags.config, loaded.error());
    } else {
      return fail(loaded.error());
    }
  }
  const std::vector<std::string> folders =
      file ? file->config.gpu.libraries : folders_from(context.environment);
  doctor::Report report = doctor::collect(file ? &file->config : nullptr, folders, TANDEM_VERSION);
  report.supervisor = supervisor.value_or(0);
  const std::vector<doctor::Finding> findings = doctor::find(report, of_file);
  const std::string text = flags.json ? doctor::render_json(report, findings) + "\n"
                                      : doctor::render_text(report, findings);
  std::fputs(text.c_str(), stdout);
  if (!doctor::healthy(findings)) context.exit_code = kExitFailure;
  return read;
}

}  // namespace

void add_doctor(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "doctor",
      "this machine: cards, driver, libraries, links, transports; exit code 1 if "
      "something that should work does not, 2 if the file is no cluster file");
  command->add_option("--config", flags->config,
                      "cluster file: also tell what of it cannot work here, as `tandem up` would");
  command->add_option("--run-dir", flags->run_dir,
                      "as given to `tandem up`, to know this file's own cluster when it runs");
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback(
      [flags, &context] { run(context, "doctor", [&] { return doctor(*flags, context); }); });
}

}  // namespace tandem::cli

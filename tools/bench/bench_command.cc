#include "tools/bench/bench_command.h"

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <random>

#include "common/base/exit.h"
#include "tools/bench/device_command.h"
#include "tools/bench/load_generator.h"
#include "tools/client/server_flags.h"
#include "tools/number_flag.h"

namespace tandem::bench {
namespace {

struct ServeFlags {
  client::ServerFlags server;
  LoadOptions load;
  std::string trace;
  TraceScale scale;
  double rate = 1;
  std::optional<size_t> requests;  // empty: 100, or the whole trace
  std::optional<uint64_t> seed;    // empty: another one each time
  uint32_t prompt_tokens = 256;
  uint32_t output_tokens = 64;
  double slo_ttft_ms = 1000;
  double slo_itl_ms = 100;
  bool json = false;
};

[[noreturn]] void stop(const Error& error) {
  throw CLI::RuntimeError(report_exit("tandem bench serve", error));
}

// Any thread may run the handler.
std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

// The first Ctrl-C ends the load with a report, the second one the program.
void report_at_interrupt() {
  struct sigaction action {};
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  action.sa_handler = [](int) { interrupted = true; };
  ::sigaction(SIGINT, &action, nullptr);
}

std::vector<TraceRequest> make_load(const ServeFlags& flags) {
  if (flags.trace.empty()) {
    return poisson_load(flags.rate, flags.requests.value_or(100), flags.prompt_tokens,
                        flags.output_tokens, flags.load.seed);
  }
  auto trace = read_trace(flags.trace);
  if (!trace) stop(make_error(ErrorCode::kInvalidArgument, trace.error().detail, "--trace"));
  TraceScale scale = flags.scale;
  scale.limit = flags.requests.value_or(0);
  return scale_trace(std::move(*trace), scale);
}

void serve(ServeFlags& flags, const Environment& environment) {
  const auto server = client::resolve_server(flags.server, environment);
  if (!server) stop(server.error());
  flags.load.url = server->url;
  flags.load.api_key = server->api_key;
  flags.load.verify_certificate = server->verify_certificate;
  // A server that caches prompts would answer the same ones from memory the second time.
  flags.load.seed = flags.seed ? *flags.seed : std::random_device{}() % 1'000'000'000;
  const std::vector<TraceRequest> load = make_load(flags);
  flags.load.slo = {flags.slo_ttft_ms / 1e3, flags.slo_itl_ms / 1e3};
  flags.load.length_scale = flags.scale.length;
  const bool terminal = isatty(STDERR_FILENO) == 1;
  flags.load.progress = [terminal](const std::string& line) {
    std::cerr << (terminal ? "\r\033[K" : "") << line << (terminal ? "" : "\n") << std::flush;
  };
  report_at_interrupt();
  flags.load.stopped = [] { return interrupted.load(); };
  const SteadyClock clock;
  const auto report = run_load(load, flags.load, clock);
  if (terminal) std::cerr << "\r\033[K";
  if (!report) stop(report.error());
  std::cout << (flags.json ? to_json(*report) + "\n" : to_table(*report)) << std::flush;
  if (report->completed == 0 || report->sent < report->planned) throw CLI::RuntimeError(1);
}

}  // namespace

void add_bench_command(CLI::App& app, const Environment& environment) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure a running cluster, or this machine's card");
  bench->require_subcommand(1);
  add_device_commands(*bench, environment);
  CLI::App* command = bench->add_subcommand(
      "serve", "Send a load to an OpenAI-compatible server and report what clients experience");
  auto flags = std::make_shared<ServeFlags>();
  client::add_server_flags(*command, flags->server);
  command->add_option("--model", flags->load.model, "Model id; default: the first listed");
  CLI::Option* trace = command->add_option(
      "--trace", flags->trace,
      "Replay an Azure or BurstGPT (CSV) or a Mooncake or Bailian (JSON lines) trace");
  command
      ->add_option("--time-scale", flags->scale.time,
                   "Multiplies the trace's times: 0.5 sends twice as fast, 0 everything at once")
      ->check(between(0, 1e6));
  command
      ->add_option("--length-scale", flags->scale.length,
                   "Multiplies the trace's prompt and output lengths")
      ->check(between(1e-6, 1e3));
  command
      ->add_option("--max-prompt-tokens", flags->scale.max_prompt_tokens,
                   "Cut longer prompts of the trace; 0: none")
      ->check(whole(0, 10'000'000));
  command
      ->add_option("--max-output-tokens", flags->scale.max_output_tokens,
                   "Cut longer answers of the trace; 0: none")
      ->check(whole(0, 10'000'000));
  command->add_option("--rate", flags->rate, "Poisson arrivals per second")
      ->check(between(1e-3, 1e6))
      ->excludes(trace);
  command->add_option("--prompt-tokens", flags->prompt_tokens, "Prompt length")
      ->check(whole(1, 10'000'000))
      ->excludes(trace);
  command->add_option("--output-tokens", flags->output_tokens, "Answer length")
      ->check(whole(1, 10'000'000))
      ->excludes(trace);
  command->add_option("--requests", flags->requests, "How many; default 100, or the whole trace")
      ->check(whole(1, 100'000'000));
  command
      ->add_option("--concurrency", flags->load.concurrency,
                   "Closed loop: keep this many open and ignore due times; default: open loop")
      ->check(whole(1, 100'000))
      ->default_str("");
  command
      ->add_option(
          "--seed", flags->seed,
          "Of arrivals and prompts; default: another one each time, which the report names")
      ->check(whole(0, (uint64_t{1} << 63) - 1));
  command->add_option("--slo-ttft-ms", flags->slo_ttft_ms, "Goodput bound on time to first token")
      ->check(between(0, 1e9));
  command
      ->add_option("--slo-itl-ms", flags->slo_itl_ms,
                   "Goodput bound on a request's mean inter-token latency")
      ->check(between(0, 1e9));
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags, &environment] { serve(*flags, environment); });
}

}  // namespace tandem::bench

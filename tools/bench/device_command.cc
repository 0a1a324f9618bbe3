#include "tools/bench/device_command.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "common/base/exit.h"
#include "common/config/cache_folder.h"
#include "common/engine/cuda/bench/device_bench.h"
#include "common/engine/cuda/bench/step_bench.h"
#include "common/engine/cuda/bench/transfer_bench.h"
#include "tools/bench/device_report.h"
#include "tools/number_flag.h"

namespace tandem::bench {
namespace {

struct KernelFlags {
  KernelBenchOptions options;
  bool json = false;
};

struct StepFlags {
  StepBenchOptions options;
  std::string format = "bf16";
  std::string quantization = "none";
  bool json = false;
};

[[noreturn]] void stop(const char* command, const Error& error) {
  throw CLI::RuntimeError(report_exit(std::string("tandem bench ") + command, error));
}

// Prints rows as they come, or all of them as one object at the end.
class Printer {
 public:
  explicit Printer(bool json) : json_(json) {}
  [[nodiscard]] RowSink sink() {
    return [this](const DeviceRow& row) {
      if (!json_ && rows_.empty()) std::cout << device_table_header();
      if (!json_) std::cout << device_table_line(row) << std::flush;
      rows_.push_back(row);
    };
  }
  void finish(const Ceilings& ceilings) {
    if (json_) {
      std::cout << device_json(ceilings.device, ceilings.driver, rows_) << "\n";
    } else {
      std::cout << ceilings.device << ", CUDA driver " << ceilings.driver << "\n";
    }
  }

 private:
  bool json_;
  std::vector<DeviceRow> rows_;
};

void kernels(const KernelFlags& flags) {
  Printer printer(flags.json);
  const auto ceilings = bench_kernels(flags.options, printer.sink());
  if (!ceilings) stop("kernels", ceilings.error());
  printer.finish(*ceilings);
}

void steps(StepFlags& flags) {
  const auto format = kv::parse_kv_format(flags.format);
  if (!format) stop("step", format.error());
  flags.options.format = *format;
  if (flags.quantization == "fp8") flags.options.quantization = engine::Quantization::kFp8;
  Printer printer(flags.json);
  const auto ceilings = bench_steps(flags.options, printer.sink());
  if (!ceilings) stop("step", ceilings.error());
  printer.finish(*ceilings);
}

struct TransferFlags {
  TransferBenchOptions options;
  std::string from = "0";
  std::string to = "0";
  std::vector<std::string> transports;  // empty: default_transports()
  bool json = false;
  std::vector<std::string> receive;  // transport, device, MiB, UCX_TLS, folders …: the other end
};

int place_of(const std::string& text) {
  if (text == "cpu") return -1;
  const std::string digits = text.starts_with("cuda:") ? text.substr(5) : text;
  if (!digits.empty() && digits.size() < 4 &&
      digits.find_first_not_of("0123456789") == std::string::npos) {
    return std::atoi(digits.c_str());
  }
  stop("transfer", make_error(ErrorCode::kInvalidArgument,
                              "'" + text + "' is no place: use a card's index or cpu"));
}

void transfer(TransferFlags& flags) {
  if (!flags.receive.empty()) {
    const auto& words = flags.receive;
    if (words.size() < 4)
      stop("transfer", make_error(ErrorCode::kInvalidArgument, "--receive is not for users"));
    const auto number = [](const std::string& text) {
      return static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 10));
    };
    const TransferPlace place{words[0], std::atoi(words[1].c_str()), number(words[2]),
                              words[3] == "-" ? std::string() : words[3]};
    const Status done = serve_transfers(place, {words.begin() + 4, words.end()});
    if (!done) stop("transfer", done.error());
    return;
  }
  flags.options.from = place_of(flags.from);
  flags.options.to = place_of(flags.to);
  if ((flags.options.from < 0) != (flags.options.to < 0)) {
    stop("transfer",
         make_error(ErrorCode::kInvalidArgument, "either both ends or none lie on cpu"));
  }
  flags.options.transports = flags.transports.empty()
                                 ? default_transports(flags.options.from, flags.options.to)
                                 : flags.transports;
  Printer printer(flags.json);
  const auto ceilings = bench_transfers(
      flags.options, {"/proc/self/exe", "bench", "transfer", "--receive"}, printer.sink());
  if (!ceilings) stop("transfer", ceilings.error());
  printer.finish(*ceilings);
}

void add_transfer_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "transfer",
      "Measure how fast KV travels between two processes, one way and both ways, by message size");
  auto flags = std::make_shared<TransferFlags>();
  TransferBenchOptions& o = flags->options;
  command->add_option("--from", flags->from, "Card of this process, or cpu");
  command->add_option("--to", flags->to,
                      "Card of the other process, which may be the same; or cpu");
  command
      ->add_option("--transport", flags->transports,
                   "cuda_ipc, nccl, ucx; may be repeated. Default: cuda_ipc between cards, ucx for "
                   "host memory, which nothing else moves")
      ->check(CLI::IsMember({"cuda_ipc", "nccl", "ucx"}))
      ->default_str("");
  command->add_option("--ucx-tls", o.ucx_tls, "Transports UCX may use, as in UCX_TLS");
  command->add_option("--perftest", o.perftest, "UCX's own benchmark, run beside ucx; empty: none");
  command->add_option("--largest", o.largest_mib, "Largest message in MiB")->check(whole(1, 16384));
  command->add_option("--libraries", o.libraries, "Folders searched for NCCL first")
      ->default_str("");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->add_option("--receive", flags->receive, "The other end, started by this command")
      ->group("");  // hidden
  command->callback([flags] { transfer(*flags); });
}

void add_step_command(CLI::App& bench, const Environment& environment) {
  CLI::App* command = bench.add_subcommand(
      "step",
      "Measure whole steps of the CUDA engine: decoding at several batches, verification, prefill");
  auto flags = std::make_shared<StepFlags>();
  StepBenchOptions& o = flags->options;
  o.cache_dir = cache_folder(environment);  // of algorithms, as nodes use it
  command->add_option("--device", o.card.device, "Index of the card")->check(whole(0, 1023));
  command->add_option(
      "--model", o.model,
      "Folder with a config.json; its weights are made up. Default: Qwen2-7B's shape");
  command->add_option("--layers", o.layers, "Fewer layers than Qwen2-7B's 28, to load faster")
      ->check(whole(1, 28))
      ->default_str("");
  command->add_option("--batch", o.batches, "Sequences that decode together; may be repeated")
      ->check(whole(1, 1024));
  command->add_option("--context", o.context, "Tokens of each decoding sequence")
      ->check(whole(1, 1 << 20));
  command
      ->add_option("--verify", o.verified,
                   "New tokens of one sequence that a step verifies; may be repeated")
      ->check(whole(1, 16));
  command->add_option("--prompt", o.prompts, "Prompt lengths to prefill; may be repeated")
      ->check(whole(1, 1 << 20));
  command->add_flag("--profile", o.profile,
                    "Instead: time, bytes, GB/s and share of each stage of a step");
  command->add_option("--kv", flags->format, "KV format: bf16, fp8_e4m3, int8, k8v4, int4");
  command
      ->add_option("--quantization", flags->quantization,
                   "How projections are kept: fp8 (a scale for each output channel) or none")
      ->check(CLI::IsMember({"none", "fp8"}));
  command->add_option("--libraries", o.card.libraries, "Folders searched for cuBLASLt first")
      ->default_str("");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags] { steps(*flags); });
}

}  // namespace

std::vector<std::string> default_transports(int from, int to) {
  return {from < 0 && to < 0 ? "ucx" : "cuda_ipc"};
}

void add_device_commands(CLI::App& bench, const Environment& environment) {
  add_step_command(bench, environment);
  add_transfer_command(bench);
  CLI::App* command = bench.add_subcommand(
      "kernels", "Measure each CUDA kernel at the shapes of Qwen2-7B against the card's ceilings");
  auto flags = std::make_shared<KernelFlags>();
  command->add_option("--device", flags->options.device, "Index of the card")
      ->check(whole(0, 1023));
  command->add_option("--only", flags->options.only,
                      "Only groups whose name contains this: linear, attention, kv, sampling");
  command->add_option(
      "--python", flags->options.python,
      "Python with PyTorch, asked for cuDNN's attention in the same run; empty: none");
  command
      ->add_option("--libraries", flags->options.libraries, "Folders searched for cuBLASLt first")
      ->default_str("");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags] { kernels(*flags); });
}

}  // namespace tandem::bench

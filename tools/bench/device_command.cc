#include "tools/bench/device_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "common/engine/cuda/bench/device_bench.h"
#include "common/engine/cuda/bench/step_bench.h"
#include "common/engine/cuda/bench/transfer_bench.h"
#include "tools/bench/device_report.h"

namespace tandem::bench {
namespace {

struct KernelFlags {
  KernelBenchOptions options;
  bool json = false;
};

struct StepFlags {
  StepBenchOptions options;
  std::string format = "bf16";
  bool json = false;
};

[[noreturn]] void stop(const char* command, const Error& error) {
  std::cerr << "tandem bench " << command << ": " << error.to_string() << "\n";
  throw CLI::RuntimeError(error.code == ErrorCode::kInvalidArgument ? 2 : 1);
}

// Prints rows as they come, or all of them as one object at the end.
class Printer {
 public:
  explicit Printer(bool json) : json_(json) {
    if (!json_) std::cout << device_table_header() << std::flush;
  }
  [[nodiscard]] RowSink sink() {
    return [this](const DeviceRow& row) {
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
  Printer printer(flags.json);
  const auto ceilings = bench_steps(flags.options, printer.sink());
  if (!ceilings) stop("step", ceilings.error());
  printer.finish(*ceilings);
}

struct TransferFlags {
  TransferBenchOptions options;
  bool json = false;
  std::vector<std::string> receive;  // transport, device, MiB, folders …: the other end
};

void transfer(const TransferFlags& flags) {
  if (!flags.receive.empty()) {
    const auto& words = flags.receive;
    if (words.size() < 3)
      stop("transfer", make_error(ErrorCode::kInvalidArgument, "--receive is not for users"));
    const auto number = [](const std::string& text) {
      return static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 10));
    };
    const Status done = receive_transfers(words[0], static_cast<int>(number(words[1])),
                                          number(words[2]), {words.begin() + 3, words.end()});
    if (!done) stop("transfer", done.error());
    return;
  }
  Printer printer(flags.json);
  const auto ceilings = bench_transfers(
      flags.options, {"/proc/self/exe", "bench", "transfer", "--receive"}, printer.sink());
  if (!ceilings) stop("transfer", ceilings.error());
  printer.finish(*ceilings);
}

void add_transfer_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "transfer", "Measure how fast KV travels between two processes, by message size");
  auto flags = std::make_shared<TransferFlags>();
  TransferBenchOptions& o = flags->options;
  command->add_option("--from", o.from, "Card of the sending process")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--to", o.to, "Card of the receiving process; may be the same")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--transport", o.transports, "cuda_ipc, nccl; may be repeated");
  command->add_option("--largest", o.largest_mib, "Largest message in MiB")
      ->check(CLI::Range(1, 16384));
  command->add_option("--libraries", o.libraries, "Folders searched for NCCL first");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->add_option("--receive", flags->receive, "The other end, started by this command")
      ->group("");  // hidden
  command->callback([flags] { transfer(*flags); });
}

void add_step_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "step", "Measure whole steps of the CUDA engine: decoding at several batches, prefill");
  auto flags = std::make_shared<StepFlags>();
  StepBenchOptions& o = flags->options;
  command->add_option("--device", o.card.device, "Index of the card")
      ->check(CLI::NonNegativeNumber);
  command->add_option(
      "--model", o.model,
      "Folder with a config.json; its weights are made up. Default: Qwen2-7B's shape");
  command->add_option("--layers", o.layers, "Fewer layers than Qwen2-7B's 28, to load faster")
      ->check(CLI::Range(1, 28));
  command->add_option("--batch", o.batches, "Sequences that decode together; may be repeated")
      ->check(CLI::Range(1, 1024));
  command->add_option("--context", o.context, "Tokens of each decoding sequence")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--prompt", o.prompts, "Prompt lengths to prefill; may be repeated")
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--profile", o.profile,
                    "Instead: time, bytes, GB/s and share of each stage of a step");
  command->add_option("--kv", flags->format, "KV format: bf16, fp8_e4m3, int8, k8v4, int4");
  command->add_option("--libraries", o.card.libraries, "Folders searched for cuBLASLt first");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags] { steps(*flags); });
}

}  // namespace

void add_device_commands(CLI::App& bench) {
  add_step_command(bench);
  add_transfer_command(bench);
  CLI::App* command = bench.add_subcommand(
      "kernels", "Measure each CUDA kernel at the shapes of Qwen2-7B against the card's ceilings");
  auto flags = std::make_shared<KernelFlags>();
  command->add_option("--device", flags->options.device, "Index of the card")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--only", flags->options.only,
                      "Only groups whose name contains this: linear, attention, kv, sampling");
  command->add_option(
      "--python", flags->options.python,
      "Python with PyTorch, asked for cuDNN's attention in the same run; empty: none");
  command->add_option("--libraries", flags->options.libraries,
                      "Folders searched for cuBLASLt first");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags] { kernels(*flags); });
}

}  // namespace tandem::bench

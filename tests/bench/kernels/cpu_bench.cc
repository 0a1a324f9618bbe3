// Speed of the CPU engine against the ceilings of the machine at this moment.
//   cpu_bench [--model MODEL] [--threads N] [--isa NAME] [--dtype bf16|f32] [--kv FORMAT] …
#include <CLI/CLI.hpp>
#include <cstdio>

#include "tests/bench/kernels/bench.h"

int main(int argc, char** argv) {
  using namespace tandem;
  bench::Options options;
  std::string isa{to_string(cpu::best_isa())};
  std::string dtype = "bf16";
  std::string format = "bf16";
  bool skip_ops = false;
  CLI::App app("Benchmarks of the CPU engine");
  app.add_option("--model", options.model, "folder or GGUF file; without it, operations only");
  app.add_flag("--dummy", options.dummy, "random weights; the folder needs a config.json alone");
  app.add_option("--threads", options.threads, "compute threads");
  app.add_option("--cpus", options.cpus, "CPUs to pin them to");
  app.add_option("--isa", isa, "reference, avx2, avx512, avx512bf16");
  app.add_option("--dtype", dtype, "weights: bf16 or f32");
  app.add_option("--kv", format, "KV format");
  app.add_option("--prefill", options.prefill, "prompt tokens");
  app.add_option("--decode", options.decode, "decoded tokens");
  app.add_option("--context", options.context, "positions before the decoded ones");
  app.add_option("--rounds", options.rounds, "repetitions; medians are printed");
  app.add_flag("--model-only", skip_ops, "skip the single operations");
  CLI11_PARSE(app, argc, argv);

  const auto run = [&]() -> Status {
    TANDEM_ASSIGN(options.isa, cpu::parse_cpu_isa(isa));
    TANDEM_ASSIGN(options.format, kv::parse_kv_format(format));
    if (dtype != "bf16" && dtype != "f32")
      return fail(ErrorCode::kInvalidArgument, "--dtype is bf16 or f32, not " + dtype);
    options.weights = dtype == "f32" ? DType::kF32 : DType::kBf16;
    const SteadyClock clock;
    if (!skip_ops) TANDEM_TRY(bench::bench_ops(options, clock));
    if (!options.model.empty()) TANDEM_TRY(bench::bench_model(options, clock));
    return {};
  };
  if (const Status status = run(); !status) {
    std::fprintf(stderr, "%s\n", status.error().to_string().c_str());
    return 1;
  }
  return 0;
}

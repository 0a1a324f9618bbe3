#include "tools/cli/model_flags.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "common/model/text.h"
#include "tools/cli/command.h"
#include "tools/number_flag.h"

namespace tandem::cli {

void add_model_flags(CLI::App& command, local::LocalOptions& options) {
  command.add_option("MODEL", options.model, "Hugging Face folder or GGUF file")->required();
  command
      .add_option(
          "--dtype", options.dtype,
          "type of the weights: float32, bf16, or auto (bf16 where the files hold 16 bits or less)")
      ->check(CLI::IsMember({"auto", "float32", "bf16"}));
  command
      .add_option("--kv", options.kv,
                  "format of the KV cache: f32, bf16, fp8_e4m3, int8, k8v4, int4, or auto")
      ->check(CLI::IsMember({"auto", "f32", "bf16", "fp8_e4m3", "int8", "k8v4", "int4"}));
  command.add_option("--threads", options.threads, "compute threads; 0: one per CPU")
      ->check(whole(0, 4096));
  command
      .add_option("--isa", options.isa,
                  "CPU kernels: reference, avx2, avx512, avx512bf16; default: the best here")
      ->check(CLI::IsMember({"reference", "avx2", "avx512", "avx512bf16"}));
  command
      .add_option("--quantization", options.quantization,
                  "how a GPU keeps projections: fp8 (a scale for each output channel) or none")
      ->check(CLI::IsMember({"none", "fp8"}));
  command.add_option("--device", options.device,
                     "where to compute: cpu, or cuda:N for the N-th GPU (cuda: the first)");
  command
      .add_option("--load-format", options.load_format,
                  "dummy: random weights from config.json alone")
      ->check(CLI::IsMember({"auto", "dummy"}));
}

Result<std::unique_ptr<model::Checkpoint>> open_model(const local::LocalOptions& options) {
  auto checkpoint = local::open_checkpoint(options);
  if (!checkpoint) return fail(about_argument(std::move(checkpoint).error(), "MODEL"));
  for (const std::string& warning : (*checkpoint)->warnings()) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  return checkpoint;
}

namespace {

Result<text::TextModel> with_warnings(Result<text::TextModel> text) {
  if (!text) return text;
  for (const std::string& warning : text->warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  return text;
}

}  // namespace

Result<text::TextModel> load_text(const model::Checkpoint& checkpoint, const Clock& clock) {
  return with_warnings(model::load_text(checkpoint, clock));
}

Result<text::TextModel> load_text_of(const std::string& model, const Clock& clock) {
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::path(model) / "tokenizer.json", error)) {
    auto text = with_warnings(text::load_from_folder(model, clock));
    if (!text) return fail(about_argument(std::move(text).error(), "MODEL"));
    return text;
  }
  const auto checkpoint = model::Checkpoint::open(model);
  if (!checkpoint) return fail(about_argument(checkpoint.error(), "MODEL"));
  return with_warnings(model::load_text(**checkpoint, clock));
}

}  // namespace tandem::cli

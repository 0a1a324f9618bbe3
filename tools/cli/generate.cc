#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "common/base/json_text.h"
#include "common/config/cache_folder.h"
#include "common/model/config.h"
#include "common/text/incremental_detokenizer.h"
#include "tools/cli/command.h"
#include "tools/cli/json_output.h"
#include "tools/cli/model_flags.h"
#include "tools/cli/profile_table.h"
#include "tools/cli/prompt_input.h"
#include "tools/local/safetensors_writer.h"
#include "tools/number_flag.h"

namespace tandem::cli {
namespace {

struct GenerateFlags {
  local::LocalOptions model;
  std::optional<std::string> prompt, chat, ids, ids_file;
  uint32_t max_tokens = 0;  // 0: kDefaultMaxTokens, or what the context leaves
  bool ignore_eos = false;
  std::string logits;
  bool json = false;
  engine::SamplingParams sampling;
};

constexpr uint32_t kDefaultMaxTokens = 128;

struct Prompt {
  std::vector<TokenId> ids;
  std::string source;  // flag, for messages
};

Result<Prompt> read_ids(const GenerateFlags& flags) {
  if (flags.ids) {
    TANDEM_ASSIGN(auto ids, parse_ids(*flags.ids, "--ids"));
    return Prompt{std::move(ids), "--ids"};
  }
  TANDEM_ASSIGN(const std::string text, read_text_file(*flags.ids_file));
  TANDEM_ASSIGN(auto ids, parse_ids(text, *flags.ids_file));
  return Prompt{std::move(ids), *flags.ids_file};
}

Result<Prompt> read_prompt(const GenerateFlags& flags, const text::TextModel* text) {
  if (flags.ids || flags.ids_file) return read_ids(flags);
  if (flags.prompt) {
    TANDEM_ASSIGN(auto ids, text->tokenizer->encode(*flags.prompt, {.add_special_tokens = true}));
    return Prompt{std::move(ids), "--prompt"};
  }
  TANDEM_ASSIGN(const std::string json, read_text_file(*flags.chat));
  TANDEM_ASSIGN(const text::ChatInput chat, parse_chat(json, *flags.chat));
  TANDEM_ASSIGN(RenderedPrompt rendered, render_chat(*text, chat));
  return Prompt{std::move(rendered.ids), *flags.chat};
}

// How many tokens to generate; refuses what the context cannot hold.
Result<uint32_t> answer_length(const GenerateFlags& flags, const Prompt& prompt,
                               const model::ModelConfig& config) {
  const size_t used = prompt.ids.size();
  if (used >= config.max_positions) {
    return fail(ErrorCode::kInvalidArgument,
                "the prompt has " + std::to_string(used) + " tokens, the model's context ends at " +
                    std::to_string(config.max_positions),
                prompt.source);
  }
  const uint32_t left = config.max_positions - static_cast<uint32_t>(used);
  if (flags.max_tokens == 0) return std::min(kDefaultMaxTokens, left);
  if (flags.max_tokens > left) {
    return fail(ErrorCode::kInvalidArgument,
                std::to_string(flags.max_tokens) + " tokens after a prompt of " +
                    std::to_string(used) + " exceed the model's context of " +
                    std::to_string(config.max_positions),
                "--max-tokens");
  }
  return flags.max_tokens;
}

void print_json(const Prompt& prompt, const local::GenerateOutcome& outcome,
                const std::optional<std::string>& text, const local::LocalModel& model) {
  JsonObject timing;
  timing.number("prefill_seconds", outcome.prefill_seconds);
  timing.number("decode_seconds", outcome.decode_seconds);
  JsonObject out;
  out.numbers("prompt_ids", prompt.ids);
  out.numbers("ids", outcome.ids);
  if (text) {
    out.text("text", *text);
  } else {
    out.null("text");  // the model has no tokenizer
  }
  out.text("finish_reason", outcome.stopped ? "stop" : "length");
  out.object("timing", timing);
  out.text("engine", model.engine_name());
  out.text("dtype", model.dtype_name());
  out.text("kv", kv::to_string(model.layout().format));
  std::printf("%s\n", out.str().c_str());
}

void print_summary(const Prompt& prompt, const local::GenerateOutcome& outcome) {
  const double decoded = static_cast<double>(outcome.ids.size()) - 1;
  std::fprintf(stderr, "\n%zu prompt tokens in %.3f s (%.0f tokens/s)", prompt.ids.size(),
               outcome.prefill_seconds,
               static_cast<double>(prompt.ids.size()) / std::max(outcome.prefill_seconds, 1e-9));
  if (decoded > 0) {
    std::fprintf(stderr, ", %zu tokens in %.3f s (%.0f tokens/s)", outcome.ids.size(),
                 outcome.decode_seconds, decoded / std::max(outcome.decode_seconds, 1e-9));
  }
  std::fprintf(stderr, "\n");
}

Status generate(const GenerateFlags& flags, const Clock& clock) {
  TANDEM_ASSIGN(auto checkpoint, open_model(flags.model));
  const model::ModelConfig config = checkpoint->config();
  auto text = cli::load_text(*checkpoint, clock);
  const bool needs_text = flags.prompt || flags.chat;
  if (!text && needs_text) return fail(std::move(text).error());
  if (!text && text.error().code != ErrorCode::kNotFound) {
    std::fprintf(stderr, "warning: no text, only ids: %s\n", text.error().detail.c_str());
  }

  TANDEM_ASSIGN(const Prompt prompt, read_prompt(flags, text ? &*text : nullptr));
  if (prompt.ids.empty()) {
    return fail(ErrorCode::kInvalidArgument, "the prompt has no tokens", prompt.source);
  }
  TANDEM_TRY(check_ids(prompt.ids, config.vocab, prompt.source));
  TANDEM_ASSIGN(const uint32_t max_new_tokens, answer_length(flags, prompt, config));
  const uint32_t positions = static_cast<uint32_t>(prompt.ids.size()) + max_new_tokens;
  TANDEM_ASSIGN(auto model,
                local::LocalModel::create(flags.model, std::move(checkpoint), positions, clock));

  local::GenerateJob job;
  job.prompt = prompt.ids;
  job.sampling = flags.sampling;
  job.max_new_tokens = max_new_tokens;
  if (!flags.ignore_eos) job.stop_tokens = config.eos;
  std::optional<text::IncrementalDetokenizer> stream;
  if (text) stream.emplace(text->tokenizer, /*skip_special=*/true);
  std::string whole;
  job.on_token = [&](TokenId id) {
    if (!stream) return true;
    const std::string piece = stream->push(id);
    whole += piece;
    if (flags.json || piece.empty()) return true;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    // Nobody reads on, or nothing more fits: main() tells which.
    return std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  };
  std::optional<local::MatrixWriter> writer;
  if (!flags.logits.empty()) {
    auto created =
        local::MatrixWriter::create(flags.logits, "logits", prompt.ids.size(), config.vocab);
    if (!created) return fail(about_argument(std::move(created).error(), "--logits"));
    writer = std::move(*created);
    job.on_logits = [&](uint32_t, std::span<const float> rows) { return writer->append(rows); };
  }
  TANDEM_ASSIGN(const local::GenerateOutcome outcome, model->generate(job));
  if (writer) TANDEM_TRY(writer->finish());

  std::optional<std::string> answer;
  if (stream) {
    const std::string rest = stream->finish();
    if (!flags.json) std::fwrite(rest.data(), 1, rest.size(), stdout);
    answer = whole + rest;
  }
  if (flags.json) {
    print_json(prompt, outcome, answer, *model);
  } else {
    if (!answer) {
      for (const TokenId id : outcome.ids) std::printf("%d ", id);
    }
    std::printf("\n");
    print_summary(prompt, outcome);
  }
  if (flags.model.profile) {
    std::fprintf(stderr, "%s", profile_table(model->profile()).c_str());
  }
  return {};
}

void add_sampling_flags(CLI::App& command, engine::SamplingParams& sampling) {
  sampling.temperature = 0;
  command.add_option("--temperature", sampling.temperature, "0: always the likeliest token")
      ->check(between(0, 100));
  command.add_option("--top-k", sampling.top_k, "0: off")->check(whole(0, INT32_MAX));
  command.add_option("--top-p", sampling.top_p)->check(between(0, 1));
  command.add_option("--min-p", sampling.min_p)->check(between(0, 1));
  command.add_option("--repetition-penalty", sampling.repetition_penalty, "over prompt and answer")
      ->check(between(0.01, 100));
  command.add_option("--presence-penalty", sampling.presence_penalty)->check(between(-2, 2));
  command.add_option("--frequency-penalty", sampling.frequency_penalty)->check(between(-2, 2));
  command.add_option("--seed", sampling.seed, "equal seeds draw equal tokens")->check(whole(0));
}

}  // namespace

void add_generate(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command =
      app.add_subcommand("generate", "answer one prompt in this process, without a cluster");
  add_model_flags(*command, flags->model);
  CLI::Option_group* input = command->add_option_group("prompt");
  input->add_option("--prompt", flags->prompt, "text, taken as it is");
  input->add_option("--chat", flags->chat, "JSON file: {\"messages\": [...], \"tools\": [...]}");
  input->add_option("--ids", flags->ids, "token ids: 1,2,3");
  input->add_option("--ids-file", flags->ids_file, "file of token ids, apart by spaces or commas");
  input->require_option(1);
  command->add_option("--max-tokens", flags->max_tokens, "longest answer; default 128")
      ->check(whole(1, 1 << 24))
      ->default_str("");
  command->add_flag("--ignore-eos", flags->ignore_eos, "go on after end tokens");
  add_sampling_flags(*command, flags->sampling);
  command->add_option(
      "--logits", flags->logits,
      "write the prompt's logits, float32 [positions, vocabulary], to a safetensors file");
  command->add_flag("--profile", flags->model.profile,
                    "on a GPU: measure every op, and print time, GB/s and share of each");
  command->add_flag("--json", flags->json, "print one JSON object instead of the text");
  command->callback([flags, &context] {
    flags->model.cache_dir = cache_folder(context.environment);
    run(context, "generate", [&] { return generate(*flags, context.clock); });
  });
}

}  // namespace tandem::cli

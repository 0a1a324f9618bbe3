#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include "common/config/cache_folder.h"
#include "common/model/config.h"
#include "tools/cli/command.h"
#include "tools/cli/json_output.h"
#include "tools/cli/model_flags.h"
#include "tools/cli/prompt_input.h"
#include "tools/number_flag.h"

namespace tandem::cli {
namespace {

struct EvalFlags {
  local::LocalOptions model;
  std::string data;
  size_t limit = 0;
  uint32_t context = 1024;
  bool json = false;
};

struct Totals {
  double nll = 0;
  uint64_t predicted = 0;
  uint64_t raw_bytes = 0;
  uint64_t wire_bytes = 0;
  size_t chats = 0;
};

// The conversations of a JSON-lines file as token ids: rendered without a generation prompt, cut to
// the context. Empty lines do not count.
Result<std::vector<std::vector<TokenId>>> read_chats(const EvalFlags& flags,
                                                     const text::TextModel& text, size_t vocab) {
  TANDEM_ASSIGN(const std::string data, read_text_file(flags.data, size_t{1} << 30));
  std::vector<std::vector<TokenId>> chats;
  size_t number = 0;
  for (size_t at = 0; at < data.size() && (flags.limit == 0 || chats.size() < flags.limit);) {
    const size_t end = std::min(data.find('\n', at), data.size());
    const std::string_view line = std::string_view(data).substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string source = flags.data + ":" + std::to_string(number);
    TANDEM_ASSIGN(text::ChatInput chat, parse_chat(line, source));
    chat.add_generation_prompt = false;
    auto rendered = render_chat(text, chat);
    if (!rendered) {
      rendered.error().detail = source + ": " + rendered.error().detail;
      return fail(std::move(rendered).error());
    }
    std::vector<TokenId>& ids = rendered->ids;
    if (ids.size() > flags.context) ids.resize(flags.context);
    TANDEM_TRY(check_ids(ids, vocab, source));
    chats.push_back(std::move(ids));
  }
  if (chats.empty())
    return fail(ErrorCode::kInvalidArgument, flags.data + " holds no conversations");
  return chats;
}

void print(const EvalFlags& flags, const Totals& totals, double perplexity, double seconds,
           const local::LocalModel& model) {
  const double ratio =
      static_cast<double>(totals.wire_bytes) / static_cast<double>(totals.raw_bytes);
  if (!flags.json) {
    std::printf(
        "perplexity %.5f over %llu tokens of %zu chats, %s weights, %s KV (%.3f of bf16), %.1f s\n",
        perplexity, static_cast<unsigned long long>(totals.predicted), totals.chats,
        std::string(model.dtype_name()).c_str(),
        std::string(kv::to_string(model.layout().format)).c_str(), ratio, seconds);
    return;
  }
  JsonObject kv;
  kv.text("format", kv::to_string(model.layout().format));
  kv.integer("raw_bytes", totals.raw_bytes);
  kv.integer("wire_bytes", totals.wire_bytes);
  kv.number("wire_ratio", ratio);
  JsonObject out;
  out.number("perplexity", perplexity);
  out.integer("tokens", totals.predicted);
  out.number("nll", totals.nll);
  out.integer("chats", totals.chats);
  out.integer("context", flags.context);
  out.object("kv", kv);
  out.text("dtype", model.dtype_name());
  out.text("engine", model.engine_name());
  out.number("seconds", seconds);
  std::printf("%s\n", out.str().c_str());
}

Status eval(EvalFlags flags, const Clock& clock) {
  TANDEM_ASSIGN(auto checkpoint, open_model(flags.model));
  const model::ModelConfig config = checkpoint->config();
  flags.context = std::min(flags.context, config.max_positions);
  TANDEM_ASSIGN(const text::TextModel text, cli::load_text(*checkpoint, clock));
  TANDEM_ASSIGN(const auto chats, read_chats(flags, text, config.vocab));
  TANDEM_ASSIGN(auto model, local::LocalModel::create(flags.model, std::move(checkpoint),
                                                      flags.context, clock));
  Totals totals;
  const TimePoint begin = clock.now();
  TimePoint shown = begin;
  for (const std::vector<TokenId>& ids : chats) {
    if (ids.size() >= 2) {
      TANDEM_ASSIGN(const local::ScoreOutcome outcome, model->score(ids));
      totals.nll += outcome.nll;
      totals.predicted += outcome.predicted;
      totals.raw_bytes += outcome.raw_bytes;
      totals.wire_bytes += outcome.wire_bytes;
    }
    ++totals.chats;
    if (clock.now() - shown < std::chrono::seconds(1)) continue;
    shown = clock.now();
    std::fprintf(stderr, "[%zu/%zu] perplexity so far %.4f\n", totals.chats, chats.size(),
                 std::exp(totals.nll / static_cast<double>(totals.predicted)));
  }
  if (totals.predicted == 0) {
    return fail(ErrorCode::kInvalidArgument, flags.data + " holds no chat of two tokens or more");
  }
  const double perplexity = std::exp(totals.nll / static_cast<double>(totals.predicted));
  print(flags, totals, perplexity, to_seconds(clock.now() - begin), *model);
  return {};
}

}  // namespace

void add_eval(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = app.add_subcommand("eval",
                                         "perplexity of a model on conversations: exp(total "
                                         "negative log-likelihood / predicted tokens)");
  add_model_flags(*command, flags->model);
  command->add_option("--data", flags->data, "JSON lines, each {\"messages\": [...]}")->required();
  command->add_option("--limit", flags->limit, "use the first N conversations; 0: all")
      ->check(whole(0));
  command->add_option("--context", flags->context, "cut conversations to this many tokens")
      ->check(whole(2, 1 << 24));
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags, &context] {
    flags->model.cache_dir = cache_folder(context.environment);
    run(context, "eval", [&] { return eval(*flags, context.clock); });
  });
}

}  // namespace tandem::cli

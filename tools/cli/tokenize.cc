#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "tools/cli/command.h"
#include "tools/cli/json_output.h"
#include "tools/cli/model_flags.h"
#include "tools/cli/prompt_input.h"

namespace tandem::cli {
namespace {

struct TokenizeFlags {
  std::string model;
  std::optional<std::string> text, file, chat;
  bool no_special = false;
  bool no_generation_prompt = false;
  bool json = false;
};

Status tokenize(const TokenizeFlags& flags, const Clock& clock) {
  TANDEM_ASSIGN(const text::TextModel model, load_text_of(flags.model, clock));
  RenderedPrompt prompt;
  if (flags.chat) {
    TANDEM_ASSIGN(const std::string json, read_text_file(*flags.chat));
    TANDEM_ASSIGN(text::ChatInput chat, parse_chat(json, *flags.chat));
    chat.add_generation_prompt = !flags.no_generation_prompt;
    TANDEM_ASSIGN(prompt, render_chat(model, chat));
  } else {
    std::string text;
    if (flags.text) {
      text = *flags.text;
    } else {
      TANDEM_ASSIGN(text, read_text_file(*flags.file));
    }
    TANDEM_ASSIGN(prompt.ids,
                  model.tokenizer->encode(text, {.add_special_tokens = !flags.no_special}));
  }
  const std::string decoded = model.tokenizer->decode(prompt.ids, /*skip_special=*/false);
  if (flags.json) {
    JsonObject out;
    out.numbers("ids", prompt.ids);
    out.text("decoded", decoded);
    if (flags.chat) {
      out.text("rendered", prompt.rendered);
    } else {
      out.null("rendered");
    }
    std::printf("%s\n", out.str().c_str());
    return {};
  }
  if (flags.chat) std::printf("%s\n", prompt.rendered.c_str());
  for (size_t i = 0; i < prompt.ids.size(); ++i) {
    std::printf("%s%d", i == 0 ? "" : " ", prompt.ids[i]);
  }
  std::printf("\n%zu tokens; decoded: %s\n", prompt.ids.size(), decoded.c_str());
  return {};
}

}  // namespace

void add_tokenize(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command =
      app.add_subcommand("tokenize", "show the token ids of a text or a conversation");
  command->add_option("MODEL", flags->model, "Hugging Face folder or GGUF file")->required();
  CLI::Option_group* input = command->add_option_group("input");
  input->add_option("--text", flags->text, "the text");
  input->add_option("--file", flags->file, "file with the text, taken to the last byte");
  input->add_option("--chat", flags->chat, "JSON file: {\"messages\": [...], \"tools\": [...]}");
  input->require_option(1);
  command->add_flag("--no-special", flags->no_special,
                    "do not add the begin and end tokens that the model asks for");
  command->add_flag("--no-generation-prompt", flags->no_generation_prompt,
                    "chats: stop after the last message instead of opening the answer");
  command->add_flag("--json", flags->json, "print one JSON object: ids, decoded, rendered");
  command->callback([flags, &context] {
    run(context, "tokenize", [&] { return tokenize(*flags, context.clock); });
  });
}

}  // namespace tandem::cli

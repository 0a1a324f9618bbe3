#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tools/cli/chat_command.h"
#include "tools/cli/chat_turn.h"

namespace tandem::cli {
namespace {

TEST(ChatCommand, OnlyWordsOfLettersAreCommands) {
  for (const char* line : {"/help", "/?", "/help  "}) EXPECT_EQ(classify(line), ChatLine::kHelp);
  for (const char* line : {"/clear", "/reset", "/new"})
    EXPECT_EQ(classify(line), ChatLine::kClear) << line;
  for (const char* line : {"/quit", "/exit\t"}) EXPECT_EQ(classify(line), ChatLine::kQuit) << line;
  for (const char* line : {"/bye", "/Help", "/halp me"})
    EXPECT_EQ(classify(line), ChatLine::kUnknown) << line;
  EXPECT_EQ(classify("/quit smoking is hard"), ChatLine::kTooMuch);
  for (const char* line : {"", "  ", "\t\r"}) EXPECT_EQ(classify(line), ChatLine::kNothing) << line;
  for (const char* line : {"hello", " /help", "/etc/hosts is a file", "/", "/1", "a /help", "//x"})
    EXPECT_EQ(classify(line), ChatLine::kText) << line;
}

TurnOptions chosen(std::string_view model, TurnOptions options = {}) {
  choose_sampling(boost::json::parse(model).as_object(), options);
  return options;
}

TEST(ChatSampling, FlagsThenWhatTheServerSuggestsThenItsDefaults) {
  const char* const suggests =
      R"({"id":"m","chat_sampling_params":{"temperature":0.6,"top_p":0.8,"top_k":20}})";
  EXPECT_EQ(chosen(suggests).temperature, 0.6);
  EXPECT_EQ(chosen(suggests).top_p, 0.8);
  for (const char* model :
       {R"({"id":"m"})", R"({"id":"m","chat_sampling_params":{}})",
        R"({"id":"m","chat_sampling_params":null})",
        R"({"id":"m","chat_sampling_params":{"temperature":"1"}})",
        R"({"id":"m","default_sampling_params":{"temperature":0.6,"top_p":0.8}})"}) {
    EXPECT_FALSE(chosen(model).temperature) << model;
    EXPECT_FALSE(chosen(model).top_p) << model;
  }
  EXPECT_FALSE(chosen(R"({"chat_sampling_params":{"temperature":1}})").top_p);
  TurnOptions flags;
  flags.temperature = 0;
  EXPECT_EQ(chosen(suggests, flags).temperature, 0);
  EXPECT_FALSE(chosen(suggests, flags).top_p) << "of another temperature";
  flags = {};
  flags.top_p = 0.5;
  EXPECT_EQ(chosen(suggests, flags).temperature, 0.6);
  EXPECT_EQ(chosen(suggests, flags).top_p, 0.5);
}

}  // namespace
}  // namespace tandem::cli

#include "tools/client/http_fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ServerRoot, TakesTheUrlOfTheApiAsWellAsTheServers) {
  for (const char* url : {"http://h:8000", "http://h:8000/", "http://h:8000/v1",
                          "http://h:8000/v1/", "http://h:8000//v1//"}) {
    EXPECT_EQ(server_root(url), "http://h:8000") << url;
  }
  EXPECT_EQ(server_root("https://h/llm/v1"), "https://h/llm");
  EXPECT_EQ(server_root("https://h/v10"), "https://h/v10");
}

TEST(UrlOf, IsOneThatClientsRead) {
  EXPECT_EQ(url_of("127.0.0.1:8000", false), "http://127.0.0.1:8000");
  EXPECT_EQ(url_of("0.0.0.0:8000", true), "https://127.0.0.1:8000");
  EXPECT_EQ(url_of("[::]:8000", false), "http://127.0.0.1:8000");
  EXPECT_EQ(url_of("[::1]:8000", false), "http://[::1]:8000");
}

TEST(ServerMessage, FindsTheServersWords) {
  EXPECT_EQ(server_message(R"({"error":{"message":"too long","type":"x"}})"), "too long");
  EXPECT_EQ(server_message(R"({"error":"model not found"})"), "model not found");
  EXPECT_EQ(server_message(R"({"object":"error","message":"no"})"), "no");
  EXPECT_EQ(server_message(R"({"detail":"Not Found"})"), R"({"detail":"Not Found"})");
  EXPECT_EQ(server_message("<html>\r\n<h1>502</h1>\n"), "<html> <h1>502</h1>");
  EXPECT_EQ(server_message(""), "nothing more");
}

TEST(ServerMessage, IsOneLineOfTextWhateverCame) {
  EXPECT_EQ(server_message("a\xff\x1b[31mb"), "a? [31mb");
  const std::string text = server_message(std::string(299, 'x') + "\xc3\xa9 more");
  EXPECT_EQ(text, std::string(299, 'x') + "...");  // not half of the two bytes
}

TEST(Refusal, AMissingKeySaysHowToGiveIt) {
  HttpReply reply;
  reply.status = 401;
  reply.body = R"({"error":{"message":"no API key was given"}})";
  const Error error = refusal("/v1/models", reply);
  EXPECT_EQ(error.code, ErrorCode::kUnauthenticated);
  EXPECT_THAT(error.detail, HasSubstr("/v1/models answered 401: no API key was given"));
  EXPECT_THAT(error.detail, HasSubstr("--api-key"));
  reply.status = 503;
  EXPECT_EQ(refusal("/x", reply).code, ErrorCode::kUnavailable);
  EXPECT_THAT(refusal("/x", reply).detail, Not(HasSubstr("--api-key")));
}

}  // namespace
}  // namespace tandem::client

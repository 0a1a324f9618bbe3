#include "common/net/gate.h"

#include <cstdio>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/net/http_head.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

HttpRequest with_header(std::string name, std::string value) {
  HttpRequest request;
  request.headers.emplace_back(std::move(name), std::move(value));
  return request;
}

TEST(ApiKeyGate, LetsInKnownKeysOnly) {
  const ApiKeyGate gate({"sk-one", "sk-two"});
  EXPECT_TRUE(gate.check(with_header("Authorization", "Bearer sk-one")));
  EXPECT_TRUE(gate.check(with_header("authorization", "bearer  sk-two")));
  for (const char* bad : {"Bearer sk-three", "Bearer sk-on", "Bearer sk-one ", "Bearer ", "Bearer",
                          "", "sk-one", "Basic sk-one", "Bearersk-one"}) {
    const Status status = gate.check(with_header("Authorization", bad));
    ASSERT_FALSE(status) << bad;
    EXPECT_EQ(status.error().code, ErrorCode::kUnauthenticated);
    EXPECT_THAT(status.error().detail, Not(HasSubstr("sk-")));
  }
  EXPECT_FALSE(gate.check({}));
  EXPECT_TRUE(ApiKeyGate({}).check({}));
}

TEST(Hmac, MatchesRfc4231) {
  const std::string mac = hmac_sha256("Jefe", "what do ya want for nothing?");
  std::string hex;
  for (const char c : mac) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    hex += digits;
  }
  EXPECT_EQ(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Targets, AreDecodedOnce) {
  HttpRequest r;
  ASSERT_TRUE(parse_target("/a%2520b?q=%20x&k=1%2B1&flag", r));
  EXPECT_EQ(r.path, "/a%20b");
  EXPECT_EQ(r.query_parameter("q"), " x");
  EXPECT_EQ(r.query_parameter("k"), "1+1");
  EXPECT_EQ(r.query_parameter("flag"), "");
  EXPECT_EQ(r.query_parameter("none"), std::nullopt);
  ASSERT_TRUE(parse_target("https://h/p", r));
  EXPECT_EQ(r.path, "/p");
  ASSERT_TRUE(parse_target("http://h", r));
  EXPECT_EQ(r.path, "/");
  for (const char* bad :
       {"", "a", "ftp://h/p", "http:///p", "/%", "/%1", "/%g0", "/a#b", "/%0a", "*"}) {
    EXPECT_FALSE(parse_target(bad, r)) << bad;
  }
}

TEST(Errors, HaveOpenAisShape) {
  EXPECT_EQ(
      openai_error_body(make_error(ErrorCode::kInvalidArgument, "bad \"n\"", "n")),
      R"({"error":{"message":"bad \"n\"","type":"invalid_request_error","param":"n","code":"invalid_argument"}})");
  const HttpResponse full = error_response(make_error(ErrorCode::kQueueFull, "full"));
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.headers.at(0).first, "Retry-After");
  EXPECT_THAT(full.body, HasSubstr("\"param\":null"));
}

}  // namespace
}  // namespace tandem

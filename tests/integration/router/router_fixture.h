#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/config/config.h"
#include "common/net/http_client.h"
#include "common/text/tokenizer.h"
#include "router/app/router.h"
#include "tests/integration/router/fake_node.h"

namespace tandem::router::test {

// A router in this process behind real HTTP and control ports, with nodes that make their answers
// up.
class RouterTest : public testing::Test {
 protected:
  // `yaml` is added to a file with the model and free ports.
  void boot(const std::string& yaml = "", const std::string& model_extra = "");
  // Model, tokenizer and vocabulary of the router's own model.
  static void identify(FakeNodeOptions& options);
  FakeNode& add_node(FakeNodeOptions options = {});
  // A node that says `text` to everybody.
  FakeNode& add_speaker(std::string text, Duration token_time = {});
  static const text::Tokenizer& tokenizer();
  static std::vector<control::Token> say(const std::string& text);
  // What a model would do: the text, cut at the task's limit.
  static Script speak(const control::Task& task, const std::string& text);

  template <typename F>
  static bool wait(F&& done, Duration limit = std::chrono::minutes(1)) {
    const TimePoint end = kClock.now() + limit;
    while (!done()) {
      if (kClock.now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  HttpReply send(HttpCall call);
  HttpReply get(const std::string& target, HttpHeaders headers = {});
  HttpReply post(const std::string& target, const std::string& body, HttpHeaders headers = {});
  static std::string chat_body(const std::string& extra, const std::string& content = "hi");
  HttpReply chat(const std::string& extra, const std::string& content = "hi");
  HttpReply complete(const std::string& fields);
  static std::vector<std::string> events(const HttpReply& reply);
  // The joined text of choice `index` of a stream.
  static std::string joined(const HttpReply& reply, int64_t index = 0);
  static std::string content(const HttpReply& reply);
  static std::string param(const HttpReply& reply);
  // One request written byte for byte (kShutSending: as it says), and the answer until the server
  // closes, `enough` holds (asked every few milliseconds) or a minute passes; then the connection
  // is closed.
  static constexpr std::string_view kShutSending = "(shut the sending side)";
  std::string raw(const std::vector<std::string>& pieces,
                  const std::function<bool(const std::string& answer)>& enough = {});

  // The request's own line in the router's log, as JSON; empty if there is none.
  std::string request_line(const std::string& request_id) const;
  // One sample of /metrics by its whole name with labels; -1 if there is none.
  double metric(const std::string& series);

  void TearDown() override;

  static const SteadyClock kClock;
  std::unique_ptr<ClusterConfig> config_;
  Fd log_;  // what sink_ writes
  std::unique_ptr<LogSink> sink_;
  std::unique_ptr<Router> router_;
  std::vector<std::unique_ptr<FakeNode>> nodes_;
  std::unique_ptr<HttpClient> client_;
  std::string url_;
};

}  // namespace tandem::router::test

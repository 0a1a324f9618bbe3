#include "tests/integration/router/router_fixture.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <boost/asio.hpp>
#include <boost/json.hpp>
#include <cstdlib>
#include <limits>

#include "common/model/checkpoint.h"
#include "common/model/text.h"

namespace tandem::router::test {
namespace {

namespace json = boost::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kModel = std::string(TANDEM_MODELS) + "/chat-6m";

struct Model {
  std::unique_ptr<model::Checkpoint> checkpoint;
  text::TextModel text;
};
const Model& the_model() {
  static const Model model = [] {
    Model m;
    m.checkpoint = std::move(*model::Checkpoint::open(kModel));
    m.text = std::move(*model::load_text(*m.checkpoint, SteadyClock()));
    return m;
  }();
  return model;
}

}  // namespace

const SteadyClock RouterTest::kClock;

const text::Tokenizer& RouterTest::tokenizer() { return *the_model().text.tokenizer; }

std::vector<control::Token> RouterTest::say(const std::string& text) {
  std::vector<control::Token> out;
  const auto ids = the_model().text.tokenizer->encode(text);
  for (TokenId id : *ids) {
    control::Token& t = out.emplace_back();
    t.set_id(id);
    t.set_logprob(-0.25F);
    t.add_top()->set_token(id);
    t.mutable_top(0)->set_logprob(-0.25F);
    t.add_top()->set_token(7);
    t.mutable_top(1)->set_logprob(-std::numeric_limits<float>::infinity());
  }
  return out;
}

Script RouterTest::speak(const control::Task& task, const std::string& text) {
  Script s;
  s.tokens = say(text);
  s.tokens.erase(s.tokens.begin(),
                 s.tokens.begin() + std::min<std::ptrdiff_t>(
                                        task.tokens_size() - static_cast<int>(task.prompt_tokens()),
                                        static_cast<std::ptrdiff_t>(s.tokens.size())));
  s.finish = control::FINISH_STOP;
  if (s.tokens.size() >= task.max_new_tokens()) {
    s.tokens.resize(task.max_new_tokens());
    s.finish = control::FINISH_LENGTH;
  }
  return s;
}

void RouterTest::boot(const std::string& yaml, const std::string& model_extra) {
  // ctest runs every test twice where that makes a difference: with HTTP on the cluster's loop and
  // on a thread of its own.
  const char* threads = std::getenv("TANDEM_TEST_HTTP_THREADS");
  const std::string http =
      "  http: {port: 0, threads: " + std::string(threads == nullptr ? "0" : threads) + "}\n";
  const std::string text = "model:\n  path: " + kModel + "\n" + model_extra +
                           "router:\n  control: {port: 0}\n" +
                           (yaml.find("http:") == yaml.npos ? http : "") + yaml;
  auto parsed = parse_cluster_config(text, "test.yaml", "/", {});
  ASSERT_TRUE(parsed) << parsed.error().detail;
  config_ = std::make_unique<ClusterConfig>(std::move(*parsed));
  log_ = Fd(::memfd_create("router-log", MFD_CLOEXEC));
  sink_ = std::make_unique<LogSink>(Fd(::dup(log_.get())), kClock);
  router_ = std::make_unique<Router>(*config_, kClock, Logger(*sink_, LogLevel::kInfo));
  const Status started = router_->start("");
  ASSERT_TRUE(started) << started.error().detail;
  url_ = "http://127.0.0.1:" + std::to_string(router_->http_port());
  client_ = std::move(*HttpClient::create(url_));
}

void RouterTest::identify(FakeNodeOptions& options) {
  options.model_fingerprint = the_model().checkpoint->fingerprint();
  options.tokenizer_hash = std::string(the_model().text.tokenizer->hash());
  options.vocab = the_model().checkpoint->config().vocab;
}

FakeNode& RouterTest::add_node(FakeNodeOptions options) {
  identify(options);
  nodes_.push_back(std::make_unique<FakeNode>(router_->control_port(), std::move(options), kClock,
                                              Logger(*sink_, LogLevel::kInfo)));
  FakeNode& node = *nodes_.back();
  EXPECT_TRUE(wait([&] { return node.admitted() && get("/health/ready").status == 200; }))
      << node.refusal();
  return node;
}

FakeNode& RouterTest::add_speaker(std::string text, Duration token_time) {
  FakeNodeOptions options;
  options.token_time = token_time;
  options.script = [text](const control::Task& task) { return speak(task, text); };
  return add_node(std::move(options));
}

HttpReply RouterTest::send(HttpCall call) {
  Result<HttpReply> reply = client_->request(std::move(call));
  EXPECT_TRUE(reply) << (reply ? "" : reply.error().detail);
  return reply ? *reply : HttpReply{};
}

HttpReply RouterTest::get(const std::string& target, HttpHeaders headers) {
  return send({.method = "GET", .target = target, .headers = std::move(headers), .body = {}});
}

HttpReply RouterTest::post(const std::string& target, const std::string& body,
                           HttpHeaders headers) {
  return send({.method = "POST", .target = target, .headers = std::move(headers), .body = body});
}

std::string RouterTest::chat_body(const std::string& extra, const std::string& content) {
  return R"({"model":"chat-6m","messages":[{"role":"user","content":")" + content + "\"}]" +
         (extra.empty() ? "" : "," + extra) + "}";
}

HttpReply RouterTest::chat(const std::string& extra, const std::string& content) {
  return post("/v1/chat/completions", chat_body(extra, content));
}

HttpReply RouterTest::complete(const std::string& fields) {
  return post("/v1/completions", R"({"model":"chat-6m",)" + fields + "}");
}

std::vector<std::string> RouterTest::events(const HttpReply& reply) {
  std::vector<std::string> out;
  size_t at = 0;
  while (at < reply.body.size()) {
    const size_t end = reply.body.find("\n\n", at);
    EXPECT_NE(end, reply.body.npos);
    if (end == reply.body.npos) break;
    EXPECT_EQ(reply.body.substr(at, 6), "data: ");
    out.push_back(reply.body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return out;
}

std::string RouterTest::joined(const HttpReply& reply, int64_t index) {
  std::string text;
  for (const std::string& e : events(reply)) {
    if (e == "[DONE]") continue;
    const json::value chunk = json::parse(e);
    for (const json::value& choice : chunk.at("choices").as_array()) {
      if (choice.at("index").as_int64() != index) continue;
      if (const json::value* t = choice.as_object().if_contains("text"))
        text += t->as_string().c_str();
      if (const json::value* d = choice.as_object().if_contains("delta")) {
        if (const json::value* c = d->as_object().if_contains("content"))
          text += c->as_string().c_str();
      }
    }
  }
  return text;
}

std::string RouterTest::content(const HttpReply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  return json::parse(reply.body)
      .at("choices")
      .at(0)
      .at("message")
      .at("content")
      .as_string()
      .c_str();
}

std::string RouterTest::param(const HttpReply& reply) {
  const json::value p = json::parse(reply.body).at("error").at("param");
  return p.is_string() ? std::string(p.as_string()) : "";
}

std::string RouterTest::raw(const std::vector<std::string>& pieces,
                            const std::function<bool(const std::string& answer)>& enough) {
  namespace asio = boost::asio;
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  socket.connect({asio::ip::make_address("127.0.0.1"), router_->http_port()});
  for (const std::string& piece : pieces) {
    boost::system::error_code ec;
    if (piece == kShutSending) {
      socket.shutdown(asio::ip::tcp::socket::shutdown_send, ec);
      break;
    }
    asio::write(socket, asio::buffer(piece), ec);
    if (ec) break;
    std::this_thread::sleep_for(milliseconds(1));
  }
  std::string out;
  std::array<char, 4096> buffer;
  bool open = true;
  std::function<void()> read = [&] {
    socket.async_read_some(asio::buffer(buffer), [&](boost::system::error_code ec, size_t n) {
      open = !ec;
      if (!open) return;
      out.append(buffer.data(), n);
      read();
    });
  };
  read();
  const TimePoint end = kClock.now() + std::chrono::minutes(1);
  while (open && kClock.now() < end && !(enough && enough(out))) io.run_for(milliseconds(5));
  return out;
}

std::string RouterTest::request_line(const std::string& request_id) const {
  std::string text(static_cast<size_t>(::lseek(log_.get(), 0, SEEK_END)), '\0');
  text.resize(static_cast<size_t>(::pread(log_.get(), text.data(), text.size(), 0)));
  const size_t at = text.find(R"("event":"request","request_id":")" + request_id + '"');
  if (at == text.npos) return {};
  const size_t begin = text.rfind('\n', at) + 1;
  return text.substr(begin, text.find('\n', at) - begin);
}

double RouterTest::metric(const std::string& series) {
  const std::string text = "\n" + get("/metrics").body;
  const size_t at = text.find("\n" + series + " ");
  return at == text.npos ? -1 : std::strtod(text.c_str() + at + 1 + series.size(), nullptr);
}

void RouterTest::TearDown() {
  client_.reset();
  nodes_.clear();
  if (router_) router_->stop(seconds(1));
}

}  // namespace tandem::router::test

// The whole router in one process with its load generator and a made-up node, as performance.md's
// peer was measured: everything shares the machine's cores. Prints one JSON line per measurement.
//   router_load_bench [SECONDS] [--rates R,R,...]
// The parts alone, for peer_sglang_router.py, in which every router stands between the same others:
//   router_load_bench drive URL RATE SECONDS | backend PORT | node CONTROL_PORT
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/base/check.h"
#include "common/config/config.h"
#include "common/model/checkpoint.h"
#include "common/model/text.h"
#include "common/net/async_http_client.h"
#include "common/net/http_server.h"
#include "common/net/io_thread.h"
#include "common/obs/metrics.h"
#include "common/text/tokenizer.h"
#include "router/app/router.h"
#include "tests/integration/router/fake_node.h"

namespace tandem::router {
namespace {

const std::string kModel = std::string(TANDEM_MODELS) + "/chat-6m";

// CPU seconds of this process's threads whose name begins so.
double cpu_of(std::string_view prefix) {
  double ticks = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    const size_t open = text.find('(');
    const size_t close = text.rfind(')');
    if (open == text.npos || close == text.npos || text.substr(open + 1, prefix.size()) != prefix)
      continue;
    unsigned long user = 0;
    unsigned long system = 0;
    if (std::sscanf(text.c_str() + close + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                    &user, &system) == 2) {
      ticks += static_cast<double>(user + system);
    }
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

test::FakeNodeOptions fake_node(Duration token_time) {
  const SteadyClock clock;
  const auto checkpoint = model::Checkpoint::open(kModel);
  test::FakeNodeOptions options;
  options.model_fingerprint = (*checkpoint)->fingerprint();
  options.tokenizer_hash = std::string(model::load_text(**checkpoint, clock)->tokenizer->hash());
  options.vocab = (*checkpoint)->config().vocab;
  options.kv_blocks = 1U << 24;
  options.token_time = token_time;
  return options;
}

struct Bench {
  SteadyClock clock;
  LogSink sink{Fd(::open("/dev/null", O_WRONLY)), clock};
  ClusterConfig config;
  std::unique_ptr<Router> router;
  std::unique_ptr<test::FakeNode> node;
  IoThread io{"load"};
  std::unique_ptr<AsyncHttpClient> client;

  explicit Bench(Duration token_time) {
    auto parsed = parse_cluster_config(
        "model: {path: " + kModel + "}\nrouter: {http: {port: 0}, control: {port: 0}}\n", "bench",
        "/", {});
    TANDEM_CHECK(parsed.has_value(), parsed ? "" : parsed.error().detail);
    config = std::move(*parsed);
    const Logger log(sink, LogLevel::kError);
    router = std::make_unique<Router>(config, clock, log);
    TANDEM_CHECK(router->start("").has_value(), "the router starts");
    node =
        std::make_unique<test::FakeNode>(router->control_port(), fake_node(token_time), clock, log);
    while (!node->admitted()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    client = std::move(*AsyncHttpClient::create(
        io, "http://127.0.0.1:" + std::to_string(router->http_port()), {}));
    io.start();
  }
  ~Bench() {
    io.stop();
    client.reset();
    node.reset();
    router->stop(std::chrono::seconds(1));
  }
};

double at(std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1,
                         static_cast<size_t>(q * static_cast<double>(sorted.size())))];
}

constexpr std::string_view kChatBody =
    R"({"model":"chat-6m","max_tokens":1,"messages":[{"role":"user","content":"What is the time?"}]})";

struct Latencies {
  std::vector<double> seconds;  // sorted
  uint64_t errors = 0;
  double achieved = 0;  // answers a second
};

// Open loop: requests leave on time whatever the answers do; latency counts from the time they were
// due.
Latencies drive(const Clock& clock, IoThread& io, AsyncHttpClient& client, double rate,
                double seconds) {
  Latencies out;
  std::atomic<uint64_t> errors{0}, done{0};
  const auto total = static_cast<uint64_t>(rate * seconds);
  out.seconds.reserve(total);
  uint64_t sent = 0;
  const TimePoint start = clock.now() + std::chrono::milliseconds(50);
  auto pump = [&] {
    const double now = to_seconds(clock.now() - start);
    while (sent < total && static_cast<double>(sent) / rate <= now) {
      const TimePoint due = start + from_seconds(static_cast<double>(sent++) / rate);
      client.send(
          {.method = "POST",
           .target = "/v1/chat/completions",
           .headers = {{"Content-Type", "application/json"}},
           .body = std::string(kChatBody)},
          {.on_head = [&](int status, const HttpHeaders&) { errors += status == 200 ? 0 : 1; },
           .on_data = [](std::string_view) {},
           .on_end =
               [&, due](Status outcome) {
                 if (!outcome) ++errors;
                 out.seconds.push_back(to_seconds(clock.now() - due));
                 ++done;
               }});
    }
  };
  std::unique_ptr<IoThread::Timer> timer;
  io.post([&] { timer = io.every(std::chrono::microseconds(100), pump); });
  while (done < total && clock.now() < start + from_seconds(seconds + 5)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  out.achieved = static_cast<double>(done) / to_seconds(clock.now() - start);
  io.stop();
  std::sort(out.seconds.begin(), out.seconds.end());
  out.errors = errors;
  return out;
}

void print(std::string_view what, double rate, Latencies& l, double router_cpu_us) {
  fmt::print(
      "{{\"what\":\"{}\",\"requests_per_second\":{},\"achieved\":{:.0f},\"errors\":{},"
      "\"p50_us\":{:.0f},\"p90_us\":{:.0f},\"p99_us\":{:.0f},\"router_cpu_us_per_request\":{:.1f}}}"
      "\n",
      what, rate, l.achieved, l.errors, at(l.seconds, 0.5) * 1e6, at(l.seconds, 0.9) * 1e6,
      at(l.seconds, 0.99) * 1e6, router_cpu_us);
  std::fflush(stdout);
}

void added_latency(double rate, double seconds) {
  Bench bench({});
  const double before = cpu_of("cluster") + cpu_of("http-");
  Latencies l = drive(bench.clock, bench.io, *bench.client, rate, seconds);
  const double cpu = cpu_of("cluster") + cpu_of("http-") - before;
  print("round trip", rate, l,
        cpu * 1e6 / static_cast<double>(std::max<size_t>(1, l.seconds.size())));
}

// The load alone, against whatever listens at `url`.
void drive_url(const std::string& url, double rate, double seconds) {
  const SteadyClock clock;
  IoThread io("load");
  auto client = std::move(*AsyncHttpClient::create(io, url, {}));
  io.start();
  Latencies l = drive(clock, io, *client, rate, seconds);
  client.reset();
  print("round trip", rate, l, 0);
}

void wait_for_sigterm() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  int signal = 0;
  sigwait(&set, &signal);
}

// Stands for an OpenAI-compatible worker behind a peer's router: answers at once, one token.
void serve_backend(uint16_t port) {
  const SteadyClock clock;
  LogSink sink(Fd(::open("/dev/null", O_WRONLY)), clock);
  MetricsRegistry metrics;
  HttpSettings settings;
  settings.port = port;
  settings.threads = 1;
  const auto answer = [](const HttpRequest& request, const HttpResponder& responder) {
    HttpResponse response;
    response.body =
        request.path == "/v1/chat/completions"
            ? R"({"id":"c","object":"chat.completion","created":1,"model":"chat-6m","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}})"
            : R"({"model_path":"chat-6m","is_generation":true,"data":[{"id":"chat-6m"}],"status":"ok"})";
    responder.respond(std::move(response));
  };
  sigset_t set;
  sigfillset(&set);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  auto server = HttpServer::create(
      settings, answer,
      {.clock = clock, .log = Logger(sink, LogLevel::kError), .metrics = metrics});
  TANDEM_CHECK(server.has_value(), server ? "" : server.error().detail);
  wait_for_sigterm();
}

// Stands for a decode node behind a tandem-router in a process of its own.
void serve_node(uint16_t control_port) {
  const SteadyClock clock;
  LogSink sink(Fd(::open("/dev/null", O_WRONLY)), clock);
  sigset_t set;
  sigfillset(&set);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  const test::FakeNode node(control_port, fake_node({}), clock, Logger(sink, LogLevel::kError));
  wait_for_sigterm();
}

// `streams` answers at once, one token each per node step, every token an event of its own.
void sse_events(size_t streams, Duration step, double seconds) {
  Bench bench(step);
  std::atomic<uint64_t> events{0}, open{0};
  const std::string body =
      R"({"model":"chat-6m","max_tokens":3500,"ignore_eos":true,"stream":true,"messages":[{"role":"user","content":"Go on."}]})";
  bench.io.post([&] {
    for (size_t i = 0; i < streams; ++i) {
      bench.client->send(
          {.method = "POST", .target = "/v1/chat/completions", .headers = {}, .body = body},
          {.on_head = [&](int, const HttpHeaders&) { ++open; },
           .on_data =
               [&](std::string_view bytes) {
                 for (size_t p = bytes.find("data: "); p != bytes.npos;
                      p = bytes.find("data: ", p + 6))
                   ++events;
               },
           .on_end = [](Status) {}});
    }
  });
  while (open < streams) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const uint64_t before = events;
  const double http = cpu_of("http-");
  const double cluster = cpu_of("cluster");
  const TimePoint start = bench.clock.now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const double n = static_cast<double>(events - before);
  const double wall = to_seconds(bench.clock.now() - start);
  const double http_cpu = cpu_of("http-") - http;
  const double cluster_cpu = cpu_of("cluster") - cluster;
  fmt::print(
      "{{\"what\":\"SSE "
      "events\",\"streams\":{},\"events_per_second\":{:.0f},\"events_per_second_and_core\":{:.0f},"
      "\"http_us_per_event\":{:.2f},\"cluster_us_per_event\":{:.2f}}}\n",
      streams, n / wall, n / (http_cpu + cluster_cpu), http_cpu * 1e6 / n, cluster_cpu * 1e6 / n);
  std::fflush(stdout);
}

}  // namespace
}  // namespace tandem::router

int main(int argc, char** argv) {
  using namespace tandem::router;
  CLI::App app(
      "Added latency and SSE events of the whole router, in one process with its load generator "
      "and a "
      "made-up node; without a subcommand one JSON line per measurement");
  double seconds = 3;
  std::vector<double> rates = {1000, 2000, 5000};
  app.add_option("seconds", seconds, "seconds per point")->check(CLI::PositiveNumber);
  app.add_option("--rates", rates, "requests a second, one point each")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  std::string url;
  double rate = 0;
  uint16_t port = 0;
  CLI::App* drive = app.add_subcommand("drive", "the load alone, against a server that runs");
  drive->add_option("url", url, "where it listens")->required();
  drive->add_option("rate", rate, "requests a second")->required()->check(CLI::PositiveNumber);
  drive->add_option("seconds", seconds, "how long")->required()->check(CLI::PositiveNumber);
  CLI::App* backend = app.add_subcommand("backend", "an HTTP worker that answers at once");
  backend->add_option("port", port, "where to listen")->required();
  CLI::App* node = app.add_subcommand("node", "a made-up decode node");
  node->add_option("port", port, "the router's control port")->required();
  app.require_subcommand(0, 1);
  CLI11_PARSE(app, argc, argv);

  if (drive->parsed()) {
    drive_url(url, rate, seconds);
  } else if (backend->parsed()) {
    serve_backend(port);
  } else if (node->parsed()) {
    serve_node(port);
  } else {
    for (const double each : rates) added_latency(each, seconds);
    sse_events(64, std::chrono::milliseconds(2), std::min(seconds, 5.0));
    sse_events(256, std::chrono::milliseconds(4), std::min(seconds, 5.0));
  }
  return 0;
}

// The whole router in one process with its load generator and a made-up node, as performance.md's
// peer was measured: everything shares the machine's cores. Prints one JSON line per measurement.
//   router_load_bench [seconds per point]
#include <fcntl.h>
#include <fmt/format.h>

#include <unistd.h>
#include <algorithm>
#include <atomic>
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
#include "common/net/io_thread.h"
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

struct Bench {
  SteadyClock clock;
  LogSink sink{Fd(::open("/dev/null", O_WRONLY)), clock};
  ClusterConfig config;
  std::unique_ptr<Router> router;
  std::unique_ptr<test::FakeNode> node;
  IoThread io{"load"};
  std::unique_ptr<AsyncHttpClient> client;

  explicit Bench(Duration token_time) {
    auto parsed =
        parse_cluster_config("model: {path: " + kModel +
                                 "}\nrouter: {http: {port: 0, threads: 1}, control: {port: 0}}\n",
                             "bench", "/", {});
    TANDEM_CHECK(parsed.has_value(), parsed ? "" : parsed.error().detail);
    config = std::move(*parsed);
    const Logger log(sink, LogLevel::kError);
    router = std::make_unique<Router>(config, clock, log);
    TANDEM_CHECK(router->start("").has_value(), "the router starts");
    const auto checkpoint = model::Checkpoint::open(kModel);
    test::FakeNodeOptions options;
    options.model_fingerprint = (*checkpoint)->fingerprint();
    options.tokenizer_hash = std::string(model::load_text(**checkpoint, clock)->tokenizer->hash());
    options.vocab = (*checkpoint)->config().vocab;
    options.kv_blocks = 1U << 24;
    options.token_time = token_time;
    node = std::make_unique<test::FakeNode>(router->control_port(), std::move(options), clock, log);
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

// Open loop: requests leave on time whatever the answers do; latency counts from the time they were
// due.
void added_latency(double rate, double seconds) {
  Bench bench({});
  std::vector<double> latencies;
  std::atomic<uint64_t> errors{0}, done{0};
  const std::string body =
      R"({"model":"chat-6m","max_tokens":1,"messages":[{"role":"user","content":"What is the time?"}]})";
  const auto total = static_cast<uint64_t>(rate * seconds);
  latencies.reserve(total);
  const double router_before = cpu_of("cluster") + cpu_of("http-");
  uint64_t sent = 0;
  const TimePoint start = bench.clock.now() + std::chrono::milliseconds(50);
  auto pump = [&] {
    const double now = to_seconds(bench.clock.now() - start);
    while (sent < total && static_cast<double>(sent) / rate <= now) {
      const TimePoint due = start + from_seconds(static_cast<double>(sent++) / rate);
      bench.client->send(
          {.method = "POST", .target = "/v1/chat/completions", .headers = {}, .body = body},
          {.on_head = [&](int status, const HttpHeaders&) { errors += status == 200 ? 0 : 1; },
           .on_data = [](std::string_view) {},
           .on_end =
               [&, due](Status outcome) {
                 if (!outcome) ++errors;
                 latencies.push_back(to_seconds(bench.clock.now() - due));
                 ++done;
               }});
    }
  };
  std::unique_ptr<IoThread::Timer> timer;
  bench.io.post([&] { timer = bench.io.every(std::chrono::microseconds(100), pump); });
  while (done < total && bench.clock.now() < start + from_seconds(seconds + 5)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const double wall = to_seconds(bench.clock.now() - start);
  const double cpu = cpu_of("cluster") + cpu_of("http-") - router_before;
  bench.io.stop();
  std::sort(latencies.begin(), latencies.end());
  fmt::print(
      "{{\"what\":\"added latency\",\"requests_per_second\":{},\"achieved\":{:.0f},\"errors\":{},"
      "\"p50_us\":{:.0f},\"p90_us\":{:.0f},\"p99_us\":{:.0f},\"router_cpu_us_per_request\":{:.1f}}}"
      "\n",
      rate, static_cast<double>(latencies.size()) / wall, errors.load(), at(latencies, 0.5) * 1e6,
      at(latencies, 0.9) * 1e6, at(latencies, 0.99) * 1e6, cpu * 1e6 / static_cast<double>(total));
  std::fflush(stdout);
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
  const double seconds = argc > 1 ? std::atof(argv[1]) : 3;
  for (double rate : {1000.0, 2000.0, 5000.0}) tandem::router::added_latency(rate, seconds);
  tandem::router::sse_events(64, std::chrono::milliseconds(2), std::min(seconds, 5.0));
  tandem::router::sse_events(256, std::chrono::milliseconds(4), std::min(seconds, 5.0));
  return 0;
}

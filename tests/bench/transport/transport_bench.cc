// KV push between two processes of this box, by message size: GB/s over shared memory and over TCP,
// as a share of what ucx_perftest (package ucx-utils) moves with the same UCX, transports and size
// in the same run. Our bytes are checksummed on both sides and copied out of and into pages;
// perftest's are not.
//
//   transport_bench [--mib N]       (ucx_perftest is left out with a note when it is not installed)
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/piped_child.h"
#include "common/transport/ucx/ucx_transport.h"

namespace tandem::transport {
namespace {

constexpr Generation kSender{1};
constexpr Generation kReceiver{2};
constexpr int kRepeats = 5;

class Events final : public TransportEvents {
 public:
  void on_received(TransferId, std::string, const ReceiveStats&) override { done({}); }
  void on_receive_failed(TransferId, Error error) override { fail(error); }
  void on_sent(TransferId, const SendStats& stats) override { done(stats); }
  void on_send_failed(TransferId, Error error) override { fail(error); }
  SendStats wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stats_.has_value(); });
    return *std::exchange(stats_, std::nullopt);
  }

 private:
  void done(const SendStats& stats) {
    std::lock_guard lock(mutex_);
    stats_ = stats;
    changed_.notify_all();
  }
  static void fail(const Error& error) {
    std::fprintf(stderr, "transfer failed: %s\n", error.to_string().c_str());
    std::_Exit(1);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<SendStats> stats_;
};

// Pages of exactly `bytes` (a multiple of 8 KiB).
kv::KvLayout layout_of(size_t bytes) {
  return {1, static_cast<uint32_t>(bytes / 8192), 64, kv::KvFormat::kF32};
}

std::unique_ptr<Transport> open(const char* tls, Generation self, const Clock& clock,
                                Events& events) {
  auto transport = create_ucx_transport(
      {.tls = tls, .on_warning = [](const std::string& w) { std::cerr << w << "\n"; }},
      {.self = self,
       .clock = clock,
       .events = events,
       .limits = {.max_sends = kRepeats, .max_receives = kRepeats, .max_queued_frames = 1u << 20}});
  if (!transport) {
    std::fprintf(stderr, "%s\n", transport.error().to_string().c_str());
    std::_Exit(1);
  }
  return std::move(*transport);
}

// Child: prints its address, then takes kRepeats transfers.
int receive(const char* tls, size_t bytes, uint32_t pages) {
  SteadyClock clock;
  Events events;
  const auto transport = open(tls, kReceiver, clock, events);
  const kv::KvLayout layout = layout_of(bytes);
  std::vector<std::byte> memory(bytes * pages, std::byte{1});
  for (int i = 1; i <= kRepeats; ++i) {
    ReceivePlan plan{.id = TransferId{static_cast<uint64_t>(i)},
                     .sender = kSender,
                     .layout = layout,
                     .pages = pages,
                     .deadline = std::chrono::minutes(2)};
    plan.destination = [&](uint32_t, uint32_t page) {
      return std::span(memory).subspan(page * bytes, bytes);
    };
    if (const Status opened = transport->open_receive(plan); !opened) {
      std::fprintf(stderr, "%s\n", opened.error().to_string().c_str());
      return 1;
    }
  }
  const std::string address = transport->address();
  const auto size = static_cast<uint32_t>(address.size());
  (void)!write(1, &size, sizeof(size));
  (void)!write(1, address.data(), size);
  for (int i = 0; i < kRepeats; ++i) (void)events.wait();
  char end = 0;
  (void)!read(0, &end, 1);  // until the parent has its last ack
  return 0;
}

std::string read_all(const PipedChild& child) {
  std::string text;
  char chunk[4096];
  for (ssize_t n = 0; (n = read(child.out.get(), chunk, sizeof(chunk))) > 0;) {
    text.append(chunk, static_cast<size_t>(n));
  }
  return text;
}

double ours(const char* self, const char* tls, size_t bytes, uint32_t pages, std::string& detail) {
  const auto started =
      start_piped_child({self, "--receive", tls, std::to_string(bytes), std::to_string(pages)});
  if (!started) return 0;
  const PipedChild& child = *started;
  uint32_t size = 0;
  if (read(child.out.get(), &size, sizeof(size)) != sizeof(size)) return 0;
  std::string address(size, '\0');
  if (read(child.out.get(), address.data(), size) != static_cast<ssize_t>(size)) return 0;
  SteadyClock clock;
  Events events;
  const auto transport = open(tls, kSender, clock, events);
  std::vector<std::byte> memory(bytes * pages, std::byte{3});
  std::vector<double> rates;
  for (int i = 1; i <= kRepeats; ++i) {
    const TransferId id{static_cast<uint64_t>(i)};
    const Status opened = transport->open_send({.id = id,
                                                .receiver = kReceiver,
                                                .address = address,
                                                .layout = layout_of(bytes),
                                                .pages = pages,
                                                .tail_rows = 0,
                                                .deadline = std::chrono::minutes(1)});
    if (!opened) {
      std::fprintf(stderr, "%s\n", opened.error().to_string().c_str());
      return 0;
    }
    for (uint32_t page = 0; page < pages; ++page) {
      const std::span<const std::byte> one[] = {std::span(memory).subspan(page * bytes, bytes)};
      if (const Status posted = transport->post_pages(id, 0, page, one); !posted) {
        std::fprintf(stderr, "%s\n", posted.error().to_string().c_str());
        return 0;
      }
    }
    if (!transport->post_commit(id, "")) return 0;
    const SendStats stats = events.wait();
    rates.push_back(static_cast<double>(stats.wire_bytes) / to_seconds(stats.elapsed) / 1e9);
  }
  detail = transport->detail();
  (void)!write(child.in.get(), "q", 1);
  waitpid(child.pid, nullptr, 0);
  std::ranges::sort(rates);
  return rates[kRepeats / 2];
}

// ucx_perftest's overall GB/s; 0 when it is not installed.
double perftest(const char* tls, size_t bytes, uint32_t messages) {
  const std::vector<std::string> env = {"UCX_TLS=" + std::string(tls),
                                        "UCX_WARN_UNUSED_ENV_VARS=n"};
  const auto server = start_piped_child({"ucx_perftest", "-p", "13987"}, env);
  if (!server) return 0;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto client = start_piped_child(
      {"timeout", "60", "ucx_perftest", "-p", "13987", "127.0.0.1", "-t", "ucp_am_bw", "-f", "-w",
       "20", "-s", std::to_string(bytes), "-n", std::to_string(messages)},
      env);
  std::string text;
  if (client) {
    text = read_all(*client);
    waitpid(client->pid, nullptr, 0);
  }
  kill(server->pid, SIGTERM);
  waitpid(server->pid, nullptr, 0);
  if (text.size() < 2) return 0;
  // Last line: messages, latency typical, average, overall; bandwidth average, overall (MiB/s);
  // rates.
  double field[8] = {};
  const size_t last = text.find_last_of('\n', text.size() - 2);
  const char* line = text.c_str() + (last == std::string::npos ? 0 : last + 1);
  const int n = std::sscanf(line, "%lf %lf %lf %lf %lf %lf", &field[0], &field[1], &field[2],
                            &field[3], &field[4], &field[5]);
  return n == 6 ? field[5] * 1048576.0 / 1e9 : 0;
}

int run(const char* self, size_t mib) {
  std::printf("%-6s %10s %12s %14s %7s  %s\n", "lanes", "message", "tandem GB/s", "perftest GB/s",
              "ratio", "detail");
  for (const char* tls : {"shm,self", "tcp,self"}) {
    for (const size_t bytes : {size_t{8192}, size_t{65536}, size_t{1} << 20, size_t{4} << 20}) {
      const bool tcp = std::string_view(tls).starts_with("tcp");
      const auto pages = static_cast<uint32_t>((mib << 20) / bytes / (tcp ? 4 : 1));
      std::string detail;
      const double rate = ours(self, tls, bytes, pages, detail);
      const double peer = perftest(tcp ? tls : "posix,self", bytes, pages);
      std::printf("%-6s %10zu %12.2f %14.2f %7s  %s\n", tcp ? "tcp" : "shm", bytes, rate, peer,
                  peer > 0 ? std::to_string(rate / peer).substr(0, 5).c_str() : "-",
                  detail.c_str());
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace tandem::transport

int main(int argc, char** argv) {
  using namespace tandem::transport;
  if (argc == 5 && std::string_view(argv[1]) == "--receive") {
    return receive(argv[2], std::strtoull(argv[3], nullptr, 10),
                   static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10)));
  }
  const bool sized = argc == 3 && std::string_view(argv[1]) == "--mib";
  if (argc != 1 && !sized) {
    std::fprintf(stderr, "usage: transport_bench [--mib N]\n");
    return 2;
  }
  return run(argv[0], sized ? std::strtoull(argv[2], nullptr, 10) : 256);
}

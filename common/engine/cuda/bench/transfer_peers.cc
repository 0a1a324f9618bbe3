#include "common/engine/cuda/bench/transfer_peers.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "common/engine/cuda/bench/bench_card.h"

namespace tandem::bench {
namespace {

constexpr int kRepeats = 5;

double median(std::vector<double> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

Result<double> plain_host_copy(size_t size, size_t total) {
  const SteadyClock clock;
  std::vector<std::byte> a(total, std::byte{1});
  std::vector<std::byte> b(total, std::byte{2});
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) {
    const TimePoint begin = clock.now();
    for (size_t at = 0; at + size <= total; at += size) {
      std::memcpy(b.data() + at, a.data() + at, size);
    }
    times.push_back(to_seconds(clock.now() - begin));
  }
  return static_cast<double>(total / size * size) / median(times);
}

Status reach(int from, int to) {
  if (from == to) return {};
  TANDEM_CUDA_TRY(cudaSetDevice(to));
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(from, 0);
  (void)cudaGetLastError();
  if (enabled != cudaErrorPeerAccessAlreadyEnabled) TANDEM_CUDA_TRY(enabled);
  return {};
}

// One direction of plain_copy: `to` pulls from `from`.
struct CopyLane {
  BenchCard card;
  cuda::DeviceBuffer from;
  cuda::DeviceBuffer to;
  Status enqueue(size_t size, size_t total) const {
    for (size_t at = 0; at + size <= total; at += size) {
      TANDEM_CUDA_TRY(cudaMemcpyAsync(to.data() + at, from.data() + at, size, cudaMemcpyDefault,
                                      card.stream().get()));
    }
    return {};
  }
};

Result<CopyLane> open_lane(int from, int to, size_t total) {
  TANDEM_ASSIGN(auto source,
                BenchCard::open({.device = from, .only = {}, .python = {}, .libraries = {}}));
  TANDEM_ASSIGN(auto a, source.normal_bf16(total / sizeof(Bf16), 1));
  TANDEM_ASSIGN(auto target,
                BenchCard::open({.device = to, .only = {}, .python = {}, .libraries = {}}));
  TANDEM_TRY(reach(from, to));
  TANDEM_ASSIGN(auto b, target.zeros(total));
  return CopyLane{std::move(target), std::move(a), std::move(b)};
}

}  // namespace

Result<double> plain_copy(int from, int to, size_t size, size_t total, bool both_ways) {
  if (from < 0) return plain_host_copy(size, total);
  TANDEM_ASSIGN(auto there, open_lane(from, to, total));
  if (!both_ways) {
    TANDEM_ASSIGN(const double seconds,
                  there.card.seconds([&](uint32_t) { return there.enqueue(size, total); }, 1));
    return static_cast<double>(total / size * size) / seconds;
  }
  TANDEM_ASSIGN(auto back, open_lane(to, from, total));
  const SteadyClock clock;
  std::vector<double> times;
  for (int i = 0; i <= kRepeats; ++i) {
    const TimePoint begin = clock.now();
    // In turns, so that neither stream has a start over the other.
    for (size_t at = 0; at + size <= total; at += size) {
      for (const CopyLane* lane : {&there, &back}) {
        TANDEM_CUDA_TRY(cudaMemcpyAsync(lane->to.data() + at, lane->from.data() + at, size,
                                        cudaMemcpyDefault, lane->card.stream().get()));
      }
    }
    TANDEM_TRY(there.card.stream().synchronize());
    TANDEM_TRY(back.card.stream().synchronize());
    if (i > 0) times.push_back(to_seconds(clock.now() - begin));
  }
  return static_cast<double>(total / size * size) / median(times);
}

std::optional<double> ucx_perftest(const std::string& program, bool cuda, size_t size,
                                   uint32_t messages, std::string& why) {
  const std::string port = std::to_string(20000 + static_cast<int>(getpid()) % 20000);
  const std::vector<std::string> environment = {
      std::string("UCX_TLS=") + (cuda ? "cuda_copy,cuda_ipc,posix,tcp,self" : "posix,self,tcp"),
      "UCX_WARN_UNUSED_ENV_VARS=n", "UCX_HANDLE_ERRORS=none"};
  const std::string memory = cuda ? "cuda" : "host";
  const auto server =
      LineProcess::start({"timeout", "60", program, "-p", port, "-m", memory}, environment);
  if (!server) {
    why = server.error().detail;
    return std::nullopt;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(cuda ? 1000 : 300));  // it listens
  const auto client = LineProcess::start(
      {"timeout", "40", program, "-p", port, "127.0.0.1", "-t", cuda ? "ucp_put_bw" : "ucp_am_bw",
       "-m", memory, "-f", "-w", "20", "-s", std::to_string(size), "-n", std::to_string(messages)},
      environment);
  const std::string text = client ? (*client)->rest() : std::string();
  (*server)->terminate();
  // Last line: messages; latency typical, average, overall; bandwidth average, overall (MiB/s).
  double field[6] = {};
  const size_t last =
      text.size() < 2 ? std::string::npos : text.find_last_of('\n', text.size() - 2);
  const char* const line = text.c_str() + (last == std::string::npos ? 0 : last + 1);
  if (std::sscanf(line, "%lf %lf %lf %lf %lf %lf", &field[0], &field[1], &field[2], &field[3],
                  &field[4], &field[5]) == 6) {
    return field[5] * 1048576.0;
  }
  why = "'" + program + "' gave no figures: " + text.substr(0, 200);
  return std::nullopt;
}

}  // namespace tandem::bench

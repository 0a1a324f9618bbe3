#include "common/engine/cuda/bench/transfer_bench.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>

#include "common/base/clock.h"
#include "common/engine/cuda/bench/bench_card.h"
#include "common/engine/cuda/page_memory.h"
#include "common/transport/device_transports.h"

namespace tandem::bench {
namespace {

constexpr Generation kSender{1};
constexpr Generation kReceiver{2};
constexpr size_t kPage = size_t{64} << 10;
constexpr size_t kLeastPool = size_t{256} << 20;  // so that small messages do not stay in the cache
constexpr int kRepeats = 5;
constexpr Duration kDeadline = std::chrono::minutes(1);

// `layers` messages of any number of pages of kPage bytes.
kv::KvLayout layout_of(uint32_t layers) { return {layers, 8, 128, kv::KvFormat::kBf16}; }

size_t pool_bytes(uint32_t largest_mib) { return std::max(kLeastPool, size_t{largest_mib} << 20); }

// The end of each transfer, handed from the transport's thread to ours.
class Events final : public transport::TransportEvents {
 public:
  void on_received(TransferId, std::string, const transport::ReceiveStats&) override {}
  void on_receive_failed(TransferId, Error error) override {
    std::cerr << "receive: " << error.to_string() << "\n";
  }
  void on_sent(TransferId, const transport::SendStats& stats) override { end(stats); }
  void on_send_failed(TransferId, Error error) override { end(fail(std::move(error))); }
  [[nodiscard]] Result<transport::SendStats> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_.has_value(); });
    return *std::exchange(ended_, std::nullopt);
  }

 private:
  void end(Result<transport::SendStats> outcome) {
    const std::lock_guard lock(mutex_);
    ended_ = std::move(outcome);
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Result<transport::SendStats>> ended_;
};

// One end: a card's memory and a transport over it.
class End {
 public:
  [[nodiscard]] static Result<std::unique_ptr<End>> open(const std::string& name, int device,
                                                         uint32_t largest_mib,
                                                         const std::vector<std::string>& libraries,
                                                         Generation self) {
    std::unique_ptr<End> end(new End);
    TANDEM_ASSIGN(auto card,
                  BenchCard::open({.device = device, .only = {}, .python = {}, .libraries = {}}));
    TANDEM_ASSIGN(auto pages, card.normal_bf16(pool_bytes(largest_mib) / sizeof(Bf16), 1));
    TANDEM_ASSIGN(end->memory_, engine::create_cuda_page_memory(device, std::move(pages), {}));
    const transport::DeviceTransportOptions options{
        .device = device, .libraries = libraries, .on_warning = [](const std::string& text) {
          std::cerr << "transport: " << text << "\n";
        }};
    const transport::TransportDeps deps{.self = self,
                                        .clock = end->clock_,
                                        .events = end->events_,
                                        .limits = {.max_queued_frames = size_t{1} << 20},
                                        .memory = end->memory_.get()};
    if (name != "cuda_ipc" && name != "nccl")
      return fail(ErrorCode::kInvalidArgument,
                  "transport \"" + name + "\" is unknown; use cuda_ipc or nccl", "transport");
    TANDEM_ASSIGN(end->transport_, name == "nccl"
                                       ? transport::create_nccl_transport(options, deps)
                                       : transport::create_cuda_ipc_transport(options, deps));
    return end;
  }

  [[nodiscard]] transport::Transport& transport() { return *transport_; }
  [[nodiscard]] Events& events() { return events_; }
  [[nodiscard]] std::span<std::byte> page(size_t i) const {
    return {memory_->pages() + i * kPage, kPage};
  }

 private:
  End() = default;
  SteadyClock clock_;
  Events events_;
  std::unique_ptr<kv::PageMemory> memory_;
  std::unique_ptr<transport::Transport> transport_;
};

// The receiving process, spoken to in lines.
class Child {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Child>> start(std::vector<std::string> words) {
    int to[2];
    int from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0)
      return fail(ErrorCode::kResourceExhausted, "no pipe to a second process");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t pid = fork();
    if (pid < 0) return fail(ErrorCode::kResourceExhausted, "no second process");
    if (pid == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    return std::unique_ptr<Child>(new Child(pid, fdopen(to[1], "w"), fdopen(from[0], "r")));
  }
  ~Child() {
    std::fclose(in_);
    std::fclose(out_);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void say(const std::string& line) {
    std::fputs((line + "\n").c_str(), in_);
    std::fflush(in_);
  }
  [[nodiscard]] Result<std::string> line() {
    std::string text;
    for (int c = std::fgetc(out_); c != '\n'; c = std::fgetc(out_)) {
      if (c == EOF) return fail(ErrorCode::kUnavailable, "the receiving process has ended");
      text += static_cast<char>(c);
    }
    return text;
  }
  [[nodiscard]] Result<std::string> bytes(size_t count) {
    std::string text(count, '\0');
    if (std::fread(text.data(), 1, count, out_) != count)
      return fail(ErrorCode::kUnavailable, "the receiving process has ended");
    return text;
  }

 private:
  Child(pid_t pid, FILE* in, FILE* out) : pid_(pid), in_(in), out_(out) {}
  pid_t pid_;
  FILE* in_;
  FILE* out_;
};

struct Pair {
  std::unique_ptr<Child> child;
  std::unique_ptr<End> end;
  std::string address;
  uint64_t last = 0;
};

// Seconds from the first post to the last acknowledgement of `messages` messages.
Result<double> push(Pair& pair, uint32_t messages, uint32_t pages) {
  const TransferId id{++pair.last};
  pair.child->say(std::to_string(id.value) + " " + std::to_string(messages) + " " +
                  std::to_string(pages));
  TANDEM_ASSIGN(const std::string answer, pair.child->line());
  if (answer != "open") return fail(ErrorCode::kUnavailable, "the receiver refused: " + answer);
  transport::Transport& t = pair.end->transport();
  TANDEM_TRY(t.open_send({.id = id,
                          .receiver = kReceiver,
                          .address = pair.address,
                          .layout = layout_of(messages),
                          .pages = pages,
                          .tail_rows = 0,
                          .deadline = kDeadline}));
  std::vector<std::span<const std::byte>> spans(pages);
  for (uint32_t m = 0; m < messages; ++m) {
    for (uint32_t p = 0; p < pages; ++p) spans[p] = pair.end->page(size_t{m} * pages + p);
    TANDEM_TRY(t.post_pages(id, m, 0, spans));
  }
  TANDEM_TRY(t.post_commit(id, ""));
  TANDEM_ASSIGN(const transport::SendStats stats, pair.end->events().wait());
  return to_seconds(stats.elapsed);
}

Result<double> median_push(Pair& pair, uint32_t messages, uint32_t pages) {
  std::vector<double> times;
  for (int i = 0; i <= kRepeats; ++i) {
    TANDEM_ASSIGN(const double seconds, push(pair, messages, pages));
    if (i > 0) times.push_back(seconds);
  }
  std::ranges::sort(times);
  return times[kRepeats / 2];
}

// Bytes a second of plain copies of `size`, one after the other over the whole pool.
Result<double> plain_copy(int from, int to, size_t size, size_t total) {
  TANDEM_ASSIGN(auto source,
                BenchCard::open({.device = from, .only = {}, .python = {}, .libraries = {}}));
  TANDEM_ASSIGN(const auto a, source.normal_bf16(total / sizeof(Bf16), 1));
  TANDEM_ASSIGN(auto target,
                BenchCard::open({.device = to, .only = {}, .python = {}, .libraries = {}}));
  if (from != to) {
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(from, 0);
    if (enabled != cudaSuccess && enabled != cudaErrorPeerAccessAlreadyEnabled)
      TANDEM_CUDA_TRY(enabled);
    (void)cudaGetLastError();
  }
  TANDEM_ASSIGN(const auto b, target.zeros(total));
  TANDEM_ASSIGN(const double seconds,
                target.seconds(
                    [&](uint32_t) -> Status {
                      for (size_t at = 0; at + size <= total; at += size)
                        TANDEM_CUDA_TRY(cudaMemcpyAsync(b.data() + at, a.data() + at, size,
                                                        cudaMemcpyDefault, target.stream().get()));
                      return {};
                    },
                    1));
  return static_cast<double>(total / size * size) / seconds;
}

Result<Pair> connect(const TransferBenchOptions& options, const std::string& name,
                     std::vector<std::string> words) {
  words.insert(words.end(),
               {name, std::to_string(options.to), std::to_string(options.largest_mib)});
  words.insert(words.end(), options.libraries.begin(), options.libraries.end());
  Pair pair;
  TANDEM_ASSIGN(pair.child, Child::start(std::move(words)));
  TANDEM_ASSIGN(pair.end,
                End::open(name, options.from, options.largest_mib, options.libraries, kSender));
  TANDEM_ASSIGN(const std::string length, pair.child->line());
  TANDEM_ASSIGN(pair.address, pair.child->bytes(std::strtoull(length.c_str(), nullptr, 10)));
  return pair;
}

}  // namespace

Status receive_transfers(const std::string& name, int device, uint32_t largest_mib,
                         const std::vector<std::string>& libraries) {
  TANDEM_ASSIGN(const auto end, End::open(name, device, largest_mib, libraries, kReceiver));
  const std::string address = end->transport().address();
  std::cout << address.size() << "\n" << address << std::flush;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    uint64_t id = 0;
    uint32_t messages = 0;
    uint32_t pages = 0;
    words >> id >> messages >> pages;
    transport::ReceivePlan plan{.id = TransferId{id},
                                .sender = kSender,
                                .layout = layout_of(messages),
                                .pages = pages,
                                .deadline = kDeadline};
    plan.destination = [&end, pages](uint32_t layer, uint32_t page) {
      return end->page(size_t{layer} * pages + page);
    };
    const Status opened = end->transport().open_receive(std::move(plan));
    std::cout << (opened ? "open" : opened.error().to_string()) << std::endl;
  }
  return {};
}

Result<Ceilings> bench_transfers(const TransferBenchOptions& options,
                                 const std::vector<std::string>& program, const RowSink& sink) {
  Ceilings ceilings;
  TANDEM_ASSIGN(const auto versions, cuda::cuda_versions());
  ceilings.driver = cuda::version_text(versions.driver);
  const size_t pool = pool_bytes(options.largest_mib);
  std::vector<size_t> sizes;
  for (size_t s = kPage; s <= size_t{options.largest_mib} << 20; s *= 4) sizes.push_back(s);
  std::vector<double> plain;
  for (const size_t size : sizes) {
    TANDEM_ASSIGN(const double rate,
                  plain_copy(options.from, options.to, size, std::min(pool, 128 * size)));
    plain.push_back(rate);
  }
  for (const std::string& name : options.transports) {
    TANDEM_ASSIGN(auto pair, connect(options, name, program));
    ceilings.device = pair.end->transport().detail();
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto pages = static_cast<uint32_t>(sizes[i] / kPage);
      const auto messages = static_cast<uint32_t>(std::clamp<size_t>(pool / sizes[i], 1, 128));
      TANDEM_ASSIGN(const double s, median_push(pair, messages, pages));
      DeviceRow row;
      row.what = "KV push " + name;
      row.shape = std::to_string(messages) + " x " + std::to_string(sizes[i] >> 10) + " KiB";
      row.seconds = s;
      row.rate = static_cast<double>(messages) * static_cast<double>(sizes[i]) / s * 1e-9;
      row.unit = "GB/s";
      row.ceiling = plain[i] * 1e-9;
      row.against = options.from == options.to ? "copy on card" : "peer copy";
      row.ratio = row.rate / row.ceiling;
      // The target is for two cards; two processes on one take turns.
      if (options.from != options.to && name == "cuda_ipc" && sizes[i] >= size_t{1} << 20)
        row.target = 0.90;
      sink(row);
    }
  }
  return ceilings;
}

}  // namespace tandem::bench

// KV push between two processes with a GPU each (or one GPU for both), by message size, against a
// plain copy between the same memories in the same run. A message is what a layer posts: whole
// pages of 64 KiB, in a row or scattered over the pool.
//
//   multi_gpu_transport_bench [--from GPU] [--to GPU] [--largest MIB] [--processes 1|2]
//                          [--smallest KIB] [--kernel yes|no] [--scattered yes|no]
//                          [--both yes|no] [--variants a,b,...]
#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/hex.h"
#include "common/base/piped_child.h"
#include "common/transport/cuda_ipc/ipc_fabric.h"
#include "common/transport/direct/direct_transport.h"
#include "common/transport/nccl/nccl_fabric.h"
#include "common/transport/ucx/ucx_fabric.h"
#include "kernels/cuda/page_copy.h"

namespace tandem::transport {
namespace {

constexpr Generation kSender{1};
constexpr Generation kReceiver{2};
constexpr int kRepeats = 5;
constexpr size_t kPage = 64u << 10;

kv::KvLayout layout_of(uint32_t messages) { return {messages, 8, 128, kv::KvFormat::kBf16}; }

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::_Exit(1);
}

class Events final : public TransportEvents {
 public:
  void on_received(TransferId, std::string, const ReceiveStats&) override {}
  void on_receive_failed(TransferId, Error error) override { fail(error); }
  void on_sent(TransferId, const SendStats& stats) override { done(stats); }
  void on_send_failed(TransferId, Error error) override { fail(error); }
  SendStats wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !stats_.empty(); });
    const SendStats stats = stats_.back();
    stats_.pop_back();
    return stats;
  }

 private:
  void done(const SendStats& stats) {
    std::lock_guard lock(mutex_);
    stats_.push_back(stats);
    changed_.notify_all();
  }
  static void fail(const Error& error) {
    std::fprintf(stderr, "transfer failed: %s\n", error.to_string().c_str());
    std::_Exit(1);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<SendStats> stats_;
};

// The number that follows a letter in the words of a variant, such as 48 after k in "ipc:24k48".
size_t number_after(const std::string& words, char letter, size_t otherwise) {
  const size_t at = words.find(letter);
  return at == std::string::npos ? otherwise : std::stoull(words.substr(at + 1));
}

Result<std::unique_ptr<Fabric>> make_ucx_fabric(const std::string& extra, const DirectWays& ways,
                                                DeviceCopier::Options copier) {
  UcxFabricOptions ucx{
      .tls = "cuda_copy,cuda_ipc,posix,tcp,self", .ways = ways, .copiers = {}, .memory = nullptr};
  ucx.on_thread = [device = copier.device]() -> Status {
    TANDEM_CUDA_TRY(cudaSetDevice(device));
    return {};
  };
  ucx.frame_bytes = number_after(extra, 'm', ucx.frame_bytes >> 20) << 20;
  ucx.message_bytes = number_after(extra, 'r', ucx.message_bytes >> 20) << 20;
  ucx.slot_bytes = number_after(extra, 's', ucx.slot_bytes >> 20) << 20;
  copier.blocks = static_cast<uint32_t>(number_after(extra, 'k', copier.blocks));
  if (ways.sends) {
    TANDEM_ASSIGN(ucx.copiers.sender, DeviceCopier::create(copier));
  }
  if (ways.receives) {
    TANDEM_ASSIGN(ucx.copiers.receiver, DeviceCopier::create(copier));
  }
  const size_t slots = (ways.sends ? ucx.slot_bytes : 0) + (ways.receives ? ucx.slot_bytes : 0);
  TANDEM_ASSIGN(cuda::DeviceBuffer buffer, cuda::DeviceBuffer::create(slots));
  const auto memory = std::make_shared<cuda::DeviceBuffer>(std::move(buffer));
  ucx.memory = std::shared_ptr<std::byte>(memory, memory->data());
  return create_ucx_fabric(std::move(ucx));
}

// "ipc:BLOCKS[kBLOCKS][sMIB][lMIB][bMIB][fMIB][aBATCHES]": multiprocessors that copy and that
// check, MiB from which on the engine copies a batch, least and most MiB of one, of a frame,
// batches ahead; "nccl[:xLANES][cCTAS][kBLOCKS][gMESSAGES][bMIB][mMIB][rMIB][sMIB]": communicators,
// their multiprocessors and those of the copier, messages and MiB of one launch, MiB of a frame, of
// frames that go as one message, of a first round (f) and of slots;
// "ucx[:kBLOCKS][mMIB][rMIB][fMIB] [sMIB]" likewise, with a UCX that knows CUDA. Both with a thread
// for each way, or with "o" in one.
Result<std::unique_ptr<Fabric>> make_fabric(const std::string& variant, int gpu,
                                            std::span<std::byte> memory, const DirectWays& ways) {
  DeviceCopier::Options copier{.device = gpu};
  const size_t colon = variant.find(':');
  const std::string extra = colon == std::string::npos ? "" : variant.substr(colon + 1);
  if (variant.starts_with("nccl")) {
    NcclOptions nccl{.ways = ways, .copier = DeviceCopier::Options::within(gpu)};
    nccl.most_grouped = static_cast<uint32_t>(number_after(extra, 'g', nccl.most_grouped));
    nccl.lanes = static_cast<uint32_t>(number_after(extra, 'x', nccl.lanes));
    nccl.ctas = static_cast<int>(number_after(extra, 'c', 0));
    nccl.copier.blocks = static_cast<uint32_t>(number_after(extra, 'k', nccl.copier.blocks));
    nccl.group_bytes = number_after(extra, 'b', nccl.group_bytes >> 20) << 20;
    nccl.slot_bytes = number_after(extra, 's', nccl.slot_bytes >> 20) << 20;
    nccl.frame_bytes = number_after(extra, 'm', nccl.frame_bytes >> 20) << 20;
    nccl.message_bytes = number_after(extra, 'r', nccl.message_bytes >> 20) << 20;
    return create_nccl_fabric(nccl);
  }
  if (variant.starts_with("ucx")) {
    return make_ucx_fabric(extra, ways, DeviceCopier::Options::within(gpu));
  }
  IpcOptions ipc{.copier = copier, .memory = {memory}};
  if (!extra.empty()) {
    ipc.copier.blocks = static_cast<uint32_t>(std::stoul(extra));
    ipc.copier.ahead = static_cast<uint32_t>(number_after(extra, 'a', copier.ahead));
    ipc.copier.batch_bytes = number_after(extra, 'b', copier.batch_bytes >> 20) << 20;
    ipc.copier.check_blocks = static_cast<uint32_t>(number_after(extra, 'k', copier.check_blocks));
    ipc.copier.least_batch_bytes = number_after(extra, 'l', copier.least_batch_bytes >> 20) << 20;
    ipc.copier.kernel_bytes = number_after(extra, 's', copier.kernel_bytes >> 20) << 20;
    ipc.frame_bytes = number_after(extra, 'f', ipc.frame_bytes >> 20) << 20;
  }
  ipc.ways = ways;
  return create_ipc_fabric(std::move(ipc));
}

struct Side {
  Side(const std::string& variant, int gpu, size_t bytes, Generation self) {
    must(cudaSetDevice(gpu), "cudaSetDevice");
    void* data = nullptr;
    must(cudaMalloc(&data, bytes), "cudaMalloc");
    must(cudaMemset(data, static_cast<int>(self.value), bytes), "cudaMemset");
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    memory = {static_cast<std::byte*>(data), bytes};
    auto opened = open(variant, gpu,
                       {.self = self,
                        .clock = clock,
                        .events = events,
                        .limits = {.max_queued_frames = 1u << 20}});
    if (!opened) {
      std::fprintf(stderr, "%s\n", opened.error().to_string().c_str());
      std::_Exit(1);
    }
    transport = std::move(*opened);
  }
  Result<std::unique_ptr<Transport>> open(const std::string& variant, int gpu,
                                          const TransportDeps& deps) {
    const auto warn = [](const std::string& w) { std::cerr << w << "\n"; };
    if (variant.find('o') != std::string::npos) {
      TANDEM_ASSIGN(auto fabric, make_fabric(variant, gpu, memory, {}));
      TANDEM_ASSIGN(std::unique_ptr<Transport> one,
                    create_direct_transport(std::move(fabric), deps, warn));
      return one;
    }
    return create_two_way_transport(
        [&](const DirectWays& ways) { return make_fabric(variant, gpu, memory, ways); }, deps,
        warn);
  }
  // Where page i of a transfer lies.
  std::byte* page(size_t i, bool scattered, uint64_t seed) {
    if (scattered && order.empty()) {
      order.resize(memory.size() / kPage);
      std::iota(order.begin(), order.end(), 0u);
      std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    }
    return memory.data() + kPage * (scattered ? order[i] : i);
  }
  SteadyClock clock;
  Events events;
  std::span<std::byte> memory;
  std::vector<uint32_t> order;
  std::unique_ptr<Transport> transport;
};

ReceivePlan plan_of(Side& side, TransferId id, uint32_t messages, uint32_t pages, bool scattered,
                    Generation sender) {
  ReceivePlan plan{.id = id,
                   .sender = sender,
                   .layout = layout_of(messages),
                   .pages = pages,
                   .deadline = std::chrono::minutes(1)};
  plan.destination = [&side, pages, scattered](uint32_t layer, uint32_t page) {
    return std::span(side.page(size_t{layer} * pages + page, scattered, 2), kPage);
  };
  return plan;
}

// Posts all messages of a transfer and its commit.
void post_all(Side& side, TransferId id, Generation receiver, const std::string& address,
              uint32_t messages, uint32_t pages, bool scattered, TimePoint start = {}) {
  Transport& t = *side.transport;
  Status status = t.open_send({.id = id,
                               .receiver = receiver,
                               .address = address,
                               .layout = layout_of(messages),
                               .pages = pages,
                               .tail_rows = 0,
                               .deadline = std::chrono::minutes(1)});
  std::vector<std::span<const std::byte>> spans(pages);
  while (side.clock.now() < start) {
  }
  for (uint32_t m = 0; m < messages && status; ++m) {
    for (uint32_t p = 0; p < pages; ++p) {
      spans[p] = {side.page(size_t{m} * pages + p, scattered, 1), kPage};
    }
    status = t.post_pages(id, m, 0, spans);
  }
  if (status) status = t.post_commit(id, "");
  if (status) return;
  std::fprintf(stderr, "%s\n", status.error().to_string().c_str());
  std::_Exit(1);
}

// Child: "address HEX" first, then answers "open ID MESSAGES PAGES SCATTERED" and "push ..."
// likewise until its input ends.
int receive(const std::string& variant, int gpu, size_t bytes) {
  Side side(variant, gpu, bytes, kReceiver);
  const std::string address = side.transport->address();
  std::printf("%zu\n", address.size());
  std::fwrite(address.data(), 1, address.size(), stdout);
  std::fflush(stdout);
  std::string line;
  std::string peer;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "address") {
      std::string hex;
      words >> hex;
      peer = from_hex(hex).value();
      continue;
    }
    uint64_t id = 0;
    uint32_t messages = 0;
    uint32_t pages = 0;
    bool scattered = false;
    Duration::rep start = 0;
    words >> id >> messages >> pages >> scattered >> start;
    if (verb == "push") {
      post_all(side, TransferId{id}, kSender, peer, messages, pages, scattered, {Duration(start)});
      const SendStats stats = side.events.wait();
      std::printf(
          "%lld %lld\n",
          static_cast<long long>((stats.last_completion - stats.elapsed).since_start.count()),
          static_cast<long long>(stats.last_completion.since_start.count()));
    } else {
      const Status opened = side.transport->open_receive(
          plan_of(side, TransferId{id}, messages, pages, scattered, kSender));
      std::printf(opened ? "open\n" : "refused\n");
    }
    std::fflush(stdout);
  }
  return 0;
}

struct Child {
  pid_t pid = 0;
  FILE* in = nullptr;
  FILE* out = nullptr;
  std::string line() const {
    char text[256] = {};
    return std::fgets(text, sizeof(text), out) != nullptr ? text : "";
  }
};

Child spawn(std::vector<std::string> words) {
  auto started = start_piped_child(std::move(words));
  if (!started) std::_Exit(1);
  return {started->pid, fdopen(started->in.release(), "w"), fdopen(started->out.release(), "r")};
}

// The receiver is a process of its own, or, without one, a transport of this process: processes
// that share a GPU take turns on it, which hides what a transport costs.
struct Pair {
  Pair(const char* self, const std::string& variant, int from, int to, size_t bytes,
       bool one_process)
      : side(variant, from, bytes, kSender) {
    if (one_process) {
      receiver = std::make_unique<Side>(variant, to, bytes, kReceiver);
      address = receiver->transport->address();
      return;
    }
    child = spawn({self, "--receive", variant, std::to_string(to), std::to_string(bytes)});
    address.resize(std::strtoull(child.line().c_str(), nullptr, 10));
    if (std::fread(address.data(), 1, address.size(), child.out) != address.size()) std::_Exit(1);
    std::fprintf(child.in, "address %s\n", to_hex(side.transport->address()).c_str());
  }
  ~Pair() {
    if (child.in != nullptr) {
      std::fclose(child.in);
      waitpid(child.pid, nullptr, 0);
    }
    side.transport.reset();
    cudaFree(side.memory.data());
    if (receiver == nullptr) return;
    receiver->transport.reset();
    cudaFree(receiver->memory.data());
  }
  void open_receive(TransferId id, uint32_t messages, uint32_t pages, bool scattered) {
    if (receiver != nullptr) {
      if (!receiver->transport->open_receive(
              plan_of(*receiver, id, messages, pages, scattered, kSender))) {
        std::_Exit(1);
      }
      return;
    }
    say("open", id, messages, pages, scattered);
    if (child.line() != "open\n") std::_Exit(1);
  }
  void say(const char* verb, TransferId id, uint32_t messages, uint32_t pages, bool scattered,
           TimePoint start = {}) {
    std::fprintf(child.in, "%s %llu %u %u %d %lld\n", verb,
                 static_cast<unsigned long long>(id.value), messages, pages, scattered ? 1 : 0,
                 static_cast<long long>(start.since_start.count()));
    std::fflush(child.in);
  }
  // Seconds from the first post to the last acknowledgement.
  double push(uint32_t messages, uint32_t pages, bool scattered) {
    const TransferId id{++last};
    open_receive(id, messages, pages, scattered);
    post_all(side, id, kReceiver, address, messages, pages, scattered);
    const double seconds = to_seconds(side.events.wait().elapsed);
    return seconds;
  }
  // Seconds from the first post to the last acknowledgement of two processes that push to each
  // other and begin together.
  double push_both(uint32_t messages, uint32_t pages, bool scattered) {
    const TransferId there{++last};
    const TransferId back{++last};
    open_receive(there, messages, pages, scattered);
    if (!side.transport->open_receive(plan_of(side, back, messages, pages, scattered, kReceiver))) {
      std::_Exit(1);
    }
    const TimePoint start = side.clock.now() + std::chrono::microseconds(150);
    say("push", back, messages, pages, scattered, start);
    post_all(side, there, kReceiver, address, messages, pages, scattered, start);
    const SendStats here = side.events.wait();
    long long first = 0;
    long long ended = 0;
    if (std::sscanf(child.line().c_str(), "%lld %lld", &first, &ended) != 2) std::_Exit(1);
    return to_seconds(std::max(here.last_completion, TimePoint{Duration(ended)}) -
                      std::min(here.last_completion - here.elapsed, TimePoint{Duration(first)}));
  }
  double median(uint32_t messages, uint32_t pages, bool scattered, bool both = false) {
    std::vector<double> times;
    for (int i = 0; i <= kRepeats; ++i) {
      const double seconds =
          both ? push_both(messages, pages, scattered) : push(messages, pages, scattered);
      if (i > 0) times.push_back(seconds);
    }
    std::ranges::sort(times);
    return times[kRepeats / 2];
  }
  Child child;
  Side side;
  std::unique_ptr<Side> receiver;
  std::string address;
  uint64_t last = 0;
};

// Milliseconds that the current device takes for what `enqueue` puts into a stream: the median of
// kRepeats after one that does not count.
template <typename Enqueue>
float median_ms(Enqueue&& enqueue) {
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  must(cudaEventCreate(&start), "event");
  must(cudaEventCreate(&stop), "event");
  std::vector<float> times;
  for (int i = 0; i <= kRepeats; ++i) {
    must(cudaEventRecord(start, stream), "record");
    enqueue(stream);
    must(cudaEventRecord(stop, stream), "record");
    must(cudaEventSynchronize(stop), "wait");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, start, stop), "time");
    if (i > 0) times.push_back(ms);
  }
  std::ranges::sort(times);
  return times[kRepeats / 2];
}

// GB/s of copies of `size` enqueued one after the other, the destination's GPU pulling.
double plain_copy(int from, int to, size_t size, size_t total) {
  void* a = nullptr;
  void* b = nullptr;
  must(cudaSetDevice(from), "cudaSetDevice");
  must(cudaMalloc(&a, total), "cudaMalloc");
  must(cudaMemset(a, 1, total), "cudaMemset");
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  must(cudaSetDevice(to), "cudaSetDevice");
  if (from != to) (void)cudaDeviceEnablePeerAccess(from, 0);
  (void)cudaGetLastError();
  must(cudaMalloc(&b, total), "cudaMalloc");
  const float ms = median_ms([&](cudaStream_t stream) {
    for (size_t at = 0; at < total; at += size) {
      must(cudaMemcpyAsync(static_cast<char*>(b) + at, static_cast<char*>(a) + at, size,
                           cudaMemcpyDefault, stream),
           "copy");
    }
  });
  must(cudaFree(a), "free");
  must(cudaFree(b), "free");
  return static_cast<double>(total) / ms / 1e6;
}

// GB/s of the copy kernel alone, without offers or answers: checking pages where they lie (what a
// sender does), or pulling them from the other GPU and checking on the way (a receiver), 32 MiB a
// launch.
// Or pushing them into the other GPU's memory, which no transport does: pages are a receiver's own.
enum class Alone { kCheck, kPull, kPush };
double kernel_alone(int from, int to, uint32_t blocks, Alone way) {
  const bool pull = way == Alone::kPull;
  constexpr size_t kTotal = 256u << 20;
  constexpr uint32_t kPieces = cuda::kMostPageCopyPieces;
  void* a = nullptr;
  void* b = nullptr;
  void* sums = nullptr;
  must(cudaSetDevice(from), "cudaSetDevice");
  must(cudaMalloc(&a, kTotal), "cudaMalloc");
  must(cudaMemset(a, 1, kTotal), "cudaMemset");
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const int at_work = pull ? to : from;
  must(cudaSetDevice(at_work), "cudaSetDevice");
  if (from != to) (void)cudaDeviceEnablePeerAccess(pull ? from : to, 0);
  (void)cudaGetLastError();
  must(cudaSetDevice(to), "cudaSetDevice");
  must(cudaMalloc(&b, kTotal), "cudaMalloc");
  must(cudaSetDevice(at_work), "cudaSetDevice");
  must(cudaMallocHost(&sums, kTotal / kPage * sizeof(uint64_t)), "cudaMallocHost");
  const float ms = median_ms([&](cudaStream_t stream) {
    for (size_t first = 0; first < kTotal / kPage; first += kPieces) {
      cuda::PageCopy task;
      task.bytes = kPage;
      task.count = kPieces;
      task.sums = static_cast<uint64_t*>(sums) + first;
      for (uint32_t p = 0; p < kPieces; ++p) {
        const size_t at = (first + p) * kPage;
        task.pieces[p] = {static_cast<std::byte*>(a) + at,
                          way == Alone::kCheck ? nullptr : static_cast<std::byte*>(b) + at};
      }
      must(cuda::page_copy(task, blocks, stream), "page_copy");
    }
  });
  must(cudaFree(a), "free");
  must(cudaFree(b), "free");
  must(cudaFreeHost(sums), "free");
  return static_cast<double>(kTotal) / ms / 1e6;
}

void report_kernel(int from, int to) {
  std::printf("%-12s", "kernel alone");
  const uint32_t blocks[] = {8, 16, 24, 32, 48, 64};
  for (const uint32_t n : blocks) std::printf(" %7u SM", n);
  const std::pair<Alone, const char*> ways[] = {
      {Alone::kCheck, "  check"}, {Alone::kPull, "  pull"}, {Alone::kPush, "  push"}};
  for (const auto& [way, name] : ways) {
    std::printf("\n%-12s", name);
    for (const uint32_t n : blocks) std::printf(" %9.1f", kernel_alone(from, to, n, way));
  }
  std::printf("\n");
  std::fflush(stdout);
}

struct Options {
  int from = 0;
  int to = 0;
  size_t largest = 256;  // MiB
  bool one_process = false;
  size_t smallest = 64;  // KiB
  bool kernel = true;
  bool scattered = true;
  bool both = true;
  std::vector<std::string> variants = {"ipc",    "ipc:8",     "ipc:16",
                                       "ipc:48", "ipc:24k24", "ipc:24s0b32"};
};

// Many messages, many both ways at once (each way's rate), and how long one takes alone.
void report_variant(Pair& pair, const std::string& variant, const std::vector<size_t>& sizes,
                    size_t most, bool scattered, bool both_ways) {
  std::string both;
  std::string alone;
  std::printf("%-12s", (variant + (scattered ? " s" : "")).c_str());
  for (const size_t s : sizes) {
    const auto pages = static_cast<uint32_t>(s / kPage);
    const auto messages = static_cast<uint32_t>(std::clamp<size_t>(most / s, 1, 128));
    const double bytes = static_cast<double>(messages) * static_cast<double>(s);
    char text[32];
    std::printf(" %9.1f", bytes / pair.median(messages, pages, scattered) / 1e9);
    if (both_ways && pair.receiver == nullptr) {
      std::snprintf(text, sizeof(text), " %9.1f",
                    bytes / pair.median(messages, pages, scattered, true) / 1e9);
      both += text;
    }
    std::snprintf(text, sizeof(text), " %8.0fus", pair.median(1, pages, scattered) * 1e6);
    alone += text;
  }
  std::printf("\n%-12s%s\n%-12s%s\n", "  both ways", both.c_str(), "  one alone", alone.c_str());
  std::fflush(stdout);
}

double free_mib(int gpu) {
  size_t free = 0;
  size_t total = 0;
  must(cudaSetDevice(gpu), "cudaSetDevice");
  must(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<double>(free) / (1 << 20);
}

int run(const char* self, const Options& options) {
  const size_t most = std::max<size_t>(options.largest, 256) << 20;
  std::vector<size_t> sizes;
  for (size_t s = options.smallest << 10; s <= options.largest << 20; s *= 4) sizes.push_back(s);
  std::map<size_t, double> plain;
  std::printf("%-12s", "GB/s");
  for (const size_t s : sizes) std::printf(" %8zuK", s >> 10);
  std::printf("\n%-12s", "plain copy");
  for (const size_t s : sizes) {
    const size_t total = std::min(most, std::max(s, s * 128));
    plain[s] = plain_copy(options.from, options.to, s, total);
    std::printf(" %9.1f", plain[s]);
  }
  std::printf("\n");
  if (options.kernel) report_kernel(options.from, options.to);
  for (const std::string& variant : options.variants) {
    const double before[] = {free_mib(options.from), free_mib(options.to)};
    Pair pair(self, variant, options.from, options.to, most, options.one_process);
    report_variant(pair, variant, sizes, most, false, options.both);
    if (options.scattered) report_variant(pair, variant, sizes, most, true, options.both);
    std::printf("  %s; the cards have %.0f and %.0f MiB less\n",
                pair.side.transport->detail().c_str(), before[0] - free_mib(options.from),
                before[1] - free_mib(options.to));
  }
  return 0;
}

}  // namespace
}  // namespace tandem::transport

int main(int argc, char** argv) {
  using namespace tandem::transport;
  if (argc == 5 && std::string_view(argv[1]) == "--receive") {
    return receive(argv[2], std::atoi(argv[3]), std::strtoull(argv[4], nullptr, 10));
  }
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (i + 1 == argc) {
      std::fprintf(stderr, "usage: see the top of transport_bench.cc\n");
      return 2;
    }
    const char* value = argv[++i];
    if (word == "--from") options.from = std::atoi(value);
    if (word == "--to") options.to = std::atoi(value);
    if (word == "--largest") options.largest = std::strtoull(value, nullptr, 10);
    if (word == "--smallest") options.smallest = std::strtoull(value, nullptr, 10);
    if (word == "--scattered") options.scattered = std::string_view(value) != "no";
    if (word == "--both") options.both = std::string_view(value) != "no";
    if (word == "--kernel") options.kernel = std::string_view(value) != "no";
    if (word == "--processes") options.one_process = std::atoi(value) == 1;
    if (word == "--variants") {
      options.variants.clear();
      std::istringstream list(value);
      for (std::string v; std::getline(list, v, ',');) options.variants.push_back(v);
    }
  }
  return run(argv[0], options);
}

// What the two threads of a direct transport (cuda_ipc, nccl) cost for each offer, without a card:
// the copier copies nothing and is done at once, so that all time is that of offers, checks and
// answers.
//
//   direct_bench [FRAME_KIB [PAGE_KIB [TRANSFERS]]]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/transport/direct/direct_transport.h"
#include "common/transport/direct/wire_format.h"

namespace tandem::transport {
namespace {

constexpr Generation kSender{1};
constexpr Generation kReceiver{2};
constexpr size_t kPool = 512u << 20;

class NoCopier final : public PageCopier {
 public:
  Ticket add(std::span<const Piece> pieces) override {
    std::lock_guard lock(mutex_);
    results_[++last_].assign(pieces.size(), 0);
    return last_;
  }
  void flush() override {}
  Result<std::optional<std::vector<uint64_t>>> taken(Ticket ticket) override {
    std::lock_guard lock(mutex_);
    const auto it = results_.find(ticket);
    if (it == results_.end()) return std::nullopt;
    std::optional<std::vector<uint64_t>> sums = std::move(it->second);
    results_.erase(it);
    return sums;
  }
  bool busy() const override { return false; }
  void drain() override {}

 private:
  std::mutex mutex_;
  std::unordered_map<Ticket, std::vector<uint64_t>> results_;
  Ticket last_ = 0;
};

// Notes as cuda_ipc writes them: a region and an offset for each page.
class NoLink final : public Link {
 public:
  std::string detail() const override { return "nothing moves"; }
  Result<bool> ready() override { return true; }
  bool busy() const override { return false; }
  Result<std::optional<Staged>> stage(std::span<Piece> pieces) override {
    FieldWriter fields;
    for (const Piece& p : pieces) fields.put(uint8_t{0}).put(reinterpret_cast<uint64_t>(p.from));
    return Staged{0, fields.take()};
  }
  Status launch(uint64_t) override { return {}; }
  void abandon(uint64_t) override {}
  bool sums_follow() const override { return true; }
  Result<uint64_t> accept(std::string_view note, std::span<Piece> pieces) override {
    FieldReader fields(note);
    for (Piece& p : pieces) {
      (void)fields.get<uint8_t>();
      p.from = reinterpret_cast<const std::byte*>(fields.get<uint64_t>());
    }
    if (!fields.complete()) return fail(ErrorCode::kCorruptData, "a note is too long");
    return 0;
  }
  Result<bool> grant(uint64_t, std::span<Piece>) override { return true; }
  bool needs_go() const override { return false; }
  Result<bool> arrived(uint64_t) override { return true; }
  void release(uint64_t) override {}
};

class NoFabric final : public Fabric {
 public:
  explicit NoFabric(size_t frame_bytes) : frame_bytes_(frame_bytes) {}
  std::string_view name() const override { return "nothing"; }
  std::string version() const override { return "1"; }
  PageCopier& copier(bool) override { return copier_; }
  size_t frame_bytes() const override { return frame_bytes_; }
  Status start() override { return {}; }
  Result<std::string> hello(bool) override { return std::string("x"); }
  Result<std::unique_ptr<Link>> open(bool, const std::string&, const std::string&) override {
    return std::make_unique<NoLink>();
  }

 private:
  const size_t frame_bytes_;
  NoCopier copier_;
};

class Events final : public TransportEvents {
 public:
  void on_received(TransferId, std::string, const ReceiveStats&) override {}
  void on_receive_failed(TransferId, Error error) override { give_up(error); }
  void on_sent(TransferId, const SendStats& stats) override {
    std::lock_guard lock(mutex_);
    stats_ = stats;
    changed_.notify_all();
  }
  void on_send_failed(TransferId, Error error) override { give_up(error); }
  SendStats wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stats_.has_value(); });
    return *std::exchange(stats_, std::nullopt);
  }

 private:
  static void give_up(const Error& error) {
    std::fprintf(stderr, "direct_bench: %s\n", error.to_string().c_str());
    std::_Exit(1);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<SendStats> stats_;
};

std::unique_ptr<Transport> open(size_t frame_bytes, Generation self, const Clock& clock,
                                Events& events) {
  auto transport = create_direct_transport(
      std::make_unique<NoFabric>(frame_bytes),
      {.self = self, .clock = clock, .events = events, .limits = {.max_queued_frames = 1u << 20}});
  if (transport) return std::move(*transport);
  std::fprintf(stderr, "direct_bench: %s\n", transport.error().to_string().c_str());
  std::_Exit(1);
}

// Seconds from the first post to the last acknowledgement of the whole pool, a layer of 64 MiB
// each.
double push(Transport& from, Transport& to, Events& events, TransferId id, size_t page) {
  constexpr uint32_t kLayers = 8;
  const auto pages = static_cast<uint32_t>(kPool / kLayers / page);
  const kv::KvLayout layout{kLayers, static_cast<uint32_t>(page >> 13), 128, kv::KvFormat::kBf16};
  std::byte* const base = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);  // never touched
  ReceivePlan plan{.id = id,
                   .sender = kSender,
                   .layout = layout,
                   .pages = pages,
                   .deadline = std::chrono::minutes(1)};
  plan.destination = [=](uint32_t layer, uint32_t i) {
    return std::span(base + (size_t{layer} * pages + i) * page, page);
  };
  Status status = to.open_receive(std::move(plan));
  if (status) {
    status = from.open_send({.id = id,
                             .receiver = kReceiver,
                             .address = to.address(),
                             .layout = layout,
                             .pages = pages,
                             .tail_rows = 0,
                             .deadline = std::chrono::minutes(1)});
  }
  std::vector<std::span<const std::byte>> spans(pages);
  for (uint32_t layer = 0; layer < kLayers && status; ++layer) {
    for (uint32_t i = 0; i < pages; ++i)
      spans[i] = {base + (size_t{layer} * pages + i) * page, page};
    status = from.post_pages(id, layer, 0, spans);
  }
  if (status) status = from.post_commit(id, "");
  if (!status) {
    std::fprintf(stderr, "direct_bench: %s\n", status.error().to_string().c_str());
    std::_Exit(1);
  }
  return to_seconds(events.wait().elapsed);
}

int run(size_t frame, size_t page, int transfers) {
  const SteadyClock clock;
  Events sent;
  Events received;
  const auto from = open(frame, kSender, clock, sent);
  const auto to = open(frame, kReceiver, clock, received);
  std::vector<double> times;
  for (int i = 0; i <= transfers; ++i) {
    const double seconds = push(*from, *to, sent, TransferId{static_cast<uint64_t>(i) + 1}, page);
    if (i > 0) times.push_back(seconds);
  }
  std::ranges::sort(times);
  const double median = times[times.size() / 2];
  const auto offers = static_cast<double>(kPool / std::min(frame, 256 * page));
  std::printf(
      "%zu KiB an offer, pages of %zu KiB: %.2f us an offer, %.1f ns a page, bound %.0f GB/s\n",
      frame >> 10, page >> 10, median / offers * 1e6,
      median / static_cast<double>(kPool / page) * 1e9, static_cast<double>(kPool) / median / 1e9);
  return 0;
}

}  // namespace
}  // namespace tandem::transport

int main(int argc, char** argv) {
  size_t frame_kib = 8192;
  size_t page_kib = 64;
  int transfers = 9;
  CLI::App app("What the threads of a direct transport cost for each offer, the bytes left out");
  app.add_option("frame_kib", frame_kib, "KiB an offer")->check(CLI::Range(1, 1 << 19));
  app.add_option("page_kib", page_kib, "KiB a page")->check(CLI::Range(1, 1 << 19));
  app.add_option("transfers", transfers, "how many; their median is printed")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return tandem::transport::run(frame_kib << 10, page_kib << 10, transfers);
}

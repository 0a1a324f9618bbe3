#include "common/engine/cuda/bench/transfer_end.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "common/base/piped_child.h"
#include "common/engine/cuda/bench/bench_card.h"
#include "common/engine/cuda/page_memory.h"
#include "common/transport/device_transports.h"
#include "common/transport/ucx/ucx_transport.h"

namespace tandem::bench {
namespace {

constexpr size_t kLeastPool = size_t{256} << 20;  // so that small messages do not stay in the cache
constexpr Duration kDeadline = std::chrono::minutes(1);

// `layers` messages of any number of pages of kTransferPage bytes.
kv::KvLayout layout_of(uint32_t layers) { return {layers, 8, 128, kv::KvFormat::kBf16}; }

Result<std::unique_ptr<kv::PageMemory>> memory_of(const TransferPlace& place) {
  const size_t bytes = 2 * pool_bytes(place.largest_mib);
  if (place.device < 0) {
    TANDEM_ASSIGN(auto memory,
                  kv::create_host_page_memory(layout_of(1),
                                              static_cast<uint32_t>(bytes / kTransferPage), 0, {}));
    std::fill_n(memory->pages(), bytes, std::byte{1});  // in place before anything is timed
    return memory;
  }
  TANDEM_ASSIGN(
      auto card,
      BenchCard::open({.device = place.device, .only = {}, .python = {}, .libraries = {}}));
  TANDEM_ASSIGN(auto pages, card.normal_bf16(bytes / sizeof(Bf16), 1));
  return engine::create_cuda_page_memory(place.device, std::move(pages), {});
}

Result<std::unique_ptr<transport::Transport>> transport_of(
    const TransferPlace& place, const std::vector<std::string>& libraries,
    const transport::TransportDeps& deps) {
  const auto warn = [](const std::string& text) { std::cerr << "transport: " << text << "\n"; };
  const transport::DeviceTransportOptions options{
      .device = std::max(place.device, 0), .libraries = libraries, .on_warning = warn};
  if (place.transport == "ucx" && place.device >= 0 &&
      place.ucx_tls.find("cuda") != std::string::npos) {
    return transport::create_ucx_device_transport(options, place.ucx_tls, deps);
  }
  if (place.transport == "ucx")
    return transport::create_ucx_transport({.tls = place.ucx_tls, .on_warning = warn}, deps);
  if (place.transport == "nccl") return transport::create_nccl_transport(options, deps);
  if (place.transport == "cuda_ipc") return transport::create_cuda_ipc_transport(options, deps);
  return fail(ErrorCode::kInvalidArgument,
              "transport \"" + place.transport + "\" is unknown; use cuda_ipc, nccl or ucx",
              "transport");
}

}  // namespace

size_t pool_bytes(uint32_t largest_mib) { return std::max(kLeastPool, size_t{largest_mib} << 20); }

void TransferEnd::Events::on_receive_failed(TransferId, Error error) {
  std::cerr << "receive: " << error.to_string() << "\n";
}

Result<transport::SendStats> TransferEnd::Events::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_.has_value(); });
  return *std::exchange(ended_, std::nullopt);
}

void TransferEnd::Events::end(Result<transport::SendStats> outcome) {
  const std::lock_guard lock(mutex_);
  ended_ = std::move(outcome);
  changed_.notify_all();
}

Result<std::unique_ptr<TransferEnd>> TransferEnd::open(const TransferPlace& place,
                                                       const std::vector<std::string>& libraries,
                                                       Generation self, Generation peer) {
  std::unique_ptr<TransferEnd> end(new TransferEnd(self, peer));
  end->pool_pages_ = pool_bytes(place.largest_mib) / kTransferPage;
  TANDEM_ASSIGN(end->memory_, memory_of(place));
  const transport::TransportDeps deps{.self = self,
                                      .clock = end->clock_,
                                      .events = end->events_,
                                      .limits = {.max_queued_frames = size_t{1} << 20},
                                      .memory = end->memory_.get()};
  TANDEM_ASSIGN(end->transport_, transport_of(place, libraries, deps));
  return end;
}

Status TransferEnd::expect(TransferId id, Shape shape) {
  transport::ReceivePlan plan{.id = id,
                              .sender = peer_,
                              .layout = layout_of(shape.messages),
                              .pages = shape.pages,
                              .deadline = kDeadline};
  plan.destination = [this, shape](uint32_t layer, uint32_t i) {
    return page(pool_pages_ + size_t{layer} * shape.pages + i);
  };
  return transport_->open_receive(std::move(plan));
}

Result<TransferEnd::Span> TransferEnd::push(TransferId id, Shape shape, const std::string& to,
                                            TimePoint start) {
  transport::Transport& t = *transport_;
  TANDEM_TRY(t.open_send({.id = id,
                          .receiver = peer_,
                          .address = to,
                          .layout = layout_of(shape.messages),
                          .pages = shape.pages,
                          .tail_rows = 0,
                          .deadline = kDeadline}));
  std::vector<std::span<const std::byte>> spans(shape.pages);
  while (clock_.now() < start) {
  }
  for (uint32_t m = 0; m < shape.messages; ++m) {
    for (uint32_t p = 0; p < shape.pages; ++p) spans[p] = page(size_t{m} * shape.pages + p);
    TANDEM_TRY(t.post_pages(id, m, 0, spans));
  }
  TANDEM_TRY(t.post_commit(id, ""));
  TANDEM_ASSIGN(const transport::SendStats stats, events_.wait());
  return Span{stats.last_completion - stats.elapsed, stats.last_completion};
}

Result<std::unique_ptr<LineProcess>> LineProcess::start(
    std::vector<std::string> words, const std::vector<std::string>& environment) {
  TANDEM_ASSIGN(PipedChild child, start_piped_child(std::move(words), environment));
  return std::unique_ptr<LineProcess>(new LineProcess(child.pid, fdopen(child.in.release(), "w"),
                                                      fdopen(child.out.release(), "r")));
}

LineProcess::~LineProcess() {
  std::fclose(in_);
  std::fclose(out_);
  waitpid(pid_, nullptr, 0);
}

void LineProcess::say(const std::string& line) {
  std::fputs((line + "\n").c_str(), in_);
  std::fflush(in_);
}

Result<std::string> LineProcess::line() {
  std::string text;
  for (int c = std::fgetc(out_); c != '\n'; c = std::fgetc(out_)) {
    if (c == EOF) return fail(ErrorCode::kUnavailable, "the other process has ended");
    text += static_cast<char>(c);
  }
  return text;
}

std::string LineProcess::rest() {
  std::string text;
  for (int c = std::fgetc(out_); c != EOF; c = std::fgetc(out_)) text += static_cast<char>(c);
  return text;
}

void LineProcess::terminate() { kill(pid_, SIGTERM); }

}  // namespace tandem::bench

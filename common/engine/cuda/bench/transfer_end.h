#pragma once

#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/engine/cuda/bench/transfer_bench.h"
#include "common/kv/page_memory.h"
#include "common/transport/transport.h"

namespace tandem::bench {

inline constexpr size_t kTransferPage = size_t{64} << 10;

// Bytes that a bench of messages up to this size moves each way, at least what no cache holds.
[[nodiscard]] size_t pool_bytes(uint32_t largest_mib);

// One process of a transfer bench: memory of a card or of the host and a transport over it. The
// first half of the memory is sent from, the second received into.
class TransferEnd {
 public:
  // What a push is: `messages` posts of `pages` pages.
  struct Shape {
    uint32_t messages = 0;
    uint32_t pages = 0;
    [[nodiscard]] double bytes() const {
      return static_cast<double>(messages) * pages * static_cast<double>(kTransferPage);
    }
  };
  [[nodiscard]] static Result<std::unique_ptr<TransferEnd>> open(
      const TransferPlace& place, const std::vector<std::string>& libraries, Generation self,
      Generation peer);

  [[nodiscard]] std::string address() const { return transport_->address(); }
  [[nodiscard]] std::string detail() const { return transport_->detail(); }
  [[nodiscard]] Status expect(TransferId id, Shape shape);
  // A push, posted once the clock, which processes of a host share, shows `start`.
  struct Span {
    TimePoint first_post;
    TimePoint last_acknowledgement;
    [[nodiscard]] double seconds() const { return to_seconds(last_acknowledgement - first_post); }
  };
  [[nodiscard]] Result<Span> push(TransferId id, Shape shape, const std::string& to,
                                  TimePoint start = {});

 private:
  class Events final : public transport::TransportEvents {
   public:
    void on_received(TransferId, std::string, const transport::ReceiveStats&) override {}
    void on_receive_failed(TransferId, Error error) override;
    void on_sent(TransferId, const transport::SendStats& stats) override { end(stats); }
    void on_send_failed(TransferId, Error error) override { end(fail(std::move(error))); }
    [[nodiscard]] Result<transport::SendStats> wait();

   private:
    void end(Result<transport::SendStats> outcome);
    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<Result<transport::SendStats>> ended_;
  };
  TransferEnd(Generation self, Generation peer) : self_(self), peer_(peer) {}
  [[nodiscard]] std::span<std::byte> page(size_t i) const {
    return {memory_->pages() + i * kTransferPage, kTransferPage};
  }

  const Generation self_;
  const Generation peer_;
  size_t pool_pages_ = 0;  // each way
  SteadyClock clock_;
  Events events_;
  std::unique_ptr<kv::PageMemory> memory_;
  std::unique_ptr<transport::Transport> transport_;
};

// A process that was started, spoken to in lines.
class LineProcess {
 public:
  // `environment`: NAME=VALUE, added to this process's.
  [[nodiscard]] static Result<std::unique_ptr<LineProcess>> start(
      std::vector<std::string> words, const std::vector<std::string>& environment = {});
  ~LineProcess();  // closes its input and waits for its end
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  void say(const std::string& line);
  [[nodiscard]] Result<std::string> line();
  [[nodiscard]] std::string rest();  // until it closes its output
  void terminate();

 private:
  LineProcess(pid_t pid, FILE* in, FILE* out) : pid_(pid), in_(in), out_(out) {}
  pid_t pid_;
  FILE* in_;
  FILE* out_;
};

}  // namespace tandem::bench

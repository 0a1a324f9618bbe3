#include "common/engine/cuda/page_memory.h"

#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "common/cuda/stream.h"

namespace tandem::engine {
namespace {

using cuda::DeviceScope;

enum class Direction : uint8_t { kToHost, kFromHost };

class CudaPageMemory final : public kv::PageMemory {
 public:
  CudaPageMemory(int device, cuda::DeviceBuffer pages, cuda::DeviceBuffer tails,
                 cuda::Stream stream)
      : device_(device),
        name_("cuda:" + std::to_string(device)),
        page_buffer_(std::move(pages)),
        tail_buffer_(std::move(tails)),
        stream_(std::move(stream)) {
    pages_ = page_buffer_.data();
    tails_ = tail_buffer_.data();
    bytes_ = page_buffer_.bytes() + tail_buffer_.bytes();
    tail_bytes_ = tail_buffer_.bytes();
  }
  ~CudaPageMemory() override {
    const DeviceScope scope(device_);
    (void)stream_.synchronize();  // copies that nobody waited for still use the pages
  }

  std::string_view device() const override { return name_; }

  Status to_host(std::span<const Piece> pieces) override {
    return copy_now(pieces, Direction::kToHost);
  }
  Status from_host(std::span<const Piece> pieces) override {
    return copy_now(pieces, Direction::kFromHost);
  }
  Result<Ticket> start_to_host(std::span<const Piece> pieces) override {
    return start(pieces, Direction::kToHost);
  }
  Result<Ticket> start_from_host(std::span<const Piece> pieces) override {
    return start(pieces, Direction::kFromHost);
  }

  Result<bool> done(Ticket ticket) override {
    const std::lock_guard lock(mutex_);
    const DeviceScope scope(device_);
    while (!running_.empty() && running_.front().ticket <= ticket) {
      TANDEM_ASSIGN(const bool finished, running_.front().event.done());
      if (!finished) return false;
      idle_.push_back(std::move(running_.front().event));
      running_.pop_front();
    }
    return true;
  }

  Result<std::unique_ptr<HostBuffer>> host_buffer(size_t bytes) override {
    const DeviceScope scope(device_);
    auto buffer = std::make_unique<Pinned>();
    TANDEM_TRY(buffer->fill(bytes));
    return buffer;
  }

 private:
  class Pinned final : public HostBuffer {
   public:
    Status fill(size_t bytes) {
      TANDEM_ASSIGN(memory_, cuda::PinnedBuffer::create(bytes));
      bytes_ = {memory_.data(), memory_.bytes()};
      return {};
    }

   private:
    cuda::PinnedBuffer memory_;
  };
  struct Running {
    Ticket ticket = 0;
    cuda::Event event;
  };

  Status enqueue(std::span<const Piece> pieces, Direction direction) {
    for (size_t i = 0; i < pieces.size();) {
      Piece merged = pieces[i++];
      while (i < pieces.size() && pieces[i].page == merged.page + merged.bytes &&
             pieces[i].host == merged.host + merged.bytes)
        merged.bytes += pieces[i++].bytes;
      if (direction == Direction::kToHost) {
        TANDEM_TRY(cuda::copy_to_host(merged.host, merged.page, merged.bytes, stream_));
      } else {
        TANDEM_TRY(cuda::copy_to_device(merged.page, merged.host, merged.bytes, stream_));
      }
    }
    return {};
  }

  Status copy_now(std::span<const Piece> pieces, Direction direction) {
    const std::lock_guard lock(mutex_);
    const DeviceScope scope(device_);
    TANDEM_TRY(enqueue(pieces, direction));
    return stream_.synchronize();
  }

  Result<Ticket> start(std::span<const Piece> pieces, Direction direction) {
    const std::lock_guard lock(mutex_);
    const DeviceScope scope(device_);
    TANDEM_TRY(enqueue(pieces, direction));
    cuda::Event event;
    if (idle_.empty()) {
      TANDEM_ASSIGN(event, cuda::Event::create());
    } else {
      event = std::move(idle_.back());
      idle_.pop_back();
    }
    TANDEM_TRY(event.record(stream_));
    running_.push_back({++last_ticket_, std::move(event)});
    return last_ticket_;
  }

  const int device_;
  const std::string name_;
  cuda::DeviceBuffer page_buffer_;
  cuda::DeviceBuffer tail_buffer_;
  std::mutex mutex_;  // the self-test's thread and a transport's
  cuda::Stream stream_;
  std::deque<Running> running_;
  std::vector<cuda::Event> idle_;
  Ticket last_ticket_ = 0;
};

}  // namespace

Result<std::unique_ptr<kv::PageMemory>> create_cuda_page_memory(int device,
                                                                cuda::DeviceBuffer pages,
                                                                cuda::DeviceBuffer tails) {
  const DeviceScope scope(device);
  TANDEM_ASSIGN(auto stream, cuda::Stream::create());
  return std::make_unique<CudaPageMemory>(device, std::move(pages), std::move(tails),
                                          std::move(stream));
}

}  // namespace tandem::engine

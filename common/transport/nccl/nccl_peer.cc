#include "common/transport/nccl_peer.h"

#include <algorithm>
#include <cstring>

#include "common/base/clock.h"
#include "common/cuda/memory.h"
#include "common/cuda/stream.h"
#include "common/transport/nccl/nccl_api.h"

namespace tandem::transport {
namespace {

constexpr int kRepeats = 5;

// One end of the pair.
class PeerEnd {
 public:
  PeerEnd(const NcclApi& api, const NcclPeerTask& task) : api_(api), rank_(task.rank) {}
  ~PeerEnd() {
    if (comm_ != nullptr) (void)api_.ncclCommAbort(comm_);
  }
  PeerEnd(const PeerEnd&) = delete;
  PeerEnd& operator=(const PeerEnd&) = delete;

  [[nodiscard]] Status open(const NcclPeerTask& task) {
    ncclUniqueId id{};
    if (task.id.size() != sizeof(id.internal)) {
      return fail(ErrorCode::kCorruptData, "an NCCL id has the wrong length");
    }
    std::memcpy(id.internal, task.id.data(), task.id.size());
    most_ = std::max(task.most_bytes, task.sizes.back());
    TANDEM_ASSIGN(stream_, cuda::Stream::create(cuda::StreamPriority::kHigh));
    TANDEM_ASSIGN(out_, cuda::DeviceBuffer::create(most_));
    TANDEM_ASSIGN(in_, cuda::DeviceBuffer::create(most_));
    TANDEM_CUDA_TRY(cudaMemset(out_.data(), 1, most_));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    return api_.status(api_.ncclCommInitRankConfig(&comm_, 2, id, rank_, &config),
                       "ncclCommInitRankConfig", nullptr);
  }
  // Bytes a second: the median over repetitions of as many messages as fit, 128 at most.
  [[nodiscard]] Result<double> rate(size_t size, bool both_ways) {
    const size_t count = std::clamp<size_t>(most_ / size, 1, 128);
    std::vector<double> times;
    for (int i = 0; i <= kRepeats; ++i) {
      const TimePoint begin = clock_.now();
      for (size_t n = 0; n < count; ++n) {
        TANDEM_TRY(move(n * size, size, both_ways || rank_ == 0, both_ways || rank_ == 1));
      }
      TANDEM_TRY(stream_.synchronize());
      if (i > 0) times.push_back(to_seconds(clock_.now() - begin));
    }
    std::ranges::sort(times);
    return static_cast<double>(count * size) / times[kRepeats / 2];
  }

 private:
  [[nodiscard]] Status move(size_t at, size_t size, bool send, bool receive) {
    TANDEM_TRY(api_.status(api_.ncclGroupStart(), "ncclGroupStart", comm_));
    ncclResult_t sent = ncclSuccess;
    ncclResult_t received = ncclSuccess;
    const int peer = 1 - rank_;
    if (send) sent = api_.ncclSend(out_.data() + at, size, ncclInt8, peer, comm_, stream_.get());
    if (receive) {
      received = api_.ncclRecv(in_.data() + at, size, ncclInt8, peer, comm_, stream_.get());
    }
    TANDEM_TRY(api_.status(api_.ncclGroupEnd(), "ncclGroupEnd", comm_));
    TANDEM_TRY(api_.status(sent, "ncclSend", comm_));
    return api_.status(received, "ncclRecv", comm_);
  }

  const NcclApi& api_;
  const int rank_;
  SteadyClock clock_;
  ncclComm_t comm_ = nullptr;
  cuda::Stream stream_;
  cuda::DeviceBuffer out_;
  cuda::DeviceBuffer in_;
  size_t most_ = 0;
};

}  // namespace

Result<std::string> nccl_peer_id(const std::vector<std::string>& libraries) {
  TANDEM_ASSIGN(const auto api, NcclApi::open(libraries));
  ncclUniqueId id{};
  TANDEM_TRY(api.status(api.ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr));
  return std::string(id.internal, sizeof(id.internal));
}

Result<NcclPeerRates> measure_nccl_peer(const NcclPeerTask& task,
                                        const std::vector<std::string>& libraries) {
  TANDEM_ASSIGN(const auto api, NcclApi::open(libraries));
  const cuda::DeviceScope scope(task.device);
  PeerEnd end(api, task);
  TANDEM_TRY(end.open(task));
  NcclPeerRates rates;
  for (const bool both : {false, true}) {
    for (const size_t size : task.sizes) {
      TANDEM_ASSIGN(const double rate, end.rate(size, both));
      (both ? rates.both_ways : rates.one_way).push_back(rate);
    }
  }
  return rates;
}

}  // namespace tandem::transport

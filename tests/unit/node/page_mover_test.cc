#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "common/base/clock.h"
#include "common/node/cpu_tail.h"
#include "common/node/kv_store.h"
#include "common/node/mover_thread.h"
#include "common/node/page_copy.h"

namespace tandem::node {
namespace {

using std::chrono::seconds;

constexpr uint32_t kLayers = 3;
constexpr uint32_t kTokens = 70;  // four whole blocks and 6 positions

kv::KvLayout layout(kv::KvFormat format) {
  return {.layers = kLayers, .kv_heads = 2, .head_dim = 32, .format = format};
}

struct Side {
  explicit Side(kv::KvFormat format, uint32_t tokens = kTokens) {
    auto made = KvStore::create({.pool = {.layout = layout(format),
                                          .blocks = 16,
                                          .tails = layout(format).needs_tail() ? 3U : 0U,
                                          .memory = {.huge_pages = false},
                                          .poison = false},
                                 .prefix_cache = false});
    store = std::move(*made);
    const std::vector<TokenId> sequence(tokens, 1);
    (void)*store->acquire(std::vector<TokenId>(20, 2), false);  // so that ids differ
    table = std::move(store->acquire(sequence, false)->table);
    std::memset(store->memory().pages(), 0, store->pages().blocks * layout(format).block_bytes());
  }
  [[nodiscard]] PageSet set() const {
    return {.pages = store->pages(),
            .memory = &store->memory(),
            .blocks = {table.ids().begin(), table.ids().end()},
            .tail = table.tail ? table.tail.slot() : 0};
  }
  // The bytes of one page: the open one is where the layout keeps it.
  [[nodiscard]] std::span<std::byte> page(uint32_t layer, uint32_t block) const {
    const engine::KvPages p = store->pages();
    if (p.layout.needs_tail() && block == kTokens / kv::kBlockTokens) {
      const size_t bytes = p.layout.tail_layout().page_bytes();
      return {p.tail + (size_t{layer} * p.tails + table.tail.slot()) * bytes, bytes};
    }
    const size_t bytes = p.layout.page_bytes();
    return {p.pages + (size_t{layer} * p.blocks + table.ids()[block].value) * bytes, bytes};
  }
  void fill() const {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t block = 0; block < table.size(); ++block) {
        // 0x3c..: small positive numbers in every format.
        std::ranges::fill(page(layer, block), static_cast<std::byte>(0x30 + layer * 5 + block));
      }
    }
  }
  std::unique_ptr<KvStore> store;
  kv::BlockTable table;
};

MoveJob job_of(const Side& from, const Side& to, uint32_t first_block = 0) {
  return {.id = 7,
          .from = from.set(),
          .to = to.set(),
          .tokens = kTokens,
          .first_block = first_block,
          .cancelled = std::make_shared<std::atomic<bool>>(false)};
}

TEST(PageCopy, CopiesEveryPageInBatchesOfTheStagingsSize) {
  for (const auto format : {kv::KvFormat::kBf16, kv::KvFormat::kInt8, kv::KvFormat::kInt4}) {
    SCOPED_TRACE(kv::to_string(format));
    Side from(format);
    Side to(format);
    from.fill();
    const MoveJob job = job_of(from, to);
    std::vector<std::byte> staging(2 * least_staging(layout(format), layout(format)));
    PageCopy copy(job, staging);
    int batches = 0;
    for (;; ++batches) {
      const auto more = copy.next();
      ASSERT_TRUE(more);
      if (!*more) break;
    }
    EXPECT_GE(batches, 4);
    size_t bytes = 0;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t block = 0; block < from.table.size(); ++block) {
        EXPECT_TRUE(std::ranges::equal(from.page(layer, block), to.page(layer, block)));
        bytes += to.page(layer, block).size();
      }
    }
    EXPECT_EQ(copy.bytes(), bytes);
  }
}

TEST(PageCopy, LeavesTheBlocksAloneThatAreThereAlready) {
  Side from(kv::KvFormat::kBf16);
  Side to(kv::KvFormat::kBf16);
  from.fill();
  const MoveJob job = job_of(from, to, 3);
  std::vector<std::byte> staging(1 << 20);
  PageCopy copy(job, staging);
  ASSERT_TRUE(*copy.next());
  EXPECT_FALSE(*copy.next());
  EXPECT_EQ(to.page(1, 2)[0], std::byte{0});
  EXPECT_TRUE(std::ranges::equal(from.page(1, 3), to.page(1, 3)));
  EXPECT_TRUE(std::ranges::equal(from.page(2, 4), to.page(2, 4)));
}

TEST(PageCopy, EncodesAnewForAnotherFormatAndBack) {
  Side from(kv::KvFormat::kInt4);
  Side to(kv::KvFormat::kF32);
  Side again(kv::KvFormat::kF32);
  from.fill();
  std::vector<std::byte> staging(1 << 16);
  const MoveJob there = job_of(from, to);
  PageCopy first(there, staging);
  while (*first.next()) {
  }
  const MoveJob back = job_of(to, again);
  PageCopy second(back, staging);
  while (*second.next()) {
  }
  float value = 0;  // the open page's first element: bf16 0x3434 as float32
  std::memcpy(&value, again.page(0, 4).data(), sizeof value);
  EXPECT_EQ(value, to_float(Bf16{0x3434}));
  EXPECT_TRUE(std::ranges::equal(to.page(2, 3), again.page(2, 3)));
  EXPECT_NE(to.page(2, 3)[3], std::byte{0});
}

// Results of a MoverThread, as its owner would post them.
struct Results {
  MoverThread::Sink sink() {
    return [this](MoveResult r) {
      const std::lock_guard lock(mutex);
      all.push_back(std::move(r));
      ready.notify_all();
    };
  }
  [[nodiscard]] bool wait(size_t count) {
    std::unique_lock lock(mutex);
    return ready.wait_for(lock, seconds(60), [&] { return all.size() >= count; });
  }
  std::mutex mutex;
  std::condition_variable ready;
  std::vector<MoveResult> all;
};

TEST(MoverThread, MovesOneAfterTheOtherAndCancels) {
  const SteadyClock clock;
  Results results;
  Side from(kv::KvFormat::kBf16);
  Side to(kv::KvFormat::kBf16);
  Side other(kv::KvFormat::kBf16);
  from.fill();
  MoverThread mover(clock, results.sink());
  ASSERT_TRUE(mover.start(from.store->memory(), 1024));
  MoveJob cancelled = job_of(from, other);
  cancelled.id = 8;
  cancelled.cancelled = std::make_shared<std::atomic<bool>>(true);
  ASSERT_TRUE(mover.submit(job_of(from, to)));
  ASSERT_TRUE(mover.submit(std::move(cancelled)));
  ASSERT_TRUE(results.wait(2));
  EXPECT_EQ(results.all[0].id, 7U);
  EXPECT_TRUE(results.all[0].outcome);
  EXPECT_EQ(results.all[0].bytes, kLayers * 5 * layout(kv::KvFormat::kBf16).page_bytes());
  EXPECT_TRUE(std::ranges::equal(from.page(2, 4), to.page(2, 4)));
  EXPECT_EQ(results.all[1].id, 8U);
  EXPECT_EQ(results.all[1].outcome.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(other.page(0, 0)[0], std::byte{0});
  mover.stop();
  EXPECT_FALSE(mover.submit(job_of(from, to)));
}

TEST(TailThresholds, FillInWhatIsOpenAndRefuseWhatMakesNoSense) {
  const auto of = [](ByteSize below, ByteSize above, ByteSize pool) {
    CpuTailSettings s;
    s.free_below = below;
    s.return_above = above;
    return tail_thresholds(s, pool.bytes);
  };
  EXPECT_EQ(of({}, {}, gib(80))->free_below, gib(2).bytes);
  EXPECT_EQ(of({}, {}, gib(80))->return_above, gib(4).bytes);
  EXPECT_EQ(of({}, {}, mib(512))->free_below, mib(128).bytes);
  EXPECT_EQ(of({}, {}, mib(512))->return_above, mib(256).bytes);
  EXPECT_EQ(of(mib(400), {}, mib(500))->return_above, mib(450).bytes);
  EXPECT_EQ(of(mib(1), mib(1), mib(500))->return_above, mib(1).bytes);
  EXPECT_EQ(of(gib(2), {}, gib(2)).error().param, "cpu_tail.free_below");
  EXPECT_EQ(of({}, mib(100), mib(512)).error().param, "cpu_tail.return_above");  // below 128
  EXPECT_EQ(of({}, gib(1), mib(512)).error().param, "cpu_tail.return_above");
}

}  // namespace
}  // namespace tandem::node

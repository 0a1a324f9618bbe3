// The parts of the shared memory that KV crosses between processes of one host.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "common/transport/direct/wire_format.h"
#include "common/transport/shm/host_copier.h"
#include "common/transport/shm/segment.h"
#include "common/transport/shm/shm_fabric.h"
#include "common/transport/shm/slot_ring.h"

namespace tandem::transport {
namespace {

TEST(SlotRing, SlotsFollowEachOtherAndWrapOnceTheOldestAreBack) {
  SlotRing ring(100);
  const auto a = ring.take(40);
  const auto b = ring.take(40);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->begin, 0u);
  EXPECT_EQ(b->begin, 40u);
  EXPECT_FALSE(ring.take(30)) << "20 at the end and none before";
  const auto c = ring.take(20);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->begin, 80u);
  EXPECT_TRUE(ring.give_back(b->id));
  EXPECT_FALSE(ring.take(10)) << "the oldest is still out";
  EXPECT_TRUE(ring.give_back(a->id));
  const auto d = ring.take(60);
  ASSERT_TRUE(d);
  EXPECT_EQ(d->begin, 0u);
  EXPECT_EQ(ring.take(20)->begin, 60u);
  EXPECT_FALSE(ring.take(1)) << "full";
}

TEST(SlotRing, TakesBackOnlyWhatIsOutAndOnce) {
  SlotRing ring(100);
  const auto a = ring.take(10);
  const auto b = ring.take(10);
  ASSERT_TRUE(a && b);
  EXPECT_FALSE(ring.give_back(99));
  EXPECT_TRUE(ring.give_back(b->id));
  EXPECT_FALSE(ring.give_back(b->id));
  EXPECT_FALSE(ring.all_back());
  EXPECT_TRUE(ring.give_back(a->id));
  EXPECT_TRUE(ring.all_back());
  EXPECT_EQ(ring.take(100)->begin, 0u);
}

// Whatever is out at one time lies apart and inside.
TEST(SlotRing, NoTwoSlotsOverlapInAnyOrderOfReturns) {
  SlotRing ring(1000);
  std::vector<SlotRing::Slot> out;
  uint64_t state = 7;
  size_t taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const size_t draw = state >> 40;
    if (const auto slot = ring.take(1 + draw % 300); slot && draw % 3 != 0) {
      ++taken;
      EXPECT_LE(slot->begin + slot->bytes, 1000u);
      for (const auto& other : out) {
        EXPECT_TRUE(slot->begin + slot->bytes <= other.begin ||
                    other.begin + other.bytes <= slot->begin);
      }
      out.push_back(*slot);
    } else {
      if (slot) {
        EXPECT_TRUE(ring.give_back(slot->id));
      }
      if (out.empty()) continue;
      const auto which = out.begin() + static_cast<long>(draw / 3 % out.size());
      EXPECT_TRUE(ring.give_back(which->id));
      out.erase(which);
    }
  }
  EXPECT_GT(taken, 1000u);
}

TEST(Segment, APeerReadsWhatItsOwnerWrites) {
  auto own = Segment::create(8192).value();
  const auto view = Segment::map(own.file().value(), 8192).value();
  ASSERT_EQ(view.bytes().size(), 8192u);
  std::ranges::fill(own.bytes(), std::byte{5});
  EXPECT_EQ(view.bytes()[8191], std::byte{5});
}

// A file that its owner can cut short would kill its readers.
TEST(Segment, OnlyFilesOfFixedAndSaneSizeAreMapped) {
  const auto refused = [](const Fd& file) {
    const auto mapped = Segment::map(file, 8192);
    return !mapped && mapped.error().code == ErrorCode::kCorruptData;
  };
  Fd loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), 4096), 0);
  EXPECT_TRUE(refused(loose));
  ASSERT_EQ(fcntl(loose.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_FALSE(refused(loose));
  const Fd empty(memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_TRUE(refused(empty));
  EXPECT_TRUE(refused(Segment::create(16384).value().file().value())) << "too large";
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  EXPECT_TRUE(refused(Fd(ends[0])));
  close(ends[1]);
  EXPECT_TRUE(refused(Fd()));
}

TEST(HostCopier, ChecksumsAreOfWhatWasWrittenAndOfItsPlace) {
  HostCopier copier(nullptr);
  std::vector<std::byte> from(100'000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * i >> 9);
  std::vector<std::byte> to(from.size());
  const auto sums = [&](size_t pieces) {
    std::vector<Piece> list;
    const size_t bytes = from.size() / pieces;
    for (size_t i = 0; i < pieces; ++i) {
      list.push_back({from.data() + i * bytes, to.data() + i * bytes, bytes});
    }
    const auto ticket = copier.add(list);
    auto taken = copier.taken(ticket).value();
    EXPECT_FALSE(copier.taken(ticket).value()) << "each ticket is taken once";
    return taken.value();
  };
  const auto whole = sums(1);
  EXPECT_EQ(to, from);
  EXPECT_EQ(sums(1), whole);
  EXPECT_EQ(sums(4).size(), 4u);
  for (const size_t at : {size_t{0}, size_t{8191}, size_t{8192}, size_t{99'999}}) {
    from[at] ^= std::byte{1};
    EXPECT_NE(sums(1), whole) << at;
    from[at] ^= std::byte{1};
  }
  std::swap_ranges(from.begin(), from.begin() + 8192, from.begin() + 8192);
  EXPECT_NE(sums(1), whole);
}

// Two ends of a link, as a connection would join them.
struct Ends {
  std::unique_ptr<Fabric> fabric = create_shm_fabric(nullptr);
  std::unique_ptr<Link> sender = fabric->open(true, "1", "1").value();
  std::unique_ptr<Link> receiver = fabric->open(false, "1", "1").value();
  std::vector<Piece> pieces(size_t count, size_t bytes) const {
    return std::vector<Piece>(count, {nullptr, nullptr, bytes});
  }
};

TEST(ShmLink, SlotsCrossAndComeBack) {
  Ends ends;
  for (const size_t bytes : {size_t{4096}, size_t{3} << 20, size_t{4096}}) {
    auto sent = ends.pieces(2, bytes);
    const auto staged = ends.sender->stage(sent).value();
    ASSERT_TRUE(staged);
    if (Fd memory = ends.sender->memory()) {
      ASSERT_TRUE(ends.receiver->attach(std::move(memory)));
    }
    std::memset(sent[1].to, 7, bytes);
    auto came = ends.pieces(2, bytes);
    const auto arrival = ends.receiver->accept(staged->note, came);
    ASSERT_TRUE(arrival) << arrival.error().detail;
    EXPECT_EQ(came[1].from[bytes - 1], std::byte{7});
    ends.receiver->release(*arrival);
    EXPECT_TRUE(ends.sender->launch(*arrival));
    EXPECT_EQ(ends.sender->launch(*arrival).error().code, ErrorCode::kCorruptData);
  }
}

TEST(ShmLink, WaitsForSlotsAndForAllOfThemBeforeItGrows) {
  Ends ends;
  std::vector<uint64_t> out;
  while (true) {
    auto pieces = ends.pieces(1, 256u << 10);
    const auto staged = ends.sender->stage(pieces).value();
    if (!staged) break;
    out.push_back(staged->slot);
    ASSERT_LT(out.size(), 1000u);
  }
  EXPECT_GE(out.size(), 4u);
  (void)ends.sender->memory();
  auto large = ends.pieces(1, 8u << 20);
  while (!out.empty()) {
    EXPECT_FALSE(ends.sender->stage(large).value());
    ends.sender->abandon(out.back());
    out.pop_back();
  }
  EXPECT_TRUE(ends.sender->stage(large).value());
  EXPECT_TRUE(ends.sender->memory());
}

TEST(ShmLink, OffersThatPointElsewhereAreRefused) {
  Ends ends;
  auto sent = ends.pieces(1, 4096);
  const auto staged = ends.sender->stage(sent).value();
  auto came = ends.pieces(1, 4096);
  EXPECT_FALSE(ends.receiver->accept(staged->note, came)) << "no memory yet";
  Fd memory = ends.sender->memory();
  const Fd again(dup(memory.get()));
  ASSERT_TRUE(ends.receiver->attach(std::move(memory)));
  const auto refused = [&](uint64_t at, size_t bytes, size_t count = 1) {
    auto pieces = ends.pieces(count, bytes);
    const auto accepted =
        ends.receiver->accept(FieldWriter().put(uint64_t{1}).put(at).take(), pieces);
    return !accepted && accepted.error().code == ErrorCode::kCorruptData;
  };
  const size_t all = size_t{2} << 20;
  EXPECT_TRUE(refused(all, 4096));
  EXPECT_TRUE(refused(all - 4092, 4096));
  EXPECT_TRUE(refused(UINT64_MAX - 100, 4096));
  EXPECT_TRUE(refused(0, all / 2 + 4, 2));
  EXPECT_TRUE(!ends.receiver->accept("short", came));
  ASSERT_TRUE(ends.receiver->accept(staged->note, came));
  EXPECT_EQ(ends.receiver->attach(Fd(dup(again.get()))).error().code, ErrorCode::kCorruptData)
      << "what is being read stays mapped";
}

TEST(ShmFabric, AnotherVersionIsAMismatchNamingBoth) {
  const auto link = create_shm_fabric(nullptr)->open(true, "1", "2");
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().code, ErrorCode::kMismatch);
  EXPECT_NE(link.error().detail.find("version 1 of shared memory here, 2"), std::string::npos);
}

}  // namespace
}  // namespace tandem::transport

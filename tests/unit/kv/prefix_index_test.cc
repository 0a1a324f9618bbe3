#include "common/kv/prefix_index.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tandem::kv {
namespace {

std::vector<TokenId> tokens_from(TokenId first, size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class PrefixIndexTest : public ::testing::Test {
 protected:
  void start(uint32_t blocks, PrefixIndex::HashFunction hash = chain_hash) {
    index.reset();
    pool =
        BlockPool::create({.layout = {1, 1, 32, KvFormat::kInt8}, .blocks = blocks, .poison = true})
            .value();
    index = std::make_unique<PrefixIndex>(*pool, hash);
  }
  // A sequence that computed `tokens` in full, as a prefill would.
  BlockTable computed(const std::vector<TokenId>& tokens) {
    BlockTable table;
    table.append(index->match(tokens));
    const size_t need = (tokens.size() + kBlockTokens - 1) / kBlockTokens;
    table.append(pool->allocate(need - table.size()).value());
    index->insert(tokens, table);
    return table;
  }
  std::unique_ptr<BlockPool> pool;
  std::unique_ptr<PrefixIndex> index;
};

TEST_F(PrefixIndexTest, ASecondPromptSharesTheWholeBlocksOfTheFirst) {
  start(8);
  const auto prompt = tokens_from(0, 40);  // two whole blocks and a half
  const BlockTable first = computed(prompt);
  const auto found = index->match(prompt);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].id(), first.ids()[0]);
  EXPECT_EQ(found[1].id(), first.ids()[1]);
  EXPECT_EQ(pool->references(first.ids()[1]), 2u);
  EXPECT_EQ(pool->references(first.ids()[2]), 1u);  // the open block is private
}

TEST_F(PrefixIndexTest, NeverMatchesAWholePrompt) {
  start(8);
  const auto prompt = tokens_from(0, 32);
  const BlockTable table = computed(prompt);
  EXPECT_EQ(index->peek(prompt), 16u);  // the last block must be computed again for its logits
  EXPECT_EQ(index->match(prompt).size(), 1u);
  EXPECT_EQ(index->peek(tokens_from(0, 33)), 32u);
  EXPECT_EQ(index->peek(tokens_from(0, 16)), 0u);
  EXPECT_TRUE(index->match({}).empty());
}

TEST_F(PrefixIndexTest, TheSameTokensAfterAnotherBeginningAreAnotherBlock) {
  start(8);
  auto other = tokens_from(100, 16);
  const auto common = tokens_from(0, 17);
  other.insert(other.end(), common.begin(), common.end());
  const BlockTable table = computed(tokens_from(0, 17));
  EXPECT_EQ(index->peek(tokens_from(0, 17)), 16u);
  EXPECT_EQ(index->peek(other), 0u);
}

TEST_F(PrefixIndexTest, ReleasedBlocksStayCachedAndAreEvictedOldestFirst) {
  start(4);
  computed(tokens_from(0, 32));    // released at once: two cached
  computed(tokens_from(100, 32));  // two more
  EXPECT_EQ(pool->cached_blocks(), 4u);
  EXPECT_EQ(pool->available_blocks(), 4u);
  EXPECT_EQ(index->match(tokens_from(0, 33)).size(), 2u);  // touched: now the youngest
  auto fresh = pool->allocate(2).value();
  EXPECT_EQ(index->peek(tokens_from(0, 33)), 32u);
  EXPECT_EQ(index->peek(tokens_from(100, 33)), 0u);
  EXPECT_EQ(index->stats().evicted_blocks, 2u);
}

TEST_F(PrefixIndexTest, OfOneChainTheDeepestBlockGoesFirst) {
  start(4);
  computed(tokens_from(0, 64));
  auto one = pool->allocate_one().value();
  EXPECT_EQ(index->peek(tokens_from(0, 65)), 48u);
}

TEST_F(PrefixIndexTest, HeldBlocksAreNeverEvicted) {
  start(4);
  const BlockTable held = computed(tokens_from(0, 48));
  auto last = pool->allocate_one().value();
  EXPECT_EQ(pool->allocate_one().error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(index->peek(tokens_from(0, 49)), 48u);
}

TEST_F(PrefixIndexTest, TwoCopiesOfTheSameContentKeepOneShared) {
  start(8);
  BlockTable a;
  BlockTable b;
  a.append(pool->allocate(2).value());
  b.append(pool->allocate(2).value());
  const auto prompt = tokens_from(0, 32);
  index->insert(prompt, a);
  index->insert(prompt, b);
  const BlockId shared = a.ids()[0];
  b.clear();
  EXPECT_EQ(pool->free_blocks(), 6u);  // b's blocks were not indexed
  EXPECT_EQ(index->match(tokens_from(0, 17)).at(0).id(), shared);
  EXPECT_EQ(index->stats().entries, 2u);
}

TEST_F(PrefixIndexTest, AGrowingSequenceBecomesFindableBlockByBlock) {
  start(8);
  BlockTable table;
  table.append(pool->allocate(3).value());
  auto tokens = tokens_from(0, 20);
  index->insert(tokens, table);
  EXPECT_EQ(index->stats().entries, 1u);
  tokens = tokens_from(0, 48);
  index->insert(tokens, table);
  EXPECT_EQ(index->peek(tokens_from(0, 49)), 48u);
}

TEST_F(PrefixIndexTest, AHashCollisionCostsAMissAndNeverGivesForeignBlocks) {
  start(8, [](ChainHash, std::span<const TokenId, kBlockTokens>) -> ChainHash { return 42; });
  const BlockTable a = computed(tokens_from(0, 16));
  EXPECT_EQ(index->peek(tokens_from(0, 17)), 16u);
  EXPECT_EQ(index->peek(tokens_from(100, 17)), 0u);
  const BlockTable b = computed(tokens_from(100, 16));  // takes the place of a's entry
  EXPECT_EQ(index->peek(tokens_from(0, 17)), 0u);
  EXPECT_EQ(index->match(tokens_from(100, 17)).at(0).id(), b.ids()[0]);
  // A chain through a colliding first block must not pick up the other chain's second block.
  const BlockTable c = computed(tokens_from(200, 32));
  EXPECT_EQ(index->peek(tokens_from(200, 33)), 0u);
}

TEST_F(PrefixIndexTest, CollidingParentsDoNotShareChildren) {
  // Only the first block's hash collides; children hash by content.
  start(8, [](ChainHash parent, std::span<const TokenId, kBlockTokens> t) -> ChainHash {
    return parent == kChainRoot ? 7 : chain_hash(parent, t);
  });
  auto a = tokens_from(0, 16);
  auto b = tokens_from(100, 16);
  const auto child = tokens_from(500, 17);
  a.insert(a.end(), child.begin(), child.end());
  b.insert(b.end(), child.begin(), child.end());
  const BlockTable first = computed(a);
  EXPECT_EQ(index->peek(a), 32u);
  const BlockTable second = computed(std::vector<TokenId>(b.begin(), b.begin() + 16));
  EXPECT_EQ(index->peek(b), 16u);  // not the child computed after `a`
}

TEST_F(PrefixIndexTest, StatisticsCountHitAndMissedTokens) {
  start(8);
  computed(tokens_from(0, 40));
  (void)index->match(tokens_from(0, 40));
  const PrefixStats stats = index->stats();
  EXPECT_EQ(stats.query_tokens, 80u);
  EXPECT_EQ(stats.hit_tokens, 32u);
  EXPECT_EQ(stats.inserted_blocks, 2u);
  (void)index->peek(tokens_from(0, 40));
  EXPECT_EQ(index->stats().query_tokens, 80u);
}

TEST_F(PrefixIndexTest, ClearingFreesWhatNobodyHolds) {
  start(8);
  BlockTable held = computed(tokens_from(0, 32));
  computed(tokens_from(100, 32));
  index->clear();
  EXPECT_EQ(pool->cached_blocks(), 0u);
  EXPECT_EQ(pool->held_blocks(), 2u);
  held.clear();
  EXPECT_EQ(pool->free_blocks(), 8u);
}

TEST(ChainHash, DependsOnTokensAndOnWhatCameBefore) {
  const auto tokens = tokens_from(0, 16);
  const auto fixed = std::span(tokens).first<kBlockTokens>();
  EXPECT_NE(chain_hash(kChainRoot, fixed), chain_hash(1, fixed));
  const auto hashes = chain_hashes(tokens_from(0, 47));
  ASSERT_EQ(hashes.size(), 2u);
  EXPECT_EQ(hashes[0], chain_hash(kChainRoot, fixed));
}

}  // namespace
}  // namespace tandem::kv

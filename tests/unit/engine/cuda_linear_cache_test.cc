#include "common/engine/cuda/linear_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace tandem::engine {
namespace {

class WideCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ("wide_cache_" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    path_ = (folder_ / "sub" / "algorithms.txt").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static WideCache filled() {
    WideCache cache(identity());
    cache.put({0, 3584, 4608, 2048}, {1, 2, 3, 0xffffffffffffffffULL, 5, 6, 7, 8});
    cache.put({2, 18944, 3584, 32}, {9, 0, 0, 0, 0, 0, 0, 0x10});
    return cache;
  }
  static WideCache::Identity identity() { return {"NVIDIA H200", 130100, 1 << 25}; }

  std::string read() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void write(const std::string& text) const {
    std::ofstream(path_, std::ios::trunc | std::ios::binary) << text;
  }

  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(WideCacheTest, KeepsEntriesBetweenRuns) {
  const WideCache saved = filled();
  ASSERT_TRUE(saved.save(path_));
  WideCache loaded(identity());
  ASSERT_TRUE(loaded.load(path_));
  EXPECT_EQ(loaded.size(), 2U);
  EXPECT_EQ(loaded.find({0, 3584, 4608, 2048}),
            (WideAlgorithm{1, 2, 3, 0xffffffffffffffffULL, 5, 6, 7, 8}));
  EXPECT_EQ(loaded.find({2, 18944, 3584, 32}), (WideAlgorithm{9, 0, 0, 0, 0, 0, 0, 0x10}));
  EXPECT_FALSE(loaded.find({1, 3584, 4608, 2048}));
  EXPECT_EQ(loaded.serialize(), read());
}

TEST(WideCachePath, HoldsWhatAnAlgorithmDependsOn) {
  EXPECT_EQ(wide_cache_path("/c", "NVIDIA H200", "13.0", 130100),
            "/c/cublaslt-nvidia-h200-13.0-130100.txt");
  EXPECT_EQ(wide_cache_path("/c", "a/../b (PCIe)", "13.0", 1), "/c/cublaslt-a-b-pcie--13.0-1.txt");
  EXPECT_EQ(wide_cache_path("", "NVIDIA H200", "13.0", 130100), "");
}

TEST_F(WideCacheTest, AMissingFileIsAnEmptyCache) {
  WideCache cache = filled();
  ASSERT_TRUE(cache.load(path_));
  EXPECT_EQ(cache.size(), 0U);
}

TEST_F(WideCacheTest, RefusesAFileOfAnotherCardLibraryOrWorkspace) {
  ASSERT_TRUE(filled().save(path_));
  for (const WideCache::Identity& other : {WideCache::Identity{"NVIDIA H100", 130100, 1 << 25},
                                           WideCache::Identity{"NVIDIA H200", 130200, 1 << 25},
                                           WideCache::Identity{"NVIDIA H200", 130100, 1 << 24}}) {
    WideCache cache(other);
    const Status status = cache.load(path_);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_NE(status.error().detail.find(path_), std::string::npos);
    EXPECT_EQ(cache.size(), 0U);
  }
}

TEST_F(WideCacheTest, RefusesEveryTruncationAndEveryChangedByte) {
  ASSERT_TRUE(filled().save(path_));
  const std::string whole = read();
  WideCache cache(identity());
  for (size_t n = 0; n < whole.size(); ++n) {
    write(whole.substr(0, n));
    EXPECT_FALSE(cache.load(path_)) << n;
    EXPECT_EQ(cache.size(), 0U);
    std::string changed = whole;
    changed[n] = static_cast<char>(changed[n] ^ 1);
    write(changed);
    EXPECT_FALSE(cache.load(path_)) << n;
    EXPECT_EQ(cache.size(), 0U);
  }
  write(whole);
  EXPECT_TRUE(cache.load(path_));
}

TEST_F(WideCacheTest, ReplacesABadFile) {
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
  write(std::string(100, '\0'));
  WideCache cache = filled();
  ASSERT_FALSE(cache.load(path_));
  cache.put({0, 8, 8, 32}, {});
  ASSERT_TRUE(cache.save(path_));
  ASSERT_TRUE(cache.load(path_));
  EXPECT_EQ(cache.size(), 1U);
}

TEST(WideBucketTest, CoversEveryRowCountWithinHalfOfIt) {
  uint32_t last = 0;
  for (uint32_t rows = 1; rows <= 20000; ++rows) {
    const uint32_t bucket = wide_bucket(rows);
    EXPECT_GE(bucket, rows);
    EXPECT_GE(bucket, last);
    EXPECT_LE(2 * bucket, 3 * std::max(rows, 22U));
    EXPECT_EQ(wide_bucket(bucket), bucket);
    last = bucket;
  }
  EXPECT_EQ(wide_bucket(33), 48U);
  EXPECT_EQ(wide_bucket(49), 64U);
  EXPECT_EQ(wide_bucket(2048), 2048U);
  EXPECT_EQ(wide_bucket(2049), 3072U);
}

}  // namespace
}  // namespace tandem::engine

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <set>
#include <thread>

#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/exit.h"
#include "common/base/hex.h"
#include "common/base/ids.h"
#include "common/base/process_limits.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/base/utf8.h"

namespace tandem {
namespace {

TEST(ErrorTable, EveryCodeHasItsOwnLabelAndAnErrorStatus) {
  std::set<std::string_view> labels;
  for (int c = 0; c <= static_cast<int>(ErrorCode::kInternal); ++c) {
    const ErrorTraits& traits = error_traits(static_cast<ErrorCode>(c));
    EXPECT_GE(traits.http_status, 400);
    EXPECT_TRUE(labels.insert(traits.label).second) << traits.label;
  }
}

TEST(ErrorTable, BackpressureIsRetryableAndClientErrorsAreNot) {
  EXPECT_TRUE(error_traits(ErrorCode::kQueueFull).retryable);
  EXPECT_EQ(error_traits(ErrorCode::kQueueFull).http_status, 429);
  EXPECT_FALSE(error_traits(ErrorCode::kInvalidArgument).retryable);
}

Result<int> half_of(int v) {
  if (v % 2 != 0) return fail(ErrorCode::kInvalidArgument, "odd", "v");
  return v / 2;
}
Result<int> quarter_of(int v) {
  TANDEM_ASSIGN(const int half, half_of(v));
  return half_of(half);
}

TEST(Result, AssignPropagatesTheFirstError) {
  EXPECT_EQ(quarter_of(8).value(), 2);
  const auto result = quarter_of(6);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().to_string(), "invalid_argument: odd (v)");
}

TEST(BoundedQueue, RefusesWhenFullAndDrainsAfterClose) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.try_push(1));
  EXPECT_TRUE(queue.try_push(2));
  EXPECT_FALSE(queue.try_push(3));
  queue.close();
  EXPECT_EQ(queue.pop(Duration::zero()), 1);
  EXPECT_EQ(queue.pop(Duration::zero()), 2);
  EXPECT_EQ(queue.pop(Duration::zero()), std::nullopt);
  EXPECT_FALSE(queue.try_push(4));
}

TEST(BoundedQueue, ClosingWakesAWaiter) {
  BoundedQueue<int> queue(1);
  std::thread waiter([&] { EXPECT_EQ(queue.pop(from_seconds(60)), std::nullopt); });
  queue.close();
  waiter.join();
}

TEST(DType, Bf16RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie to even: down
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // tie to even: up
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::nanf("")))));
}

TEST(DType, HalfRoundTripsEveryFiniteValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_half(value), half) << bits;
  }
  EXPECT_EQ(float_to_half(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(0x1.002p0f), 0x3c00);  // tie to even
}

struct CountingTraits {
  using Handle = int;
  static Handle invalid() { return -1; }
  static void close(Handle) noexcept { ++closed; }
  static inline int closed = 0;
};

TEST(UniqueHandle, ClosesOnceThroughMoves) {
  {
    UniqueHandle<CountingTraits> a(1);
    UniqueHandle<CountingTraits> b = std::move(a);
    a = std::move(b);
  }
  EXPECT_EQ(CountingTraits::closed, 1);
}

// RFC 4648, section 10, in lower case.
TEST(Hex, WritesAndReadsTwoDigitsForEachByte) {
  EXPECT_EQ(to_hex(""), "");
  EXPECT_EQ(to_hex("foobar"), "666f6f626172");
  EXPECT_EQ(to_hex(std::string_view("\x00\xff", 2)), "00ff");
  EXPECT_EQ(from_hex("666f6f626172").value(), "foobar");
  EXPECT_EQ(from_hex("00ff").value(), std::string("\x00\xff", 2));
}

TEST(Hex, RefusesWhatIsNoSuchText) {
  for (const char* text : {"6", "666", "6g", "6F", "0x66", " 66"}) {
    EXPECT_EQ(from_hex(text).error().code, ErrorCode::kCorruptData) << text;
  }
}

TEST(Utf8, AcceptsWellFormedTextOfEveryLength) {
  EXPECT_TRUE(is_valid_utf8(""));
  EXPECT_TRUE(is_valid_utf8(
      "a\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"));
  EXPECT_EQ(utf8_sequence_length("\xf0\x9f\x98\x80rest"), 4u);
}

TEST(Utf8, RefusesOverlongSurrogateTruncatedAndStrayBytes) {
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x82", "\xe2\x28\xa1", "\xc3"}) {
    EXPECT_FALSE(is_valid_utf8(bad)) << bad;
  }
}

// Exits with 0 when both limits behave; in a process of its own.
[[noreturn]] void check_process_limits() {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = 64;
  setrlimit(RLIMIT_NOFILE, &files);
  if (open_file_limit() != 64) std::exit(1);
  prepare_process_limits();
  if (files.rlim_max != RLIM_INFINITY && open_file_limit() != files.rlim_max) std::exit(2);

  char path[] = "/tmp/tandem-limits-XXXXXX";
  const int fd = mkstemp(path);
  unlink(path);
  const rlimit size{.rlim_cur = 8, .rlim_max = 8};
  setrlimit(RLIMIT_FSIZE, &size);
  const char text[] = "0123456789";
  if (write(fd, text, 8) != 8) std::exit(3);
  if (write(fd, text, 8) != -1 || errno != EFBIG) std::exit(4);
  std::_Exit(0);  // a sanitizer's report could not be written either
}

TEST(ProcessLimitsDeathTest, FilesAreRaisedAndAFullLogIsAnErrorOnly) {
  EXPECT_EXIT(check_process_limits(), testing::ExitedWithCode(0), "");
}

TEST(ManualClock, MovesOnlyWhenTold) {
  ManualClock clock;
  const TimePoint start = clock.now();
  clock.advance(from_seconds(1.5));
  EXPECT_DOUBLE_EQ(to_seconds(clock.now() - start), 1.5);
}

TEST(Exit, WhatWillBeTheSameTheNextTimeIsAUsageError) {
  const auto code = [](ErrorCode why) {
    return report_exit("test", make_error(why, "expected in the output"));
  };
  for (const ErrorCode lasting :
       {ErrorCode::kConfig, ErrorCode::kInvalidArgument, ErrorCode::kNotFound,
        ErrorCode::kUnsupported, ErrorCode::kCorruptData, ErrorCode::kMismatch,
        ErrorCode::kPayloadTooLarge}) {
    EXPECT_EQ(code(lasting), kExitUsage) << error_traits(lasting).label;
  }
  for (const ErrorCode passing :
       {ErrorCode::kIo, ErrorCode::kResourceExhausted, ErrorCode::kTransport, ErrorCode::kInternal,
        ErrorCode::kDeviceLost, ErrorCode::kUnavailable, ErrorCode::kUnauthenticated}) {
    EXPECT_EQ(code(passing), kExitFailure) << error_traits(passing).label;
  }
}

}  // namespace
}  // namespace tandem

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/units.h"

namespace tandem {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(Durations, ParseWithEveryUnitAndDecimals) {
  EXPECT_EQ(parse_duration("3s").value(), seconds(3));
  EXPECT_EQ(parse_duration("250ms").value(), milliseconds(250));
  EXPECT_EQ(parse_duration("1.5m").value(), seconds(90));
  EXPECT_EQ(parse_duration("0.1s").value(), milliseconds(100));
  EXPECT_EQ(parse_duration("2h").value(), hours(2));
  EXPECT_EQ(parse_duration("7 us").value(), nanoseconds(7000));
  EXPECT_EQ(parse_duration("0s").value(), Duration::zero());
}

TEST(Durations, RefuseWhatHasNoUnitOrAWrongOne) {
  EXPECT_THAT(parse_duration("3").error().detail, HasSubstr("has no unit"));
  EXPECT_THAT(parse_duration("0").error().detail, HasSubstr("has no unit"));
  EXPECT_THAT(parse_duration("3MiB").error().detail,
              HasSubstr("'MiB' is not a unit of a duration"));
  for (const char* bad : {"", "s", "-3s", "3.s", ".5s", "1e3s", "3s3", "3 s s", "0x3s", "nan s",
                          "99999999999999999999s", "9999999h", "0.5ns", "1.0000000000000001s"}) {
    EXPECT_FALSE(parse_duration(bad)) << bad;
  }
}

TEST(Durations, FormatIsShortExactAndParsesBack) {
  EXPECT_EQ(format_duration(seconds(3)), "3s");
  EXPECT_EQ(format_duration(milliseconds(250)), "250ms");
  EXPECT_EQ(format_duration(seconds(120)), "2m");
  EXPECT_EQ(format_duration(Duration::zero()), "0s");
  for (const int64_t count : {int64_t{1}, int64_t{1500}, int64_t{90'000'000'000}, INT64_MAX}) {
    EXPECT_EQ(parse_duration(format_duration(Duration(count))).value(), Duration(count));
  }
}

TEST(Sizes, ParseBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_size("64MiB").value().bytes, 64u << 20);
  EXPECT_EQ(parse_size("1.5GiB").value().bytes, 1536u << 20);
  EXPECT_EQ(parse_size("3KB").value().bytes, 3000u);
  EXPECT_EQ(parse_size("12B").value().bytes, 12u);
  EXPECT_EQ(parse_size("0B").value().bytes, 0u);
}

TEST(Sizes, RefuseWrongUnitsFractionsOfBytesAndOverflow) {
  EXPECT_THAT(parse_size("64").error().detail, HasSubstr("has no unit"));
  EXPECT_THAT(parse_size("64M").error().detail, HasSubstr("'M' is not a unit of a size"));
  for (const char* bad : {"64Mi", "64mib", "3s", "0.3B", "9999999TiB", "18446744073709551616B"}) {
    EXPECT_FALSE(parse_size(bad)) << bad;
  }
}

TEST(Sizes, FormatParsesBack) {
  EXPECT_EQ(format_size(mib(64)), "64MiB");
  EXPECT_EQ(format_size(kib(1536)), "1536KiB");
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{1023}, uint64_t{1} << 43}) {
    EXPECT_EQ(parse_size(format_size({bytes})).value().bytes, bytes);
  }
}

TEST(HostPort, ParsesNamesAndBracketedAddresses) {
  EXPECT_EQ(parse_device("cpu").value(), (DeviceChoice{}));
  EXPECT_EQ(parse_device("cuda").value(), (DeviceChoice{true, 0}));
  EXPECT_EQ(parse_device("cuda:7").value(), (DeviceChoice{true, 7}));
  for (const char* wrong : {"", "CPU", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999", "gpu"})
    EXPECT_FALSE(parse_device(wrong)) << wrong;
  EXPECT_EQ(parse_host_port("router.example:7070").value().host, "router.example");
  EXPECT_EQ(parse_host_port("[::1]:7070").value().host, "::1");
  EXPECT_EQ(parse_host_port("[::1]:7070").value().port, 7070);
  for (const char* bad : {"router", ":7070", "router:", "router:0", "router:65536", "::1:7070",
                          "http://router:80", "a b:1", "[]:1"}) {
    EXPECT_FALSE(parse_host_port(bad)) << bad;
  }
  EXPECT_EQ(format_host_port("::1", 5), "[::1]:5");
}

}  // namespace
}  // namespace tandem

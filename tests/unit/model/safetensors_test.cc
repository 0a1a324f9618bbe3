#include "common/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/test_files.h"

namespace tandem::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::safetensors_file;

Result<std::vector<SafetensorsEntry>> parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "m.safetensors");
}
Result<std::vector<SafetensorsEntry>> parse(const std::string& header, const std::string& data) {
  return parse(safetensors_file(header, data));
}
std::string refusal(const std::string& bytes) {
  const auto r = parse(bytes);
  if (r) return "was accepted";
  EXPECT_EQ(r.error().code, ErrorCode::kCorruptData);
  EXPECT_THAT(r.error().detail, HasSubstr("m.safetensors"));
  return r.error().detail;
}
std::string refusal(const std::string& header, const std::string& data) {
  return refusal(safetensors_file(header, data));
}

TEST(Safetensors, ReadsEntriesInOrderOfTheirData) {
  const auto r = parse(R"({"__metadata__": {"format": "pt"},
      "b": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [4, 12]},
      "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
      "empty": {"dtype": "F32", "shape": [0, 3], "data_offsets": [4, 4]},
      "scalar": {"dtype": "I64", "shape": [], "data_offsets": [12, 20]}})",
                       std::string(20, 'x'));
  ASSERT_TRUE(r) << r.error().to_string();
  ASSERT_EQ(r->size(), 4u);
  EXPECT_EQ((*r)[0].name, "a");
  EXPECT_EQ((*r)[1].name, "empty");
  EXPECT_EQ((*r)[2].name, "b");
  EXPECT_EQ((*r)[2].type, StorageType::kBf16);
  EXPECT_THAT((*r)[2].shape, ElementsAre(2, 2));
  EXPECT_EQ((*r)[2].bytes.size(), 8u);
  EXPECT_FALSE((*r)[3].type);  // legal, not a weight type
}

TEST(Safetensors, TruncationAnywhereIsAnError) {
  const std::string whole = safetensors_file(
      R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", std::string(8, 'x'));
  ASSERT_TRUE(parse(whole));
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(parse(whole.substr(0, n))) << n;
  EXPECT_THAT(refusal(whole + "y"), HasSubstr("no tensor claims"));
}

TEST(Safetensors, HeaderLengthsThatLie) {
  std::string bytes(8, '\xff');
  EXPECT_THAT(refusal(bytes + "{}"), HasSubstr("header of 18446744073709551615"));
  bytes.clear();
  testing::put<uint64_t>(bytes, 99'000'000);
  EXPECT_THAT(refusal(bytes + "{}"), HasSubstr("truncated"));
  EXPECT_THAT(refusal(""), HasSubstr("too short"));
  EXPECT_THAT(refusal("[]", ""), HasSubstr("JSON object"));
  EXPECT_THAT(refusal("", ""), HasSubstr("not valid JSON"));
}

TEST(Safetensors, OffsetsThatLie) {
  const auto one = [](const char* offsets) {
    return refusal(
        std::string(R"({"t": {"dtype": "F32", "shape": [2], "data_offsets": )") + offsets + "}}",
        std::string(8, 'x'));
  };
  EXPECT_THAT(one("[0, 16]"), AllOf(HasSubstr("tensor t"), HasSubstr("outside the 8 bytes")));
  EXPECT_THAT(one("[8, 0]"), HasSubstr("outside"));
  EXPECT_THAT(one("[0, 4]"), HasSubstr("need 8 bytes, data_offsets give 4"));
  EXPECT_THAT(one("[-8, 0]"), HasSubstr("whole numbers"));
  EXPECT_THAT(one("[0, 18446744073709551615]"), HasSubstr("whole numbers"));
  EXPECT_THAT(one("[0]"), HasSubstr("two offsets"));
  EXPECT_THAT(one("[0.0, 8.0]"), HasSubstr("whole numbers"));
  EXPECT_THAT(one("null"), HasSubstr("two offsets"));
}

TEST(Safetensors, OverlapsGapsAndDuplicates) {
  EXPECT_THAT(refusal(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                          "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})",
                      std::string(12, 'x')),
              HasSubstr("tensor b: overlaps"));
  EXPECT_THAT(refusal(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                          "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})",
                      std::string(8, 'x')),
              HasSubstr("overlaps"));
  EXPECT_THAT(refusal(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                      std::string(8, 'x')),
              HasSubstr("gap"));
  EXPECT_THAT(refusal(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                          "a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                      std::string(8, 'x')),
              HasSubstr("\"a\" appears twice"));
}

TEST(Safetensors, ShapesAndTypesThatLie) {
  const auto one = [](const std::string& fields) {
    return refusal("{\"t\": {" + fields + R"(, "data_offsets": [0, 8]}})", std::string(8, 'x'));
  };
  EXPECT_THAT(one(R"("dtype": "F32", "shape": [4294967296, 4294967296])"),
              HasSubstr("more elements"));
  EXPECT_THAT(one(R"("dtype": "F64", "shape": [288230376151711744])"),
              HasSubstr("need"));  // 2^58: bits wrap
  EXPECT_THAT(one(R"("dtype": "F32", "shape": [9223372036854775807])"), HasSubstr("more elements"));
  EXPECT_THAT(one(R"("dtype": "F32", "shape": [-2])"), HasSubstr("whole numbers"));
  EXPECT_THAT(one(R"("dtype": "F32", "shape": [1,1,1,1,1,1,1,1,2])"), HasSubstr("9 dimensions"));
  EXPECT_THAT(one(R"("dtype": "F32", "shape": 2)"), HasSubstr("shape"));
  EXPECT_THAT(one(R"("dtype": "F99", "shape": [2])"), HasSubstr("F99"));
  EXPECT_THAT(one(R"("dtype": 4, "shape": [2])"), HasSubstr("dtype"));
  EXPECT_THAT(one(R"("shape": [2])"), HasSubstr("dtype"));
  EXPECT_THAT(one(R"("dtype": "F4", "shape": [3])"),
              HasSubstr("need"));  // 12 bits are no whole bytes
  EXPECT_THAT(refusal(R"({"t": 5})", ""), HasSubstr("must be an object"));
}

// A header of a hundred thousand tensors is read in bounded time, not quadratic.
TEST(Safetensors, ManyTensors) {
  std::string header = "{";
  for (int i = 0; i < 100000; ++i)
    header += (i ? ",\"t" : "\"t") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
              std::to_string(i + 1) + "]}";
  const auto r = parse(header + "}", std::string(100000, 'x'));
  ASSERT_TRUE(r) << r.error().to_string();
  EXPECT_EQ(r->size(), 100000u);
}

}  // namespace
}  // namespace tandem::model

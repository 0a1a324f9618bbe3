#include "common/kv/layout.h"

#include <gtest/gtest.h>

namespace tandem::kv {
namespace {

// SmolLM2-135M: 30 layers, 3 KV heads of 64. Sizes counted by hand from the page description.
constexpr KvLayout smollm2(KvFormat format) { return {30, 3, 64, format}; }

TEST(KvLayout, SectionSizesFollowThePageDescription) {
  EXPECT_EQ(smollm2(KvFormat::kF32).k_section_bytes(), 16u * 64 * 4);
  EXPECT_EQ(smollm2(KvFormat::kBf16).k_section_bytes(), 16u * 64 * 2);
  EXPECT_EQ(smollm2(KvFormat::kInt8).k_section_bytes(), 1024u + 32);
  EXPECT_EQ(smollm2(KvFormat::kInt8).v_section_bytes(), 1024u + 32);
  EXPECT_EQ(smollm2(KvFormat::kFp8E4M3).k_section_bytes(), 1024u + 32);
  EXPECT_EQ(smollm2(KvFormat::kFp8E4M3).v_section_bytes(), 1024u + 32);
  EXPECT_EQ(smollm2(KvFormat::kK8V4).k_section_bytes(), 1024u + 32);
  EXPECT_EQ(smollm2(KvFormat::kK8V4).v_section_bytes(), 512u + 2 * 16 * 2 * 2);
  EXPECT_EQ(smollm2(KvFormat::kInt4).k_section_bytes(), 512u + 2 * 64 * 2);
  EXPECT_EQ(smollm2(KvFormat::kInt4).v_section_bytes(), 512u + 2 * 16 * 2 * 2);
  EXPECT_EQ(smollm2(KvFormat::kInt4).page_bytes(), 3u * (768 + 640));
  EXPECT_EQ(smollm2(KvFormat::kInt4).block_bytes(), 30u * 3 * (768 + 640));
}

TEST(KvLayout, CompressedPagesKeepTheStatedShareOfBf16) {
  const auto share = [](KvFormat f) {
    return static_cast<double>(smollm2(f).block_bytes()) /
           static_cast<double>(smollm2(f).bf16_block_bytes());
  };
  EXPECT_DOUBLE_EQ(share(KvFormat::kBf16), 1.0);
  EXPECT_LE(share(KvFormat::kInt8), 0.52);
  EXPECT_LE(share(KvFormat::kK8V4), 0.42);
  EXPECT_LE(share(KvFormat::kInt4), 0.40);
}

TEST(KvLayout, SectionsArePaddedToSixteenBytes) {
  const KvLayout odd{1, 1, 6, KvFormat::kInt4};
  EXPECT_EQ(odd.k_section_bytes(), 80u);   // 16*3 + 2*2*6 = 72
  EXPECT_EQ(odd.v_section_bytes(), 112u);  // 16*3 + 2*2*16
  EXPECT_EQ(v4_groups(6), 1u);
  EXPECT_EQ(v4_groups(32), 1u);
  EXPECT_EQ(v4_groups(80), 3u);
}

TEST(KvLayout, OnlyInt4KeepsAnOpenPage) {
  for (const KvFormat f :
       {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8, KvFormat::kK8V4, KvFormat::kFp8E4M3}) {
    EXPECT_FALSE(smollm2(f).needs_tail()) << to_string(f);
  }
  EXPECT_TRUE(smollm2(KvFormat::kInt4).needs_tail());
  EXPECT_EQ(smollm2(KvFormat::kInt4).tail_layout(), smollm2(KvFormat::kBf16));
}

TEST(KvLayout, NamesRoundTripAndUnknownOnesAreNamed) {
  for (const char* name : {"f32", "bf16", "int8", "k8v4", "int4", "fp8_e4m3"}) {
    ASSERT_TRUE(parse_kv_format(name)) << name;
    EXPECT_EQ(to_string(*parse_kv_format(name)), name);
  }
  const auto unknown = parse_kv_format("int3");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().detail.find("int3"), std::string::npos);
  EXPECT_NE(unknown.error().detail.find("k8v4"), std::string::npos);
}

TEST(KvLayout, ImpossibleShapesAreRefusedByField) {
  const auto field = [](KvLayout layout) {
    const Status status = validate(layout);
    return status ? std::string("accepted") : status.error().param;
  };
  EXPECT_EQ(field({1, 1, 64, KvFormat::kInt8}), "accepted");
  EXPECT_EQ(field({0, 1, 64, KvFormat::kInt8}), "layers");
  EXPECT_EQ(field({1, 0, 64, KvFormat::kInt8}), "kv_heads");
  EXPECT_EQ(field({1, 1, 0, KvFormat::kInt8}), "head_dim");
  EXPECT_EQ(field({1, 1, 63, KvFormat::kInt8}), "head_dim");
  EXPECT_EQ(field({1, 1, 1u << 31, KvFormat::kInt8}), "head_dim");
  EXPECT_EQ(field({1, 1, 64, static_cast<KvFormat>(77)}), "format");
}

TEST(KvLayout, DescriptionNamesEveryFieldThatMustAgree) {
  EXPECT_EQ(smollm2(KvFormat::kK8V4).describe(),
            "format k8v4, 16 tokens a block, 30 layers, 3 KV heads of 64, V groups of 32");
}

}  // namespace
}  // namespace tandem::kv

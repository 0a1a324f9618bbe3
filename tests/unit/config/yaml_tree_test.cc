#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/config/yaml_tree.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(std::string_view text) {
  const auto result = parse_yaml(text, "f.yaml");
  return result ? "accepted" : result.error().detail;
}

TEST(YamlTree, KeepsLinesAndTellsQuotedFromPlain) {
  const auto root = parse_yaml("a: 1\nb:\n  - \"2\"\n  - x\n", "f.yaml").value();
  ASSERT_EQ(root.entries.size(), 2u);
  EXPECT_EQ(root.entries[0].value.scalar, "1");
  EXPECT_FALSE(root.entries[0].value.quoted);
  EXPECT_EQ(root.entries[1].line, 2);
  EXPECT_TRUE(root.entries[1].value.items[0].quoted);
  EXPECT_EQ(root.entries[1].value.items[1].line, 4);
}

TEST(YamlTree, AnEmptyFileIsAnEmptyMap) {
  EXPECT_EQ(parse_yaml("", "f").value().kind, YamlNode::Kind::kMap);
  EXPECT_EQ(parse_yaml("# nothing\n", "f").value().kind, YamlNode::Kind::kMap);
}

TEST(YamlTree, AliasesAreWrittenOut) {
  const auto root = parse_yaml("a: &x {k: v}\nb: *x\n", "f").value();
  EXPECT_EQ(root.entries[1].value.entries[0].value.scalar, "v");
}

TEST(YamlTree, RefusesSyntaxErrorsDuplicatesAndSecondDocuments) {
  EXPECT_THAT(refusal("a: 1\nb: [1, 2\n"), StartsWith("f.yaml:"));
  EXPECT_THAT(refusal("a: 1\nb: 2\na: 3\n"),
              HasSubstr("f.yaml:3: duplicate key 'a', already on line 1"));
  EXPECT_THAT(refusal("a: 1\n---\nb: 2\n"), HasSubstr("a second document"));
  EXPECT_THAT(refusal("? [a, b]\n: 1\n"), HasSubstr("a key that is not a plain word"));
  EXPECT_THAT(refusal("a: \xff\n"), HasSubstr("f.yaml:1: is not UTF-8"));
  EXPECT_THAT(refusal(std::string_view("a: 1\nb: \0\n", 10)), HasSubstr("f.yaml:2: is not UTF-8"));
  EXPECT_THAT(refusal("\ta: 1\n"), HasSubstr("not valid YAML"));
}

TEST(YamlTree, BoundsAliasBombs) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string n = std::to_string(i);
    bomb += "a" + n + ": &a" + n + " [";
    for (int j = 0; j < 9; ++j) bomb += "*a" + std::to_string(i - 1) + (j < 8 ? ", " : "]\n");
  }
  EXPECT_THAT(refusal(bomb), HasSubstr("counting aliases"));
  EXPECT_THAT(refusal("a: &a [1, *a]\n"), HasSubstr("refers to its own parent"));
}

TEST(YamlTree, BoundsNesting) {
  EXPECT_THAT(refusal("a: " + std::string(20000, '[') + std::string(20000, ']')),
              HasSubstr("nested deeper than 32"));
  EXPECT_THAT(refusal("a: " + std::string(20000, '{')), HasSubstr("f.yaml:1"));
  std::string block;
  for (int i = 0; i < 100; ++i) block += std::string(static_cast<size_t>(i), ' ') + "k:\n";
  EXPECT_THAT(refusal(block), HasSubstr("nested deeper than 32"));
  // An alias must not lift the bound either.
  std::string chain = "a0: &a0 [1]\n";
  for (int i = 1; i < 40; ++i) {
    chain += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [*a" + std::to_string(i - 1) +
             "]\n";
  }
  EXPECT_THAT(refusal(chain), HasSubstr("nested deeper than 32"));
}

TEST(YamlTree, BoundsSize) {
  EXPECT_THAT(refusal(std::string(kMaxYamlBytes + 1, '#')), HasSubstr("larger than 1 MiB"));
}

}  // namespace
}  // namespace tandem

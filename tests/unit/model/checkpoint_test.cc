#include <cstdlib>

#include "common/model/checkpoint.h"
#include "gtest/gtest.h"

namespace tandem::model {
namespace {

TEST(Checkpoint, OpensEveryReferenceFolder) {
  for (const char* name : {"llama3", "qwen2", "qwen3", "qwen3_moe"}) {
    const auto c = Checkpoint::open(std::string(TANDEM_TEST_DATA) + "/golden/" + name);
    ASSERT_TRUE(c) << c.error().to_string();
    EXPECT_EQ((*c)->fingerprint().size(), 32u);
    EXPECT_TRUE((*c)->warnings().empty());
    EXPECT_EQ((*c)->config().layers, 3u);
  }
}

TEST(Checkpoint, OpensTheRealModel) {
  const char* path = std::getenv("TANDEM_SMOLLM2");
  if (path == nullptr) GTEST_SKIP() << "TANDEM_SMOLLM2 is not set";
  const auto c = Checkpoint::open(path);
  ASSERT_TRUE(c) << c.error().to_string();
  EXPECT_EQ((*c)->config().describe(),
            "llama, 30 layers, hidden 576, 9/3 heads of 64, context 8192, vocabulary 49152");
  EXPECT_TRUE((*c)->config().tied_head);
  EXPECT_EQ((*c)->config().eos, std::vector<TokenId>{2});
  EXPECT_EQ((*c)->summary().tensors, 272u);
}

}  // namespace
}  // namespace tandem::model

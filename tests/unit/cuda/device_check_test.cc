#include <gtest/gtest.h>

#include "common/cuda/device_info.h"

namespace tandem::cuda {
namespace {

DeviceInfo card(int index, int major, int minor) {
  DeviceInfo info;
  info.index = index;
  info.name = "Card";
  info.uuid = "GPU-" + std::to_string(index);
  info.major = major;
  info.minor = minor;
  return info;
}

TEST(DeviceCheck, AnIndexThatIsNotThereListsWhatIs) {
  const std::vector<DeviceInfo> devices{card(0, 9, 0), card(1, 9, 0)};
  EXPECT_TRUE(check_index(0, devices));
  EXPECT_TRUE(check_index(1, devices));
  for (int wrong : {-1, 2}) {
    const Status status = check_index(wrong, devices);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kConfig);
    EXPECT_EQ(status.error().param, "device");
    EXPECT_NE(status.error().detail.find("GPU-1"), std::string::npos) << status.error().detail;
  }
}

TEST(DeviceCheck, MachineCodeRunsWhereNvidiaSaysItDoes) {
  EXPECT_TRUE(check_architecture(card(0, 9, 0), "90a"));
  EXPECT_FALSE(check_architecture(card(0, 10, 0), "90a"));
  EXPECT_FALSE(check_architecture(card(0, 8, 0), "90a"));
  EXPECT_TRUE(check_architecture(card(0, 8, 0), "80;90a"));
  EXPECT_TRUE(check_architecture(card(0, 8, 9), "80"));      // same major, higher minor
  EXPECT_FALSE(check_architecture(card(0, 8, 0), "86"));     // lower minor
  EXPECT_FALSE(check_architecture(card(0, 12, 1), "120a"));  // `a`: exactly that one
  EXPECT_FALSE(check_architecture(card(0, 9, 0), ""));
}

TEST(DeviceCheck, AnOldCardIsNamedTogetherWithWhatTheBuildHas) {
  const Status status = check_architecture(card(3, 7, 5), "90a");
  ASSERT_FALSE(status);
  for (const char* part : {"device 3", "Card", "7.5", "90a", "device: cpu"})
    EXPECT_NE(status.error().detail.find(part), std::string::npos) << status.error().detail;
}

TEST(DeviceCheck, VersionsReadAsNvidiaWritesThem) {
  EXPECT_EQ(version_text(13000), "13.0");
  EXPECT_EQ(version_text(12080), "12.8");
}

// On a machine without a card or driver, and in a build without CUDA, too.
TEST(DeviceCheck, AskingForCardsNeverFailsWithoutAReason) {
  const auto devices = list_devices();
  if (devices) {
    EXPECT_FALSE(devices->empty());
    return;
  }
  EXPECT_GT(devices.error().detail.size(), 40u) << devices.error().to_string();
  EXPECT_NE(devices.error().detail.find("device: cpu"), std::string::npos)
      << devices.error().to_string();
}

}  // namespace
}  // namespace tandem::cuda

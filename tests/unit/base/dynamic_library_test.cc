#include "common/base/dynamic_library.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem {
namespace {

TEST(DynamicLibrary, OpensAndBindsWhatTheSystemHas) {
  const auto library = DynamicLibrary::open("libm.so.6");
  ASSERT_TRUE(library) << library.error().to_string();
  EXPECT_NE(library->path().find("libm.so.6"), std::string::npos);
  double (*cosine)(double) = nullptr;
  ASSERT_TRUE(library->bind(cosine, "cos"));
  EXPECT_DOUBLE_EQ(cosine(0.0), 1.0);
  EXPECT_TRUE(library->has("sin"));
  EXPECT_FALSE(library->has("no_such_function"));
}

TEST(DynamicLibrary, NamesWhatIsMissingAndWhereItLooked) {
  const std::vector<std::string> folders{"/nowhere/lib"};
  const auto library = DynamicLibrary::open("libnccl-of-nobody.so.2", folders);
  ASSERT_FALSE(library);
  EXPECT_EQ(library.error().code, ErrorCode::kUnavailable);
  for (const char* part : {"libnccl-of-nobody.so.2", "/nowhere/lib", "LD_LIBRARY_PATH"})
    EXPECT_NE(library.error().detail.find(part), std::string::npos) << library.error().detail;
}

TEST(DynamicLibrary, NamesAFunctionThatIsMissing) {
  const auto library = DynamicLibrary::open("libm.so.6");
  ASSERT_TRUE(library);
  void (*function)() = nullptr;
  const Status status = library->bind(function, "no_such_function");
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().detail.find("no_such_function"), std::string::npos);
  EXPECT_NE(status.error().detail.find("libm"), std::string::npos);
  EXPECT_EQ(function, nullptr);
}

TEST(DynamicLibrary, OneThatWasNeverOpenedHasNothing) {
  void (*function)() = nullptr;
  EXPECT_FALSE(DynamicLibrary().bind(function, "cos"));
}

}  // namespace
}  // namespace tandem

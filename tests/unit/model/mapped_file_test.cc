#include "common/model/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <numeric>

#include "tests/unit/model/test_files.h"

namespace tandem::model {
namespace {

unsigned add_up(std::span<const std::byte> bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), 0U,
                         [](unsigned sum, std::byte b) { return sum + static_cast<unsigned>(b); });
}

TEST(MappedFile, HoldsTheWholeFile) {
  const testing::TempFolder folder;
  const MappedFile file = *MappedFile::open(folder.write("a", std::string(10000, '\1')));
  EXPECT_EQ(add_up(file.bytes()), 10000U);
}

TEST(MappedFileDeathTest, AFileCutShortInUseIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const testing::TempFolder folder;
  const auto path = folder.write("weights.safetensors", std::string(1 << 16, '\1'));
  EXPECT_EXIT(
      {
        const MappedFile moved = *MappedFile::open(path);
        MappedFile file = *MappedFile::open(path);
        file = *MappedFile::open(path);
        if (::truncate(path.c_str(), 100) != 0) ::_exit(7);
        ::_exit(add_up(file.bytes()) == 0 ? 8 : 9);
      },
      ::testing::ExitedWithCode(1), "weights.safetensors: was cut short");
}

TEST(MappedFileDeathTest, OtherBusErrorsEndAsEver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const testing::TempFolder folder;
  const auto path = folder.write("a", std::string(1 << 16, '\1'));
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_DFL);
        { const MappedFile closed = *MappedFile::open(path); }
        const MappedFile open = *MappedFile::open(folder.write("b", "x"));
        const int fd = ::open(path.c_str(), O_RDONLY);
        void* p = ::mmap(nullptr, 1 << 16, PROT_READ, MAP_PRIVATE, fd, 0);
        if (::truncate(path.c_str(), 0) != 0) ::_exit(7);
        ::_exit(add_up({static_cast<const std::byte*>(p), 1 << 16}) == 0 ? 8 : 9);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace tandem::model

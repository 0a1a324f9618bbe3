#include "common/model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/base/fd.h"
#include "common/model/mapping_guard.h"

namespace tandem::model {
namespace {

Error io_error(const std::filesystem::path& path, const char* what) {
  // Who may read a file, and what it is, does not change by itself.
  const bool forbidden = errno == EACCES || errno == EPERM;
  return make_error(forbidden ? ErrorCode::kConfig : ErrorCode::kIo,
                    path.string() + ": " + what + ": " + std::strerror(errno));
}

void unmap(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  forget_mapping(bytes);
  ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
}

Result<std::pair<Fd, size_t>> open_regular(const std::filesystem::path& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return fail(io_error(path, "cannot open"));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return fail(io_error(path, "cannot stat"));
  if (!S_ISREG(info.st_mode))
    return fail(ErrorCode::kConfig, path.string() + ": is not a regular file");
  return std::pair(std::move(fd), static_cast<size_t>(info.st_size));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  TANDEM_ASSIGN(auto file, open_regular(path));
  if (file.second == 0) return fail(ErrorCode::kCorruptData, path.string() + ": is empty");
  void* p = ::mmap(nullptr, file.second, PROT_READ, MAP_PRIVATE, file.first.get(), 0);
  if (p == MAP_FAILED) return fail(io_error(path, "cannot map"));
  const std::span bytes(static_cast<const std::byte*>(p), file.second);
  guard_mapping(bytes, path);
  return MappedFile(bytes);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap(bytes_);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

MappedFile::~MappedFile() { unmap(bytes_); }

void MappedFile::read_ahead() const {
  if (!bytes_.empty())
    ::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_WILLNEED);
}

void MappedFile::release_pages() const {
  if (!bytes_.empty())
    ::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit) {
  TANDEM_ASSIGN(auto file, open_regular(path));
  if (file.second > limit)
    return fail(ErrorCode::kCorruptData, path.string() + ": is " + std::to_string(file.second) +
                                             " bytes, more than the " + std::to_string(limit) +
                                             " such a file may have");
  std::string text(file.second, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(file.first.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(io_error(path, "cannot read"));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

}  // namespace tandem::model

#include "common/transport/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace tandem::transport {
namespace {

constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;

tl::unexpected<Error> system_error(const char* what) {
  return fail(ErrorCode::kIo,
              "shared memory: cannot " + std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

Result<Segment> Segment::create(size_t bytes) {
  Segment segment;
  segment.file_ = Fd(memfd_create("tandem-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!segment.file_) return system_error("create a file for it");
  if (ftruncate(segment.file_.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(segment.file_.get(), F_ADD_SEALS, kFixedSize | F_SEAL_SEAL) != 0) {
    return system_error("fix its size");
  }
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                        segment.file_.get(), 0);
  if (at == MAP_FAILED) return system_error("map it");
  segment.bytes_ = {static_cast<std::byte*>(at), bytes};
  return segment;
}

Result<Segment> Segment::map(const Fd& file, size_t most) {
  struct stat about {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kFixedSize) != kFixedSize || fstat(file.get(), &about) != 0 ||
      about.st_size <= 0 || static_cast<size_t>(about.st_size) > most) {
    return fail(ErrorCode::kCorruptData, "shared memory: a peer's is not of a fixed, sane size");
  }
  const auto bytes = static_cast<size_t>(about.st_size);
  void* const at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) return system_error("map a peer's");
  Segment segment;
  segment.bytes_ = {static_cast<std::byte*>(at), bytes};
  return segment;
}

Result<Fd> Segment::file() const {
  Fd copy(fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return system_error("hand it on");
  return copy;
}

Segment::Segment(Segment&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), file_(std::move(other.file_)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(file_, other.file_);
  return *this;
}

Segment::~Segment() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace tandem::transport

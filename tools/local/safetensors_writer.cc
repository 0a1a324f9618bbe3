#include "tools/local/safetensors_writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

namespace tandem::local {
namespace {

tl::unexpected<Error> io_error(const std::string& path, const char* what) {
  return fail(ErrorCode::kIo, std::string(what) + " " + path + ": " + std::strerror(errno));
}

// Where the bytes go until the file is whole. What is no regular file (/dev/null, /dev/stdout, a
// pipe) is written as it is: a rename would put a file in its place.
std::string part_of(const std::string& path) {
  struct stat there {};
  const bool special = ::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode);
  return special ? path : path + ".part";
}

}  // namespace

static_assert(std::endian::native == std::endian::little, "the file holds little-endian numbers");

Result<MatrixWriter> MatrixWriter::create(const std::string& path, const std::string& tensor,
                                          uint64_t rows, uint64_t cols) {
  const std::string part = part_of(path);
  std::unique_ptr<std::FILE, Closer> file(std::fopen(part.c_str(), "wb"));
  if (!file) return io_error(part, "cannot create");
  std::string header = "{\"" + tensor + "\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(rows) +
                       "," + std::to_string(cols) + "],\"data_offsets\":[0," +
                       std::to_string(rows * cols * sizeof(float)) + "]}}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // data begins aligned
  const uint64_t size = header.size();
  if (std::fwrite(&size, sizeof(size), 1, file.get()) != 1 ||
      std::fwrite(header.data(), 1, header.size(), file.get()) != header.size()) {
    return io_error(part, "cannot write");
  }
  return MatrixWriter(path, part, std::move(file), rows * cols);
}

Status MatrixWriter::append(std::span<const float> values) {
  if (values.size() > missing_)
    return fail(ErrorCode::kInternal, path_ + ": more values than stated");
  if (std::fwrite(values.data(), sizeof(float), values.size(), file_.get()) != values.size()) {
    return abandon("cannot write");
  }
  missing_ -= values.size();
  return {};
}

Status MatrixWriter::finish() {
  if (missing_ != 0) return fail(ErrorCode::kInternal, path_ + ": fewer values than stated");
  if (std::fclose(file_.release()) != 0) return abandon("cannot write");
  if (part_ != path_ && std::rename(part_.c_str(), path_.c_str()) != 0)
    return abandon("cannot rename");
  return {};
}

tl::unexpected<Error> MatrixWriter::abandon(const char* what) {
  auto error = io_error(part_, what);
  if (part_ != path_) ::unlink(part_.c_str());
  return error;
}

}  // namespace tandem::local

#include "tools/local/safetensors_writer.h"

#include <bit>
#include <cerrno>
#include <cstring>

namespace tandem::local {
namespace {

tl::unexpected<Error> io_error(const std::string& path, const char* what) {
  return fail(ErrorCode::kIo, std::string(what) + " " + path + ": " + std::strerror(errno));
}

std::string part_of(const std::string& path) { return path + ".part"; }

}  // namespace

static_assert(std::endian::native == std::endian::little, "the file holds little-endian numbers");

Result<MatrixWriter> MatrixWriter::create(const std::string& path, const std::string& tensor,
                                          uint64_t rows, uint64_t cols) {
  std::unique_ptr<std::FILE, Closer> file(std::fopen(part_of(path).c_str(), "wb"));
  if (!file) return io_error(part_of(path), "cannot create");
  std::string header = "{\"" + tensor + "\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(rows) +
                       "," + std::to_string(cols) + "],\"data_offsets\":[0," +
                       std::to_string(rows * cols * sizeof(float)) + "]}}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // data begins aligned
  const uint64_t size = header.size();
  if (std::fwrite(&size, sizeof(size), 1, file.get()) != 1 ||
      std::fwrite(header.data(), 1, header.size(), file.get()) != header.size()) {
    return io_error(part_of(path), "cannot write");
  }
  return MatrixWriter(path, std::move(file), rows * cols);
}

Status MatrixWriter::append(std::span<const float> values) {
  if (values.size() > missing_)
    return fail(ErrorCode::kInternal, path_ + ": more values than stated");
  if (std::fwrite(values.data(), sizeof(float), values.size(), file_.get()) != values.size()) {
    return io_error(part_of(path_), "cannot write");
  }
  missing_ -= values.size();
  return {};
}

Status MatrixWriter::finish() {
  if (missing_ != 0) return fail(ErrorCode::kInternal, path_ + ": fewer values than stated");
  if (std::fclose(file_.release()) != 0) return io_error(part_of(path_), "cannot write");
  if (std::rename(part_of(path_).c_str(), path_.c_str()) != 0)
    return io_error(path_, "cannot rename");
  return {};
}

}  // namespace tandem::local

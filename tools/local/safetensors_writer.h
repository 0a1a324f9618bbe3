#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "common/base/result.h"

namespace tandem::local {

// Writes one float32 matrix as a safetensors file, row by row: the matrix never has to be in
// memory. Appears under its name only when finished, unless that name is a device or a pipe.
class MatrixWriter {
 public:
  [[nodiscard]] static Result<MatrixWriter> create(const std::string& path,
                                                   const std::string& tensor, uint64_t rows,
                                                   uint64_t cols);
  // The next values, in row-major order.
  [[nodiscard]] Status append(std::span<const float> values);
  // kInternal unless rows * cols values came.
  [[nodiscard]] Status finish();

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  MatrixWriter(std::string path, std::string part, std::unique_ptr<std::FILE, Closer> file,
               uint64_t values)
      : path_(std::move(path)), part_(std::move(part)), file_(std::move(file)), missing_(values) {}
  // Takes back what was written; the error tells errno.
  [[nodiscard]] tl::unexpected<Error> abandon(const char* what);

  std::string path_;
  std::string part_;  // of a special file: path_ itself
  std::unique_ptr<std::FILE, Closer> file_;
  uint64_t missing_;  // values still to come
};

}  // namespace tandem::local

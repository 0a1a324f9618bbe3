#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "common/base/result.h"

namespace tandem::local {

// Writes one float32 matrix as a safetensors file, row by row: the matrix never has to be in
// memory. Appears under its name only when finished.
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
  MatrixWriter(std::string path, std::unique_ptr<std::FILE, Closer> file, uint64_t values)
      : path_(std::move(path)), file_(std::move(file)), missing_(values) {}

  std::string path_;
  std::unique_ptr<std::FILE, Closer> file_;
  uint64_t missing_;  // values still to come
};

}  // namespace tandem::local

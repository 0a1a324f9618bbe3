#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "common/base/result.h"

namespace tandem::model {

// A whole regular file, mapped read-only. Move-only; pages are shared with every other process that
// maps the file. Model files must not shrink in use: reading past a later truncation ends the
// process, naming the file (mapping_guard.h).
class MappedFile {
 public:
  [[nodiscard]] static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  // Hints; failure changes speed only and is ignored.
  void read_ahead() const;
  void release_pages() const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

// The content of a small text file; kIo if it cannot be read, kCorruptData if larger than `limit`.
[[nodiscard]] Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit);

}  // namespace tandem::model

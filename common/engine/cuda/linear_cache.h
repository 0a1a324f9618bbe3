#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tandem::engine {

// One matrix product as far as choosing an algorithm goes.
struct WideKey {
  uint32_t kind = 0;  // WideOutput
  int64_t in = 0;
  int64_t out = 0;
  uint32_t rows = 0;  // the bucket
  friend auto operator<=>(const WideKey&, const WideKey&) = default;
};

// What cuBLASLt calls an algorithm: opaque, valid for the library version that made it.
using WideAlgorithm = std::array<uint64_t, 8>;

// The fastest algorithms found so far, kept in a text file between runs. The file names the card
// and the library version it is for; what does not fit, or does not add up, is as good as no file.
// Plain C++, not thread-safe.
class WideCache {
 public:
  struct Identity {
    std::string gpu;       // "NVIDIA H200"
    size_t version = 0;    // cublasLtGetVersion()
    size_t workspace = 0;  // bytes an algorithm may use
  };

  explicit WideCache(Identity identity) : identity_(std::move(identity)) {}

  // Replaces the entries by those of the file. A missing file is not an error; one that is corrupt
  // or made for another card, library or workspace is, and leaves the cache empty: say so and go
  // on.
  [[nodiscard]] Status load(const std::string& path);
  // Replaces the file in one step; makes its folder if that is missing.
  [[nodiscard]] Status save(const std::string& path) const;

  [[nodiscard]] std::optional<WideAlgorithm> find(const WideKey& key) const;
  void put(const WideKey& key, const WideAlgorithm& algorithm) { entries_[key] = algorithm; }
  [[nodiscard]] size_t size() const { return entries_.size(); }

  [[nodiscard]] std::string serialize() const;

 private:
  Identity identity_;
  std::map<WideKey, WideAlgorithm> entries_;
};

// The file in `folder` for that card ("NVIDIA H200"), driver (the CUDA that it speaks) and
// cublasLtGetVersion(): "FOLDER/cublaslt-nvidia-h200-13.0-130100.txt". Empty without a folder.
[[nodiscard]] std::string wide_cache_path(const std::string& folder, std::string_view gpu,
                                          std::string_view driver, size_t version);

// Row counts that share an algorithm: 32, 64, 96, 128, then steps of a quarter to a half of the
// power of two below.
[[nodiscard]] uint32_t wide_bucket(uint32_t rows);

}  // namespace tandem::engine

#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/temp_folder.h"

namespace tandem::testing {

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Replaces the first `from`, which must be there.
inline std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) return "replacement not found";
  return text.replace(at, from.size(), to);
}

template <typename T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof bytes);
}

inline std::string safetensors_file(std::string_view header, std::string_view data) {
  std::string out;
  put<uint64_t>(out, header.size());
  return out.append(header).append(data);
}

// Writes GGUF bytes field by field, right or wrong.
class GgufBuilder {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;
  // Counts to claim instead of the true ones.
  int64_t claim_tensors = -1;
  int64_t claim_values = -1;

  static void put_string(std::string& out, std::string_view s) {
    put<uint64_t>(out, s.size());
    out.append(s);
  }
  template <typename T>
  GgufBuilder& scalar(std::string_view key, uint32_t type, T value) {
    begin(key, type);
    put(values_, value);
    return *this;
  }
  GgufBuilder& u32(std::string_view key, uint32_t v) { return scalar(key, 4, v); }
  GgufBuilder& f32(std::string_view key, float v) { return scalar(key, 6, v); }
  GgufBuilder& string(std::string_view key, std::string_view v) {
    begin(key, 8);
    put_string(values_, v);
    return *this;
  }
  GgufBuilder& strings(std::string_view key, const std::vector<std::string>& v) {
    begin(key, 9);
    put<uint32_t>(values_, 8);
    put<uint64_t>(values_, v.size());
    for (const auto& s : v) put_string(values_, s);
    return *this;
  }
  // Any bytes as the value of a key.
  GgufBuilder& raw(std::string_view key, uint32_t type, std::string_view bytes) {
    begin(key, type);
    values_.append(bytes);
    return *this;
  }

  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // innermost first, as in the file
    uint32_t type = 0;
    std::string data;
    int64_t offset = -1;  // to claim; -1: the true one
  };
  std::vector<Tensor> tensors;

  [[nodiscard]] std::string build() const {
    std::string out = "GGUF";
    put(out, version);
    put<uint64_t>(out, claim_tensors >= 0 ? static_cast<uint64_t>(claim_tensors) : tensors.size());
    put<uint64_t>(out, claim_values >= 0 ? static_cast<uint64_t>(claim_values) : count_);
    out += values_;
    std::string data;
    for (const Tensor& t : tensors) {
      put_string(out, t.name);
      put<uint32_t>(out, static_cast<uint32_t>(t.dims.size()));
      for (const uint64_t d : t.dims) put(out, d);
      put(out, t.type);
      pad(data);
      put<uint64_t>(out, t.offset >= 0 ? static_cast<uint64_t>(t.offset) : data.size());
      data += t.data;
    }
    pad(out);
    return out + data;
  }

 private:
  void begin(std::string_view key, uint32_t type) {
    put_string(values_, key);
    put(values_, type);
    ++count_;
  }
  void pad(std::string& s) const {
    while (s.size() % alignment != 0) s += '\0';
  }
  std::string values_;
  uint64_t count_ = 0;
};

}  // namespace tandem::testing

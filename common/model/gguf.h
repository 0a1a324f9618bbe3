#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "common/base/result.h"
#include "common/model/host_tensor.h"

namespace tandem::model {

// Value types of GGUF metadata, numbered as in the format.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
[[nodiscard]] std::string_view to_string(GgufType t);

// An array as it lies in the file: bounds are checked, elements are decoded when asked for.
struct GgufArray {
  GgufType type = GgufType::kU8;
  uint64_t count = 0;
  std::span<const std::byte> bytes;
};

// Integers are widened: unsigned to uint64_t, signed to int64_t; `type` keeps what was written.
struct GgufValue {
  GgufType type = GgufType::kU8;
  std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray> value;
};

struct GgufTensor {
  std::string name;
  uint32_t type_number = 0;         // as written
  std::optional<StorageType> type;  // empty: a type that is not read here
  std::vector<int64_t> shape;       // outermost first (the file writes innermost first)
  std::span<const std::byte> bytes;
};
// "Q4_K" for 12; the number for an unknown one.
[[nodiscard]] std::string ggml_type_name(uint32_t type_number);

// One GGUF file (github.com/ggml-org/ggml, docs/gguf.md), versions 2 and 3, little-endian. Views
// into the bytes it was parsed from, which must outlive it.
class GgufFile {
 public:
  // Checks every count, length, offset, type, duplicate name, overlap and gap. `name` is for
  // errors.
  [[nodiscard]] static Result<GgufFile> parse(std::span<const std::byte> file,
                                              std::string_view name);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] uint32_t version() const { return version_; }
  [[nodiscard]] const std::vector<GgufTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const GgufValue* find(std::string_view key) const;

  // Typed reads: absent gives nullopt, another type an error naming file and key. Integers accept
  // any integer type that holds the value, numbers any float or integer.
  [[nodiscard]] Result<std::optional<int64_t>> integer(std::string_view key) const;
  [[nodiscard]] Result<std::optional<uint32_t>> u32(std::string_view key, uint32_t low,
                                                    uint32_t high) const;
  [[nodiscard]] Result<std::optional<double>> number(std::string_view key) const;
  [[nodiscard]] Result<std::optional<bool>> boolean(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::string_view>> string(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::vector<std::string_view>>> strings(
      std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::vector<int64_t>>> integers(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::vector<float>>> floats(std::string_view key) const;
  // Elements of an array, 0 if the key is absent or no array.
  [[nodiscard]] uint64_t array_count(std::string_view key) const;

  [[nodiscard]] Error error(ErrorCode code, std::string_view key, std::string_view what) const;

 private:
  friend class GgufParser;
  [[nodiscard]] Result<const GgufArray*> array(std::string_view key) const;

  std::string name_;
  uint32_t version_ = 0;
  std::unordered_map<std::string_view, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace tandem::model

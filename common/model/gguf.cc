#include "common/model/gguf.h"

#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "common/model/bounded.h"

namespace tandem::model {
namespace {

// Reads a scalar that the parser has bounds-checked.
template <typename T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

size_t scalar_bytes(GgufType t) {
  switch (t) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

std::optional<int64_t> as_integer(const GgufValue& v) {
  if (const auto* u = std::get_if<uint64_t>(&v.value); u != nullptr && *u <= INT64_MAX)
    return static_cast<int64_t>(*u);
  if (const auto* i = std::get_if<int64_t>(&v.value); i != nullptr) return *i;
  return std::nullopt;
}

std::optional<int64_t> integer_at(GgufType t, const std::byte* p) {
  switch (t) {
    case GgufType::kU8:
      return load<uint8_t>(p);
    case GgufType::kI8:
      return load<int8_t>(p);
    case GgufType::kU16:
      return load<uint16_t>(p);
    case GgufType::kI16:
      return load<int16_t>(p);
    case GgufType::kU32:
      return load<uint32_t>(p);
    case GgufType::kI32:
      return load<int32_t>(p);
    case GgufType::kI64:
      return load<int64_t>(p);
    case GgufType::kU64: {
      const auto v = load<uint64_t>(p);
      return v <= INT64_MAX ? std::optional(static_cast<int64_t>(v)) : std::nullopt;
    }
    case GgufType::kF32:
    case GgufType::kBool:
    case GgufType::kString:
    case GgufType::kArray:
    case GgufType::kF64:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(GgufType t) {
  switch (t) {
    case GgufType::kU8:
      return "u8";
    case GgufType::kI8:
      return "i8";
    case GgufType::kU16:
      return "u16";
    case GgufType::kI16:
      return "i16";
    case GgufType::kU32:
      return "u32";
    case GgufType::kI32:
      return "i32";
    case GgufType::kF32:
      return "f32";
    case GgufType::kBool:
      return "bool";
    case GgufType::kString:
      return "string";
    case GgufType::kArray:
      return "array";
    case GgufType::kU64:
      return "u64";
    case GgufType::kI64:
      return "i64";
    case GgufType::kF64:
      return "f64";
  }
  return "unknown";
}

std::string ggml_type_name(uint32_t n) {
  static constexpr std::string_view kNames[] = {
      "F32",     "F16",    "Q4_0",    "Q4_1",  "Q4_2",   "Q4_3",  "Q5_0",  "Q5_1",
      "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
      "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
      "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16"};
  if (n < std::size(kNames)) return std::string(kNames[n]);
  return "number " + std::to_string(n);
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

Error GgufFile::error(ErrorCode code, std::string_view key, std::string_view what) const {
  return make_error(code, name_ + ": " + std::string(key) + " " + std::string(what),
                    std::string(key));
}

Result<std::optional<int64_t>> GgufFile::integer(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::nullopt;
  if (const auto i = as_integer(*v)) return *i;
  return fail(error(ErrorCode::kCorruptData, key,
                    "must be a whole number, is of type " + std::string(to_string(v->type))));
}

Result<std::optional<uint32_t>> GgufFile::u32(std::string_view key, uint32_t low,
                                              uint32_t high) const {
  return bounded_u32(*this, key, low, high);
}

Result<std::optional<double>> GgufFile::number(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::nullopt;
  if (const auto* d = std::get_if<double>(&v->value); d != nullptr) return *d;
  if (const auto i = as_integer(*v)) return static_cast<double>(*i);
  return fail(error(ErrorCode::kCorruptData, key,
                    "must be a number, is of type " + std::string(to_string(v->type))));
}

Result<std::optional<bool>> GgufFile::boolean(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::nullopt;
  if (const auto* b = std::get_if<bool>(&v->value); b != nullptr) return *b;
  return fail(error(ErrorCode::kCorruptData, key,
                    "must be a bool, is of type " + std::string(to_string(v->type))));
}

Result<std::optional<std::string_view>> GgufFile::string(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return std::nullopt;
  if (const auto* s = std::get_if<std::string_view>(&v->value); s != nullptr) return *s;
  return fail(error(ErrorCode::kCorruptData, key,
                    "must be a string, is of type " + std::string(to_string(v->type))));
}

Result<const GgufArray*> GgufFile::array(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return nullptr;
  if (const auto* a = std::get_if<GgufArray>(&v->value); a != nullptr) return a;
  return fail(error(ErrorCode::kCorruptData, key,
                    "must be an array, is of type " + std::string(to_string(v->type))));
}

Result<std::optional<std::vector<std::string_view>>> GgufFile::strings(std::string_view key) const {
  TANDEM_ASSIGN(const GgufArray* a, array(key));
  if (a == nullptr) return std::nullopt;
  if (a->type != GgufType::kString)
    return fail(error(ErrorCode::kCorruptData, key, "must be an array of strings"));
  std::vector<std::string_view> out;
  out.reserve(a->count);
  const std::byte* p = a->bytes.data();
  for (uint64_t i = 0; i < a->count; ++i) {
    const auto n = load<uint64_t>(p);
    out.emplace_back(reinterpret_cast<const char*>(p + 8), n);
    p += 8 + n;
  }
  return out;
}

Result<std::optional<std::vector<int64_t>>> GgufFile::integers(std::string_view key) const {
  TANDEM_ASSIGN(const GgufArray* a, array(key));
  if (a == nullptr) return std::nullopt;
  std::vector<int64_t> out;
  out.reserve(a->type == GgufType::kString || a->type == GgufType::kArray ? 0 : a->count);
  for (uint64_t i = 0; i < a->count; ++i) {
    const auto v = integer_at(a->type, a->bytes.data() + i * scalar_bytes(a->type));
    if (!v) return fail(error(ErrorCode::kCorruptData, key, "must be an array of whole numbers"));
    out.push_back(*v);
  }
  return out;
}

Result<std::optional<std::vector<float>>> GgufFile::floats(std::string_view key) const {
  TANDEM_ASSIGN(const GgufArray* a, array(key));
  if (a == nullptr) return std::nullopt;
  if (a->type != GgufType::kF32)
    return fail(error(ErrorCode::kCorruptData, key, "must be an array of f32"));
  std::vector<float> out(a->count);
  std::memcpy(out.data(), a->bytes.data(), a->bytes.size());
  return out;
}

uint64_t GgufFile::array_count(std::string_view key) const {
  const GgufValue* v = find(key);
  if (v == nullptr) return 0;
  const auto* a = std::get_if<GgufArray>(&v->value);
  return a == nullptr ? 0 : a->count;
}

}  // namespace tandem::model

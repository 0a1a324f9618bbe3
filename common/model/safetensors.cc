#include "common/model/safetensors.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cstring>

#include "common/model/json.h"

namespace tandem::model {
namespace {

namespace json = boost::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // the reference reader's limit
constexpr size_t kMaxSafetensorsDims = 8;

struct DtypeRow {
  std::string_view name;
  uint64_t bits;
  std::optional<StorageType> type;
};
constexpr DtypeRow kDtypes[] = {
    {"F32", 32, StorageType::kF32},
    {"F16", 16, StorageType::kF16},
    {"BF16", 16, StorageType::kBf16},
    {"F64", 64, {}},
    {"I64", 64, {}},
    {"U64", 64, {}},
    {"C64", 64, {}},
    {"I32", 32, {}},
    {"U32", 32, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"I8", 8, {}},
    {"U8", 8, {}},
    {"BOOL", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
};

struct Parser {
  std::string_view file;
  uint64_t data_bytes;

  [[nodiscard]] tl::unexpected<Error> bad(std::string_view tensor, std::string what) const {
    return fail(ErrorCode::kCorruptData, std::string(file) + ": tensor " +
                                             std::string(tensor.substr(0, 200)) + ": " +
                                             std::move(what));
  }

  Result<std::vector<int64_t>> shape(std::string_view name, const json::object& o,
                                     uint64_t& elements) const {
    const json::value* v = o.if_contains("shape");
    if (v == nullptr || !v->is_array()) return bad(name, "shape must be an array of sizes");
    if (v->get_array().size() > kMaxSafetensorsDims)
      return bad(name, "has " + std::to_string(v->get_array().size()) + " dimensions, more than 8");
    std::vector<int64_t> dims;
    elements = 1;
    for (const json::value& d : v->get_array()) {
      if (!d.is_int64() || d.get_int64() < 0)
        return bad(name, "shape " + excerpt(*v) + " must hold whole numbers from 0");
      if (__builtin_mul_overflow(elements, static_cast<uint64_t>(d.get_int64()), &elements) ||
          elements > (uint64_t{1} << 58))
        return bad(name, "shape " + excerpt(*v) + " has more elements than any file can hold");
      dims.push_back(d.get_int64());
    }
    return dims;
  }

  Result<std::pair<uint64_t, uint64_t>> offsets(std::string_view name,
                                                const json::object& o) const {
    const json::value* v = o.if_contains("data_offsets");
    if (v == nullptr || !v->is_array() || v->get_array().size() != 2)
      return bad(name, "data_offsets must be an array of two offsets");
    uint64_t ends[2] = {};
    for (size_t i = 0; i < 2; ++i) {
      const json::value& e = v->get_array()[i];
      if (!e.is_int64() || e.get_int64() < 0)
        return bad(name, "data_offsets " + excerpt(*v) + " must hold whole numbers from 0");
      ends[i] = static_cast<uint64_t>(e.get_int64());
    }
    if (ends[0] > ends[1] || ends[1] > data_bytes)
      return bad(name, "data_offsets " + excerpt(*v) + " lie outside the " +
                           std::to_string(data_bytes) + " bytes of data");
    return std::pair(ends[0], ends[1]);
  }

  Result<SafetensorsEntry> entry(std::string_view name, const json::value& value,
                                 std::span<const std::byte> data) const {
    if (!value.is_object()) return bad(name, "must be an object, is " + excerpt(value));
    const json::object& o = value.get_object();
    const json::value* dtype = o.if_contains("dtype");
    if (dtype == nullptr || !dtype->is_string()) return bad(name, "dtype must be a string");
    const std::string_view dtype_name(dtype->get_string().data(), dtype->get_string().size());
    const auto* row = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                   [&](const DtypeRow& r) { return r.name == dtype_name; });
    if (row == std::end(kDtypes))
      return bad(name, "dtype " + excerpt(*dtype) + " is not one of the format's");
    uint64_t elements = 0;
    TANDEM_ASSIGN(auto dims, shape(name, o, elements));
    TANDEM_ASSIGN(const auto range, offsets(name, o));
    const uint64_t bits =
        elements * row->bits;  // elements <= 2^58, bits <= 2^64 only for F64: checked
    if (elements > (uint64_t{1} << 57) || bits % 8 != 0 || bits / 8 != range.second - range.first)
      return bad(name, "dtype " + std::string(dtype_name) + " and shape " +
                           excerpt(*o.if_contains("shape")) + " need " + std::to_string(bits / 8) +
                           " bytes, data_offsets give " +
                           std::to_string(range.second - range.first));
    return SafetensorsEntry{std::string(name), std::string(dtype_name), row->type, std::move(dims),
                            data.subspan(range.first, range.second - range.first)};
  }
};

}  // namespace

Result<std::vector<SafetensorsEntry>> parse_safetensors(std::span<const std::byte> file,
                                                        std::string_view name) {
  const auto corrupt = [&](std::string what) {
    return fail(ErrorCode::kCorruptData, std::string(name) + ": " + std::move(what));
  };
  if (file.size() < 8) return corrupt("is too short to be a safetensors file");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  if (header_bytes > kMaxHeader)
    return corrupt("claims a header of " + std::to_string(header_bytes) +
                   " bytes, more than the format's 100 MB");
  if (header_bytes > file.size() - 8)
    return corrupt("is truncated: header of " + std::to_string(header_bytes) +
                   " bytes in a file of " + std::to_string(file.size()));
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, header_bytes);
  TANDEM_ASSIGN(const json::value root, parse_json(text, std::string(name) + " (header)"));
  if (!root.is_object()) return corrupt("header must be a JSON object");

  const auto data = file.subspan(8 + header_bytes);
  const Parser parser{name, data.size()};
  std::vector<SafetensorsEntry> entries;
  entries.reserve(root.get_object().size());
  for (const auto& [key, value] : root.get_object()) {
    if (key == "__metadata__") continue;
    TANDEM_ASSIGN(auto entry, parser.entry({key.data(), key.size()}, value, data));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
  });
  const std::byte* next = data.data();
  for (const auto& e : entries) {
    if (e.bytes.data() < next) return parser.bad(e.name, "overlaps the tensor before it");
    if (e.bytes.data() > next) return parser.bad(e.name, "leaves a gap before it");
    next = e.bytes.data() + e.bytes.size();
  }
  if (next != data.data() + data.size())
    return corrupt("has " + std::to_string(data.data() + data.size() - next) +
                   " bytes of data that no tensor claims; is it truncated or two files in one?");
  return entries;
}

}  // namespace tandem::model

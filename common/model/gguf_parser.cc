// The reading side of gguf.h: everything a file claims is checked against what is there before use.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include "common/model/gguf.h"

namespace tandem::model {
namespace {

constexpr uint32_t kMagic = 0x46554747;   // "GGUF"
constexpr uint64_t kMaxKeyBytes = 65535;  // the format's limit
constexpr uint64_t kMaxTensorName = 4096;
constexpr uint32_t kMaxGgufDims = 4;
constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
// Smallest encodings, so that a lying count is refused before anything is reserved for it.
constexpr uint64_t kMinValueBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

struct GgmlLayout {
  uint32_t number;
  StorageType type;
  uint64_t block;  // values
};
constexpr GgmlLayout kLayouts[] = {
    {0, StorageType::kF32, 1},   {1, StorageType::kF16, 1},   {30, StorageType::kBf16, 1},
    {2, StorageType::kQ4_0, 32}, {3, StorageType::kQ4_1, 32}, {8, StorageType::kQ8_0, 32},
};

}  // namespace

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> file, std::string_view name) : file_(file) {
    out_.name_ = name;
  }

  Result<GgufFile> run() {
    TANDEM_TRY(header());
    TANDEM_TRY(metadata());
    TANDEM_TRY(alignment());
    TANDEM_TRY(tensor_table());
    TANDEM_TRY(place_tensors());
    return std::move(out_);
  }

 private:
  [[nodiscard]] tl::unexpected<Error> corrupt(std::string what) const {
    return fail(ErrorCode::kCorruptData, out_.name_ + ": " + std::move(what));
  }
  [[nodiscard]] tl::unexpected<Error> truncated(const char* where) const {
    return corrupt(std::string("is truncated or corrupt: ") + where + " at byte " +
                   std::to_string(at_) + " runs past the end of " + std::to_string(file_.size()) +
                   " bytes");
  }
  [[nodiscard]] uint64_t left() const { return file_.size() - at_; }

  template <typename T>
  bool take(T& v) {
    if (left() < sizeof(T)) return false;
    std::memcpy(&v, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }

  Result<std::string_view> take_string(uint64_t most, const char* where) {
    uint64_t n = 0;
    if (!take(n)) return truncated(where);
    if (n > most)
      return corrupt(std::string(where) + " at byte " + std::to_string(at_ - 8) + " claims " +
                     std::to_string(n) + " bytes");
    if (n > left()) return truncated(where);
    const std::string_view s(reinterpret_cast<const char*>(file_.data()) + at_, n);
    at_ += n;
    return s;
  }

  Status header() {
    uint32_t magic = 0;
    uint32_t version = 0;
    if (!take(magic) || magic != kMagic) return corrupt("is not a GGUF file (wrong magic)");
    if (!take(version)) return truncated("the version");
    if ((version & 0xffffu) == 0 && version != 0)
      return fail(ErrorCode::kUnsupported,
                  out_.name_ + ": is a big-endian GGUF file, which is not supported");
    if (version != 2 && version != 3)
      return fail(ErrorCode::kUnsupported, out_.name_ + ": GGUF version " +
                                               std::to_string(version) +
                                               " is not supported; 2 and 3 are");
    out_.version_ = version;
    if (!take(tensor_count_) || !take(value_count_)) return truncated("the header");
    if (value_count_ > left() / kMinValueBytes)
      return corrupt("claims " + std::to_string(value_count_) + " metadata entries in " +
                     std::to_string(file_.size()) + " bytes");
    if (tensor_count_ > left() / kMinTensorBytes)
      return corrupt("claims " + std::to_string(tensor_count_) + " tensors in " +
                     std::to_string(file_.size()) + " bytes");
    return {};
  }

  Status metadata() {
    for (uint64_t i = 0; i < value_count_; ++i) {
      TANDEM_ASSIGN(const auto key, take_string(kMaxKeyBytes, "a metadata key"));
      uint32_t type = 0;
      if (!take(type)) return truncated("a metadata type");
      TANDEM_ASSIGN(auto value, take_value(type, key));
      if (!out_.values_.emplace(key, std::move(value)).second)
        return corrupt("metadata key " + printable(key) + " appears twice");
    }
    return {};
  }

  Result<GgufType> value_type(uint32_t number, std::string_view key) const {
    if (number > static_cast<uint32_t>(GgufType::kF64))
      return corrupt("metadata key " + printable(key) + " has unknown type " +
                     std::to_string(number));
    return static_cast<GgufType>(number);
  }

  Result<GgufValue> take_value(uint32_t number, std::string_view key) {
    TANDEM_ASSIGN(const GgufType type, value_type(number, key));
    GgufValue v;
    v.type = type;
    bool ok = false;
    switch (type) {
      case GgufType::kU8:
        ok = take_as<uint8_t, uint64_t>(v);
        break;
      case GgufType::kI8:
        ok = take_as<int8_t, int64_t>(v);
        break;
      case GgufType::kU16:
        ok = take_as<uint16_t, uint64_t>(v);
        break;
      case GgufType::kI16:
        ok = take_as<int16_t, int64_t>(v);
        break;
      case GgufType::kU32:
        ok = take_as<uint32_t, uint64_t>(v);
        break;
      case GgufType::kI32:
        ok = take_as<int32_t, int64_t>(v);
        break;
      case GgufType::kU64:
        ok = take_as<uint64_t, uint64_t>(v);
        break;
      case GgufType::kI64:
        ok = take_as<int64_t, int64_t>(v);
        break;
      case GgufType::kF32:
        ok = take_as<float, double>(v);
        break;
      case GgufType::kF64:
        ok = take_as<double, double>(v);
        break;
      case GgufType::kBool: {
        uint8_t b = 0;
        ok = take(b);
        if (ok && b > 1)
          return corrupt("metadata key " + printable(key) + " is a bool of value " +
                         std::to_string(b));
        v.value = b == 1;
        break;
      }
      case GgufType::kString: {
        TANDEM_ASSIGN(v.value, take_string(UINT64_MAX, "a metadata string"));
        ok = true;
        break;
      }
      case GgufType::kArray: {
        TANDEM_ASSIGN(v.value, take_array(key, 1));
        ok = true;
        break;
      }
    }
    if (!ok) return truncated("a metadata value");
    return v;
  }

  template <typename Stored, typename Widened>
  bool take_as(GgufValue& v) {
    Stored s{};
    if (!take(s)) return false;
    v.value = static_cast<Widened>(s);
    return true;
  }

  Result<GgufArray> take_array(std::string_view key, int depth) {
    uint32_t number = 0;
    GgufArray a;
    if (!take(number) || !take(a.count)) return truncated("an array");
    TANDEM_ASSIGN(a.type, value_type(number, key));
    const uint64_t begin = at_;
    const auto claims = [&] {
      return corrupt("metadata key " + printable(key) + " claims " + std::to_string(a.count) +
                     " elements, more than the file holds");
    };
    uint64_t smallest = 1;
    switch (a.type) {
      case GgufType::kU8:
      case GgufType::kI8:
      case GgufType::kBool:
        smallest = 1;
        break;
      case GgufType::kU16:
      case GgufType::kI16:
        smallest = 2;
        break;
      case GgufType::kU32:
      case GgufType::kI32:
      case GgufType::kF32:
        smallest = 4;
        break;
      case GgufType::kU64:
      case GgufType::kI64:
      case GgufType::kF64:
        smallest = 8;
        break;
      case GgufType::kString:
        smallest = 8;
        break;
      case GgufType::kArray:
        smallest = 12;
        break;
    }
    if (a.count > left() / smallest) return claims();
    if (a.type == GgufType::kString) {
      for (uint64_t i = 0; i < a.count; ++i)
        TANDEM_TRY(take_string(UINT64_MAX, "an array's string"));
    } else if (a.type == GgufType::kArray) {
      if (depth >= kMaxArrayDepth)
        return corrupt("metadata key " + printable(key) + " nests arrays deeper than 4");
      for (uint64_t i = 0; i < a.count; ++i) TANDEM_TRY(take_array(key, depth + 1));
    } else {
      at_ += a.count * smallest;
    }
    a.bytes = file_.subspan(begin, at_ - begin);
    return a;
  }

  Status alignment() {
    constexpr std::string_view kKey = "general.alignment";
    const GgufValue* v = out_.find(kKey);
    if (v == nullptr) return {};
    if (v->type != GgufType::kU32)
      return fail(out_.error(ErrorCode::kCorruptData, kKey,
                             "must be of type u32, is " + std::string(to_string(v->type))));
    const uint64_t a = std::get<uint64_t>(v->value);
    if (a == 0 || a % 8 != 0 || a > kMaxAlignment)
      return fail(out_.error(ErrorCode::kCorruptData, kKey,
                             "must be a multiple of 8 up to 1048576, is " + std::to_string(a)));
    alignment_ = a;
    return {};
  }

  Status tensor_table() {
    std::unordered_set<std::string_view> names;
    out_.tensors_.reserve(tensor_count_);
    offsets_.reserve(tensor_count_);
    for (uint64_t i = 0; i < tensor_count_; ++i) {
      TANDEM_ASSIGN(const auto name, take_string(kMaxTensorName, "a tensor name"));
      if (!names.insert(name).second)
        return corrupt("tensor " + printable(name) + " appears twice");
      GgufTensor t;
      t.name = name;
      TANDEM_TRY(take_shape(t));
      uint64_t offset = 0;
      if (!take(t.type_number) || !take(offset)) return truncated("a tensor's description");
      TANDEM_TRY(size_tensor(t));
      if (offset % alignment_ != 0)
        return bad(t, "has offset " + std::to_string(offset) +
                          ", not a multiple of the alignment " + std::to_string(alignment_));
      offsets_.push_back(offset);
      out_.tensors_.push_back(std::move(t));
    }
    return {};
  }

  Status take_shape(GgufTensor& t) {
    uint32_t dims = 0;
    if (!take(dims)) return truncated("a tensor's description");
    if (dims < 1 || dims > kMaxGgufDims)
      return bad(t, "has " + std::to_string(dims) + " dimensions; 1 to 4 are possible");
    elements_ = 1;
    for (uint32_t d = 0; d < dims; ++d) {
      uint64_t size = 0;
      if (!take(size)) return truncated("a tensor's shape");
      if (size == 0) return bad(t, "has a dimension of size 0");
      if (__builtin_mul_overflow(elements_, size, &elements_) || elements_ > (uint64_t{1} << 58))
        return bad(t, "has more elements than any file can hold");
      t.shape.insert(t.shape.begin(), static_cast<int64_t>(size));
    }
    return {};
  }

  // Bytes of the tensor just read; 0 for a type that is not read here, which is then never touched.
  Status size_tensor(GgufTensor& t) {
    sizes_.push_back(0);
    for (const GgmlLayout& layout : kLayouts) {
      if (layout.number != t.type_number) continue;
      if (static_cast<uint64_t>(t.shape.back()) % layout.block != 0)
        return bad(t, "has rows of " + std::to_string(t.shape.back()) + " values; " +
                          ggml_type_name(t.type_number) + " needs a multiple of " +
                          std::to_string(layout.block));
      t.type = layout.type;
      sizes_.back() = storage_bytes(layout.type, elements_);
    }
    return {};
  }

  Status place_tensors() {
    const uint64_t start = aligned(at_);
    const uint64_t data = start <= file_.size() ? file_.size() - start : 0;
    for (size_t i = 0; i < offsets_.size(); ++i) {
      const GgufTensor& t = out_.tensors_[i];
      if (offsets_[i] > data || sizes_[i] > data - offsets_[i])
        return bad(t, "needs bytes " + std::to_string(offsets_[i]) + " to " +
                          std::to_string(offsets_[i]) + "+" + std::to_string(sizes_[i]) +
                          " of the data, which has " + std::to_string(data) +
                          "; is the file truncated?");
      if (sizes_[i] > 0) out_.tensors_[i].bytes = file_.subspan(start + offsets_[i], sizes_[i]);
    }
    return check_order(data);
  }

  // Writers put tensors end to end, each padded to the alignment. Anything else means that a type,
  // a shape or an offset is wrong, and that what would be read is not what was written.
  Status check_order(uint64_t data) const {
    std::vector<size_t> order(offsets_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return offsets_[a] < offsets_[b]; });
    uint64_t end = 0;
    bool known = true;  // whether `end` is: not behind a type that is not read here
    std::string before = "the data's beginning";
    for (const size_t i : order) {
      const GgufTensor& t = out_.tensors_[i];
      if (offsets_[i] < end) return bad(t, "overlaps " + before);
      if (known && offsets_[i] != aligned(end))
        return bad(t, "begins " + std::to_string(offsets_[i] - end) + " bytes after " + before +
                          "; the type, shape or offset of one of the two is wrong");
      known = t.type.has_value();
      end = offsets_[i] + sizes_[i];
      before = printable(t.name);
    }
    if (!order.empty() && known && data > aligned(end))
      return corrupt(std::to_string(data - end) + " bytes follow the last tensor, " + before +
                     "; its type or shape is wrong, or the file is damaged");
    return {};
  }

  [[nodiscard]] uint64_t aligned(uint64_t at) const {
    return (at + alignment_ - 1) / alignment_ * alignment_;
  }
  [[nodiscard]] tl::unexpected<Error> bad(const GgufTensor& t, std::string what) const {
    return corrupt("tensor " + printable(t.name) + " " + std::move(what));
  }
  static std::string printable(std::string_view s) {
    std::string out;
    for (const char c : s.substr(0, 120)) out += c >= 0x20 && c < 0x7f ? c : '?';
    return out;
  }

  std::span<const std::byte> file_;
  uint64_t at_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t value_count_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  uint64_t elements_ = 0;  // of the tensor being read
  std::vector<uint64_t> offsets_;
  std::vector<uint64_t> sizes_;
  GgufFile out_;
};

Result<GgufFile> GgufFile::parse(std::span<const std::byte> file, std::string_view name) {
  return GgufParser(file, name).run();
}

}  // namespace tandem::model

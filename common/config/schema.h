#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"

namespace tandem {

// A size in bytes, written with its unit in files: 64MiB.
struct ByteSize {
  uint64_t bytes = 0;
  friend constexpr auto operator<=>(ByteSize, ByteSize) = default;
};
constexpr ByteSize kib(uint64_t n) { return {n << 10}; }
constexpr ByteSize mib(uint64_t n) { return {n << 20}; }
constexpr ByteSize gib(uint64_t n) { return {n << 30}; }

// What is known of a key besides its value. `example` is a value as it stands in a file.
struct FieldInfo {
  std::string_view key;
  std::string_view doc;
  std::string_view example = {};
  bool secret = false;    // never printed unless asked for
  bool required = false;  // empty is refused
};

template <typename T>
struct Bounds {
  T min;
  T max;
};

// Walks the fields of a config struct. Each struct has one function
// `void describe(SchemaVisitor&, Struct&)`; parsing, printing, validation, environment overrides
// and the documentation are visitors, so a key is spelled once. Visitors that only read leave the
// values alone.
class SchemaVisitor {
 public:
  virtual ~SchemaVisitor() = default;

  virtual void boolean(const FieldInfo& info, bool& value) = 0;
  virtual void text(const FieldInfo& info, std::string& value) = 0;
  // A file or folder. Relative ones are resolved against the folder of the file that names them.
  virtual void path(const FieldInfo& info, std::string& value) = 0;
  virtual void number(const FieldInfo& info, double& value, Bounds<double> bounds) = 0;
  virtual void duration(const FieldInfo& info, Duration& value, Bounds<Duration> bounds) = 0;
  virtual void size(const FieldInfo& info, ByteSize& value, Bounds<ByteSize> bounds) = 0;
  virtual void texts(const FieldInfo& info, std::vector<std::string>& values) = 0;
  virtual void paths(const FieldInfo& info, std::vector<std::string>& values) = 0;
  virtual void integers(const FieldInfo& info, std::vector<uint32_t>& values,
                        Bounds<uint64_t> bounds) = 0;

  // Spelled `auto` when empty.
  virtual void number_or_auto(const FieldInfo& info, std::optional<double>& value,
                              Bounds<double> bounds) = 0;
  virtual void integer_or_auto(const FieldInfo& info, std::optional<uint32_t>& value,
                               Bounds<uint64_t> bounds) = 0;

  template <typename T>
  void integer(const FieldInfo& info, T& value, Bounds<uint64_t> bounds) {
    uint64_t wide = value;
    visit_integer(info, wide, bounds);
    value = static_cast<T>(wide);
  }

  // `names[i]` is the spelling of the enumerator with value i.
  template <typename Enum>
  void choice(const FieldInfo& info, Enum& value, std::span<const std::string_view> names) {
    auto index = static_cast<size_t>(value);
    visit_choice(info, index, names);
    value = static_cast<Enum>(index);
  }

  template <typename Struct>
  void section(const FieldInfo& info, Struct& value) {
    begin_section(info);
    describe(*this, value);
    end_section();
  }

  template <typename Struct>
  void list(const FieldInfo& info, std::vector<Struct>& items) {
    const ListPlan plan = begin_list(info, items.size());
    if (plan.replace) items.assign(plan.size, Struct{});
    for (size_t i = 0; i < items.size(); ++i) {
      begin_item(i);
      describe(*this, items[i]);
      end_item();
    }
    end_list();
  }

 protected:
  struct ListPlan {
    bool replace = false;  // start from `size` default elements instead of what is there
    size_t size = 0;
  };
  virtual void visit_integer(const FieldInfo& info, uint64_t& value, Bounds<uint64_t> bounds) = 0;
  virtual void visit_choice(const FieldInfo& info, size_t& index,
                            std::span<const std::string_view> names) = 0;
  virtual void begin_section(const FieldInfo& info) = 0;
  virtual void end_section() = 0;
  virtual ListPlan begin_list(const FieldInfo& info, size_t size) = 0;
  virtual void begin_item(size_t index) = 0;
  virtual void end_item() = 0;
  virtual void end_list() = 0;
};

}  // namespace tandem

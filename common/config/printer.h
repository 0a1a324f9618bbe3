#pragma once

#include <string>
#include <vector>

#include "common/config/schema.h"

namespace tandem {

// Base of the visitors that turn each value into its spelling in a file and look at it there.
class SpellingVisitor : public SchemaVisitor {
 public:
  void boolean(const FieldInfo& info, bool& value) final;
  void text(const FieldInfo& info, std::string& value) final;
  void path(const FieldInfo& info, std::string& value) final;
  void number(const FieldInfo& info, double& value, Bounds<double> bounds) final;
  void number_or_auto(const FieldInfo& info, std::optional<double>& value,
                      Bounds<double> bounds) final;
  void integer_or_auto(const FieldInfo& info, std::optional<uint32_t>& value,
                       Bounds<uint64_t> bounds) final;
  void duration(const FieldInfo& info, Duration& value, Bounds<Duration> bounds) final;
  void size(const FieldInfo& info, ByteSize& value, Bounds<ByteSize> bounds) final;
  void texts(const FieldInfo& info, std::vector<std::string>& values) final;
  void paths(const FieldInfo& info, std::vector<std::string>& values) final;
  void integers(const FieldInfo& info, std::vector<uint32_t>& values,
                Bounds<uint64_t> bounds) final;

 protected:
  // A leaf: its value as YAML, the name of its type and what it may be, in words.
  virtual void leaf(const FieldInfo& info, const std::string& spelling, const std::string& type,
                    const std::string& allowed) = 0;

  void visit_integer(const FieldInfo& info, uint64_t& value, Bounds<uint64_t> bounds) final;
  void visit_choice(const FieldInfo& info, size_t& index,
                    std::span<const std::string_view> names) final;
};

// One that knows the whole key of the value at hand: "router.http.port". How the items of lists are
// spelled in it is its own affair: begin_list() pushes what end_list() takes back.
class KeyedVisitor : public SpellingVisitor {
 protected:
  void begin_section(const FieldInfo& info) final {
    push(std::string(info.key) + ".");
    entered(info);
  }
  void end_section() final { leave(); }
  void end_list() final { leave(); }

  // What follows is inside this section, until left(); of a list, begin_list() says so itself.
  virtual void entered(const FieldInfo&) {}
  virtual void left() {}

  [[nodiscard]] std::string key_of(const FieldInfo& leaf) const {
    return prefix_ + std::string(leaf.key);
  }
  // "router.http", inside it; empty outside of every section.
  [[nodiscard]] std::string section() const {
    return prefix_.substr(0, prefix_.empty() ? 0 : prefix_.size() - 1);
  }
  void push(const std::string& part) {
    lengths_.push_back(prefix_.size());
    prefix_ += part;
  }
  void pop() {
    prefix_.resize(lengths_.back());
    lengths_.pop_back();
  }

 private:
  void leave() {
    left();
    pop();
  }

  std::string prefix_;
  std::vector<size_t> lengths_;
};

}  // namespace tandem

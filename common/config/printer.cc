#include "common/config/printer.h"

#include <charconv>
#include <cstdio>

#include "common/config/config.h"
#include "common/config/units.h"

namespace tandem {
namespace {

// Double-quoted YAML, which holds any text.
std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string quote_all(const std::vector<std::string>& values) {
  std::string spelling = "[";
  for (const auto& value : values) spelling += (spelling.size() > 1 ? ", " : "") + quote(value);
  return spelling + "]";
}

std::string spell(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc{} ? std::string(buffer, end) : "0";
}

class Printer final : public SpellingVisitor {
 public:
  explicit Printer(Secrets secrets) : secrets_(secrets) {}
  std::string take() { return std::move(out_); }

 protected:
  void leaf(const FieldInfo& info, const std::string& spelling, const std::string&,
            const std::string&) override {
    const bool hidden =
        info.secret && secrets_ == Secrets::kHide && spelling != "\"\"" && spelling != "[]";
    if (hidden) {
      // A comment takes no "- " of its own, so it never stands first in a list element.
      out_ += std::string(indent_, ' ') + "# " + std::string(info.key) + ": set, not shown\n";
      return;
    }
    start_line();
    out_ += std::string(info.key) + ": " + spelling + "\n";
  }
  void begin_section(const FieldInfo& info) override {
    start_line();
    out_ += std::string(info.key) + ":\n";
    indent_ += 2;
  }
  void end_section() override { indent_ -= 2; }
  ListPlan begin_list(const FieldInfo& info, size_t size) override {
    start_line();
    out_ += std::string(info.key) + (size == 0 ? ": []\n" : ":\n");
    indent_ += 2;
    return {false, size};
  }
  void begin_item(size_t) override {
    dash_ = true;
    indent_ += 2;
  }
  void end_item() override { indent_ -= 2; }
  void end_list() override { indent_ -= 2; }

 private:
  void start_line() {
    if (dash_) {
      out_ += std::string(indent_ - 2, ' ') + "- ";
      dash_ = false;
    } else {
      out_ += std::string(indent_, ' ');
    }
  }

  const Secrets secrets_;
  std::string out_;
  size_t indent_ = 0;
  bool dash_ = false;
};

class ValueCollector final : public KeyedVisitor {
 public:
  std::map<std::string, std::string, std::less<>> values;

 protected:
  void leaf(const FieldInfo& info, const std::string& spelling, const std::string&,
            const std::string&) override {
    values.emplace(key_of(info), info.secret ? std::string() : spelling);
  }
  ListPlan begin_list(const FieldInfo& info, size_t size) override {
    push(std::string(info.key));
    return {false, size};
  }
  void begin_item(size_t index) override { push("[" + std::to_string(index) + "]."); }
  void end_item() override { pop(); }
};

}  // namespace

void SpellingVisitor::boolean(const FieldInfo& info, bool& value) {
  leaf(info, value ? "true" : "false", "true or false", "");
}

void SpellingVisitor::text(const FieldInfo& info, std::string& value) {
  leaf(info, quote(value), "text", "");
}

void SpellingVisitor::path(const FieldInfo& info, std::string& value) {
  leaf(info, quote(value), "path", "");
}

void SpellingVisitor::number(const FieldInfo& info, double& value, Bounds<double> bounds) {
  leaf(info, spell(value), "number", spell(bounds.min) + " to " + spell(bounds.max));
}

void SpellingVisitor::number_or_auto(const FieldInfo& info, std::optional<double>& value,
                                     Bounds<double> bounds) {
  leaf(info, value ? spell(*value) : "auto", "number",
       "`auto` or " + spell(bounds.min) + " to " + spell(bounds.max));
}

void SpellingVisitor::integer_or_auto(const FieldInfo& info, std::optional<uint32_t>& value,
                                      Bounds<uint64_t> bounds) {
  leaf(info, value ? std::to_string(*value) : "auto", "integer",
       "`auto` or " + std::to_string(bounds.min) + " to " + std::to_string(bounds.max));
}

void SpellingVisitor::duration(const FieldInfo& info, Duration& value, Bounds<Duration> bounds) {
  leaf(info, format_duration(value), "duration",
       format_duration(bounds.min) + " to " + format_duration(bounds.max));
}

void SpellingVisitor::size(const FieldInfo& info, ByteSize& value, Bounds<ByteSize> bounds) {
  leaf(info, format_size(value), "size",
       format_size(bounds.min) + " to " + format_size(bounds.max));
}

void SpellingVisitor::texts(const FieldInfo& info, std::vector<std::string>& values) {
  leaf(info, quote_all(values), "list of text", "");
}

void SpellingVisitor::paths(const FieldInfo& info, std::vector<std::string>& values) {
  leaf(info, quote_all(values), "list of paths", "");
}

void SpellingVisitor::integers(const FieldInfo& info, std::vector<uint32_t>& values,
                               Bounds<uint64_t> bounds) {
  std::string spelling = "[";
  for (const auto value : values) {
    spelling += (spelling.size() > 1 ? ", " : "") + std::to_string(value);
  }
  leaf(info, spelling + "]", "list of integers",
       "each " + std::to_string(bounds.min) + " to " + std::to_string(bounds.max));
}

void SpellingVisitor::visit_integer(const FieldInfo& info, uint64_t& value,
                                    Bounds<uint64_t> bounds) {
  leaf(info, std::to_string(value), "integer",
       std::to_string(bounds.min) + " to " + std::to_string(bounds.max));
}

void SpellingVisitor::visit_choice(const FieldInfo& info, size_t& index,
                                   std::span<const std::string_view> names) {
  std::string allowed;
  for (const auto name : names) {
    allowed += (allowed.empty() ? "`" : ", `") + std::string(name) + "`";
  }
  leaf(info, std::string(names[index]), "choice", allowed);
}

std::map<std::string, std::string, std::less<>> spell_values(const ClusterConfig& config) {
  ValueCollector collector;
  ClusterConfig copy = config;
  describe(collector, copy);
  return std::move(collector.values);
}

std::string print_config(const ClusterConfig& config, Secrets secrets) {
  Printer printer(secrets);
  ClusterConfig copy = config;
  describe(printer, copy);
  return printer.take();
}

}  // namespace tandem

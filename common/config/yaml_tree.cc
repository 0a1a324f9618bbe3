#include "common/config/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "common/base/utf8.h"

namespace tandem {
namespace {

// Thrown through yaml-cpp's parser to stop it; caught in parse_yaml.
struct Refused {
  int line;
  std::string what;
};

size_t count_nodes(const YamlNode& node) {
  size_t count = 1;
  for (const auto& item : node.items) count += count_nodes(item);
  for (const auto& entry : node.entries) count += count_nodes(entry.value);
  return count;
}

size_t depth_of(const YamlNode& node) {
  size_t depth = 0;
  for (const auto& item : node.items) depth = std::max(depth, depth_of(item));
  for (const auto& entry : node.entries) depth = std::max(depth, depth_of(entry.value));
  return depth + 1;
}

class TreeBuilder final : public YAML::EventHandler {
 public:
  YamlNode take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(leaf(mark, YamlNode::Kind::kNull), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto it = anchors_.find(anchor);
    if (it == anchors_.end())
      throw Refused{line_of(mark), "an alias that refers to its own parent"};
    const size_t copied = count_nodes(it->second);
    if (nodes_ + copied > kMaxYamlNodes) throw Refused{line_of(mark), too_many_nodes()};
    if (open_.size() + depth_of(it->second) > kMaxYamlDepth) {
      throw Refused{line_of(mark), too_deep()};
    }
    nodes_ += copied - 1;  // add() counts one
    YamlNode copy = it->second;
    add(std::move(copy), YAML::NullAnchor, line_of(mark));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node = leaf(mark, YamlNode::Kind::kScalar);
    // yaml-cpp tags plain scalars "?" and quoted ones "!".
    node.quoted = tag == "!" || tag == "tag:yaml.org,2002:str";
    node.scalar = value;
    add(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, YamlNode::Kind::kSequence, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, YamlNode::Kind::kMap, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YamlNode node;
    YAML::anchor_t anchor;
    bool has_key = false;  // a map that waits for the value of its last entry
    std::map<std::string, int, std::less<>> key_lines;
  };

  static int line_of(const YAML::Mark& mark) { return mark.line + 1; }
  static std::string too_many_nodes() {
    return "more than " + std::to_string(kMaxYamlNodes) + " values, counting aliases";
  }
  static std::string too_deep() {
    return "nested deeper than " + std::to_string(kMaxYamlDepth) + " levels";
  }
  static YamlNode leaf(const YAML::Mark& mark, YamlNode::Kind kind) {
    YamlNode node;
    node.kind = kind;
    node.line = line_of(mark);
    return node;
  }

  void open(const YAML::Mark& mark, YamlNode::Kind kind, YAML::anchor_t anchor) {
    if (open_.size() >= kMaxYamlDepth) throw Refused{line_of(mark), too_deep()};
    open_.push_back({leaf(mark, kind), anchor, false, {}});
  }

  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    const int line = done.node.line;
    add(std::move(done.node), done.anchor, line);
  }

  void add(YamlNode node, YAML::anchor_t anchor, int line = 0) {
    if (line == 0) line = node.line;
    if (++nodes_ > kMaxYamlNodes) throw Refused{line, too_many_nodes()};
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == YamlNode::Kind::kSequence) {
      parent.node.items.push_back(std::move(node));
    } else if (parent.has_key) {
      parent.node.entries.back().value = std::move(node);
      parent.has_key = false;
    } else {
      add_key(parent, node, line);
    }
  }

  static void add_key(Open& parent, YamlNode& node, int line) {
    if (node.kind != YamlNode::Kind::kScalar) {
      throw Refused{line, "a key that is not a plain word"};
    }
    const auto [it, added] = parent.key_lines.emplace(node.scalar, line);
    if (!added) {
      throw Refused{line, "duplicate key '" + node.scalar + "', already on line " +
                              std::to_string(it->second)};
    }
    parent.node.entries.push_back({std::move(node.scalar), line, {}});
    parent.has_key = true;
  }

  YamlNode root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
  size_t nodes_ = 0;
};

}  // namespace

Result<YamlNode> parse_yaml(std::string_view text, std::string_view source) {
  const auto refuse = [&](int line, const std::string& what) {
    return fail(ErrorCode::kConfig, std::string(source) + ":" + std::to_string(line) + ": " + what);
  };
  if (text.size() > kMaxYamlBytes) {
    return refuse(1, "larger than " + std::to_string(kMaxYamlBytes >> 20) + " MiB");
  }
  int line = 1;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_sequence_length(text.substr(i));
    if (length == 0 || text[i] == '\0') return refuse(line, "is not UTF-8 text");
    if (text[i] == '\n') ++line;
    i += length;
  }
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder;
    if (!parser.HandleNextDocument(builder)) {
      YamlNode empty;
      empty.kind = YamlNode::Kind::kMap;
      empty.line = 1;
      return empty;
    }
    YamlNode root = builder.take_root();
    TreeBuilder rest;
    if (parser.HandleNextDocument(rest)) {
      return refuse(rest.take_root().line, "a second document; one file holds one cluster");
    }
    if (root.kind == YamlNode::Kind::kNull) root.kind = YamlNode::Kind::kMap;
    return root;
  } catch (const Refused& refused) {
    return refuse(refused.line, refused.what);
  } catch (const YAML::Exception& e) {
    return refuse(e.mark.line >= 0 ? e.mark.line + 1 : 1, "not valid YAML: " + e.msg);
  } catch (const std::exception& e) {
    return refuse(1, std::string("not valid YAML: ") + e.what());
  }
}

}  // namespace tandem

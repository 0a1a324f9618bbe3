#include "router/dispatch/compatibility.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "common/proto/control.pb.h"

namespace tandem::router {

namespace {

class Differences {
 public:
  Differences(std::string mine, std::string other)
      : mine_(std::move(mine)), other_(std::move(other)) {}

  template <typename T>
  void compare(std::string_view what, const T& mine, const T& theirs, std::string_view advice) {
    if (mine == theirs) return;
    if (!text_.empty()) text_ += "; ";
    text_ +=
        fmt::format("{} is {} on {} but {} on {} ({})", what, mine, mine_, theirs, other_, advice);
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string mine_, other_, text_;
};

std::string joined(const google::protobuf::RepeatedPtrField<std::string>& names) {
  std::vector<std::string> sorted(names.begin(), names.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted.empty() ? "none" : fmt::format("{}", fmt::join(sorted, ", "));
}

}  // namespace

std::string difference(const control::Hello& hello, const control::Hello& reference,
                       const std::string& other) {
  const control::Compatibility& a = hello.compatibility();
  const control::Compatibility& b = reference.compatibility();
  constexpr std::string_view kModel = "all nodes must load the same model files";
  constexpr std::string_view kKv = "give both nodes the same kv section";
  constexpr std::string_view kBuild = "run the same Tandem version on both";
  Differences d(hello.node_id(), other);
  d.compare("the model fingerprint", a.model_fingerprint(), b.model_fingerprint(), kModel);
  d.compare("the tokenizer hash", a.tokenizer_hash(), b.tokenizer_hash(), kModel);
  d.compare("the vocabulary size", hello.vocab_size(), reference.vocab_size(), kModel);
  d.compare("the weight type", a.dtype(), b.dtype(), "give both nodes the same model.dtype");
  d.compare("the KV format", a.kv_format(), b.kv_format(), kKv);
  d.compare("the KV block size", a.kv_block_tokens(), b.kv_block_tokens(), kKv);
  d.compare("the number of KV layers", a.kv_layers(), b.kv_layers(), kModel);
  d.compare("the number of KV heads", a.kv_heads(), b.kv_heads(), kModel);
  d.compare("the KV head size", a.kv_head_dim(), b.kv_head_dim(), kModel);
  d.compare("the KV codec version", a.kv_codec_version(), b.kv_codec_version(), kBuild);
  d.compare("the transport", hello.transport(), reference.transport(),
            "give both nodes the same transport");
  d.compare("the transport protocol", a.transport_protocol_version(),
            b.transport_protocol_version(), kBuild);
  d.compare("the set of draft models", joined(a.draft_models()), joined(b.draft_models()),
            "give all nodes the same drafts");
  // In order of name: a protobuf map has another one each time.
  const std::map<std::string, std::string> versions(a.library_versions().begin(),
                                                    a.library_versions().end());
  for (const auto& [library, version] : versions) {
    // A library that only one side uses is no disagreement: CPU and GPU nodes mix.
    const auto it = b.library_versions().find(library);
    if (it != b.library_versions().end()) {
      d.compare("the version of " + library, version, it->second, "install the same version");
    }
  }
  return d.take();
}

}  // namespace tandem::router

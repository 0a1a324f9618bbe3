// GGUF files, split ones included. Naming of parts: llama.cpp's gguf-split,
// "<prefix>-00001-of-00003.gguf".
#include <algorithm>
#include <charconv>
#include <cstdio>

#include "common/model/checkpoint_impl.h"
#include "common/model/gguf_model.h"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kMaxParts = 9999;

struct PartName {
  std::string prefix;
  uint32_t number = 0;  // from 1
  uint32_t count = 0;
};

std::optional<PartName> parse_part_name(const std::string& name) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (name.size() <= kPattern.size()) return std::nullopt;
  const std::string_view tail = std::string_view(name).substr(name.size() - kPattern.size());
  const auto digits = [&](size_t at) -> std::optional<uint32_t> {
    uint32_t v = 0;
    const char* end = tail.data() + at + 5;
    const auto r = std::from_chars(tail.data() + at, end, v);
    return r.ec == std::errc{} && r.ptr == end ? std::optional(v) : std::nullopt;
  };
  const auto number = digits(1);
  const auto count = digits(10);
  if (!number || !count || tail[0] != '-' || tail.substr(6, 4) != "-of-" ||
      tail.substr(15) != ".gguf")
    return std::nullopt;
  return PartName{name.substr(0, name.size() - kPattern.size()), *number, *count};
}

std::string part_file_name(const std::string& prefix, uint32_t number, uint32_t count) {
  char tail[40];
  std::snprintf(tail, sizeof tail, "-%05u-of-%05u.gguf", number, count);
  return prefix + tail;
}

struct SplitInfo {
  uint32_t index = 0;  // from 0
  uint32_t count = 0;  // 0 or 1: not split
};

Result<SplitInfo> split_info(const GgufFile& file) {
  TANDEM_ASSIGN(const auto count, file.u32("split.count", 0, kMaxParts));
  TANDEM_ASSIGN(const auto index, file.u32("split.no", 0, kMaxParts));
  SplitInfo info{index.value_or(0), count.value_or(0)};
  if (info.count > 1 && info.index >= info.count)
    return fail(file.error(
        ErrorCode::kCorruptData, "split.no",
        "is " + std::to_string(info.index) + ", split.count " + std::to_string(info.count)));
  return info;
}

Status add_part(const fs::path& path, Checkpoint::Impl& impl) {
  TANDEM_ASSIGN(auto mapped, MappedFile::open(path));
  TANDEM_ASSIGN(auto gguf, GgufFile::parse(mapped.bytes(), path.string()));
  impl.files.push_back(std::move(mapped));
  impl.gguf.push_back(std::move(gguf));
  return {};
}

Status add_other_parts(const fs::path& first, const SplitInfo& info, Checkpoint::Impl& impl) {
  const auto name = parse_part_name(first.filename().string());
  const std::string says = first.string() + ": says it is part " + std::to_string(info.index + 1) +
                           " of " + std::to_string(info.count);
  if (info.index != 0)
    return fail(ErrorCode::kInvalidArgument,
                says + "; open part 1" +
                    (name ? ", " + part_file_name(name->prefix, 1, info.count) : std::string()));
  if (!name || name->number != 1 || name->count != info.count)
    return fail(ErrorCode::kInvalidArgument, says +
                                                 ", but is not named like it, so the other parts "
                                                 "cannot be found; its name must end in " +
                                                 part_file_name("", 1, info.count));
  for (uint32_t i = 1; i < info.count; ++i) {
    const fs::path path = first.parent_path() / part_file_name(name->prefix, i + 1, info.count);
    std::error_code ec;
    if (!fs::exists(path, ec))
      return fail(ErrorCode::kNotFound, path.string() + ": part " + std::to_string(i + 1) + " of " +
                                            std::to_string(info.count) + " is missing");
    TANDEM_TRY(add_part(path, impl));
    TANDEM_ASSIGN(const SplitInfo other, split_info(impl.gguf.back()));
    if (other.index != i || other.count != info.count)
      return fail(ErrorCode::kMismatch,
                  path.string() + ": says it is part " + std::to_string(other.index + 1) + " of " +
                      std::to_string(other.count) + ", its name says part " +
                      std::to_string(i + 1) + " of " + std::to_string(info.count));
  }
  return {};
}

Status check_total(const Checkpoint::Impl& impl, size_t total) {
  TANDEM_ASSIGN(const auto claimed, impl.gguf.front().integer("split.tensors.count"));
  if (claimed && static_cast<uint64_t>(*claimed) != total)
    return fail(impl.gguf.front().error(
        ErrorCode::kMismatch, "split.tensors.count",
        "is " + std::to_string(*claimed) + ", the parts hold " + std::to_string(total)));
  return {};
}

// One expert's slice [rows, cols] of a stacked tensor [experts, rows, cols].
Result<HostTensor> expert_slice(const GgufTensor& t, uint32_t expert, const std::string& file) {
  HostTensor view;
  view.name = t.name + "[" + std::to_string(expert) + "]";
  if (t.shape.size() != 3 || expert >= static_cast<uint64_t>(t.shape[0]))
    return fail(ErrorCode::kMismatch, file + ": tensor " + t.name +
                                          " must hold one matrix per expert, has none for " +
                                          std::to_string(expert));
  view.shape = {t.shape[1], t.shape[2]};
  if (t.type) {
    view.type = *t.type;
    const size_t bytes = storage_bytes(*t.type, static_cast<size_t>(t.shape[1] * t.shape[2]));
    view.bytes = t.bytes.subspan(expert * bytes, bytes);
  }
  return view;
}

// Files each needed tensor under its Hugging Face name; what is left over stays under its own.
Status name_tensors(const GgufTensors& all,
                    const std::unordered_map<const GgufTensor*, std::string>& home,
                    Checkpoint::Impl& impl) {
  GgufTensors rest = all;
  rest.erase("rope_freqs.weight");
  for (const TensorSpec& spec : expected_tensors(impl.config)) {
    const auto name = gguf_name(spec.name);
    if (!name) continue;
    const auto it = all.find(name->name);
    if (it == all.end())
      return fail(ErrorCode::kMismatch, impl.path.string() + ": tensor " + name->name + " (" +
                                            spec.name + ") is missing");
    const GgufTensor& t = *it->second;
    StoredTensor stored;
    stored.file = home.at(&t);
    if (name->expert) {
      TANDEM_ASSIGN(stored.view, expert_slice(t, *name->expert, stored.file));
    } else {
      stored.view.name = t.name;
      stored.view.type = t.type.value_or(StorageType::kF32);
      stored.view.shape = t.shape;
      stored.view.bytes = t.bytes;
      stored.view.interleaved_heads = gguf_interleaved_heads(impl.config, t.name);
    }
    if (!t.type) stored.unsupported = ggml_type_name(t.type_number);
    impl.tensors.emplace(spec.name, std::move(stored));
    rest.erase(name->name);
  }
  for (const auto& [name, t] : rest) {
    StoredTensor stored;
    stored.view.name = t->name;
    stored.file = home.at(t);
    impl.tensors.emplace(std::string(name), std::move(stored));
  }
  return {};
}

}  // namespace

std::vector<fs::path> gguf_models_in(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const fs::path& path = it->path();
    if (path.extension() != ".gguf") continue;
    const auto part = parse_part_name(path.filename().string());
    if (!part || part->number == 1) out.push_back(path);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Result<std::unique_ptr<Checkpoint::Impl>> open_gguf(const fs::path& file) {
  auto impl = std::make_unique<Checkpoint::Impl>();
  impl->path = file;
  impl->format = "gguf";
  TANDEM_TRY(add_part(file, *impl));
  TANDEM_ASSIGN(const SplitInfo info, split_info(impl->gguf.front()));
  if (info.count > 1) TANDEM_TRY(add_other_parts(file, info, *impl));

  GgufTensors all;
  std::unordered_map<const GgufTensor*, std::string> home;
  for (const GgufFile& part : impl->gguf)
    for (const GgufTensor& t : part.tensors()) {
      if (!all.emplace(t.name, &t).second)
        return fail(ErrorCode::kCorruptData,
                    part.name() + ": tensor " + t.name + " is also in another part");
      home.emplace(&t, part.name());
    }
  if (info.count > 1) TANDEM_TRY(check_total(*impl, all.size()));
  TANDEM_ASSIGN(impl->config, gguf_config(impl->gguf.front(), all));
  TANDEM_TRY(name_tensors(all, home, *impl));
  return impl;
}

}  // namespace tandem::model

// Hugging Face folders: config.json, generation_config.json, model.safetensors or its shards.
#include <cstring>
#include <map>
#include <set>

#include "common/model/checkpoint_impl.h"
#include "common/model/json.h"
#include "common/model/safetensors.h"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr size_t kMaxConfigBytes = 16u << 20;
constexpr size_t kMaxIndexBytes = 256u << 20;
constexpr size_t kMaxShards = 4096;

Result<ModelConfig> read_config(const fs::path& folder) {
  const fs::path config_path = folder / "config.json";
  TANDEM_ASSIGN(const std::string config, read_text_file(config_path, kMaxConfigBytes));
  const fs::path generation_path = folder / "generation_config.json";
  std::error_code ec;
  if (!fs::exists(generation_path, ec)) return parse_config(config, config_path.string());
  TANDEM_ASSIGN(const std::string generation, read_text_file(generation_path, kMaxConfigBytes));
  return parse_config(config, config_path.string(), generation, generation_path.string());
}

// Tensor name to shard file, as model.safetensors.index.json maps them.
Result<std::map<std::string, std::string>> read_index(const fs::path& path) {
  TANDEM_ASSIGN(const std::string text, read_text_file(path, kMaxIndexBytes));
  TANDEM_ASSIGN(const json::value root, parse_json(text, path.string()));
  const json::value* map = root.is_object() ? root.get_object().if_contains("weight_map") : nullptr;
  if (map == nullptr || !map->is_object() || map->get_object().empty())
    return fail(ErrorCode::kCorruptData, path.string() + ": weight_map must be a non-empty object");
  std::map<std::string, std::string> out;
  for (const auto& [name, file] : map->get_object()) {
    const std::string key(name.data(), name.size());
    if (!file.is_string())
      return fail(ErrorCode::kCorruptData,
                  path.string() + ": weight_map." + key + " must be a file name");
    const std::string value(file.get_string());
    // Shards lie beside the index; anything else would reach outside the model's folder.
    if (value.empty() || fs::path(value).filename() != fs::path(value) || value == "." ||
        value == "..")
      return fail(ErrorCode::kCorruptData, path.string() + ": weight_map." + key + " is " +
                                               excerpt(file) +
                                               ", not a file name beside the index");
    out.emplace(key, value);
  }
  return out;
}

Status add_file(const fs::path& path, Checkpoint::Impl& impl) {
  TANDEM_ASSIGN(auto file, MappedFile::open(path));
  TANDEM_ASSIGN(auto entries, parse_safetensors(file.bytes(), path.string()));
  for (SafetensorsEntry& e : entries) {
    StoredTensor t;
    t.view.name = e.name;
    t.view.type = e.type.value_or(StorageType::kF32);
    t.view.shape = std::move(e.shape);
    t.view.bytes = e.bytes;
    if (!e.type) t.unsupported = e.dtype;
    t.file = path.string();
    const auto [it, fresh] = impl.tensors.emplace(e.name, std::move(t));
    if (!fresh)
      return fail(ErrorCode::kCorruptData,
                  path.string() + ": tensor " + e.name + " is also in " + it->second.file);
  }
  impl.files.push_back(std::move(file));
  return {};
}

Status add_shards(const fs::path& folder, const fs::path& index_path, Checkpoint::Impl& impl) {
  TANDEM_ASSIGN(const auto index, read_index(index_path));
  std::set<std::string> shards;
  for (const auto& [name, file] : index) shards.insert(file);
  if (shards.size() > kMaxShards)
    return fail(ErrorCode::kCorruptData, index_path.string() + ": names " +
                                             std::to_string(shards.size()) +
                                             " files, more than 4096");
  std::error_code ec;
  for (const std::string& shard : shards) {
    if (!fs::exists(folder / shard, ec))
      return fail(ErrorCode::kNotFound, (folder / shard).string() + ": shard is missing; " +
                                            index_path.filename().string() + " names it");
    TANDEM_TRY(add_file(folder / shard, impl));
  }
  for (const auto& [name, file] : index) {
    const auto it = impl.tensors.find(name);
    if (it == impl.tensors.end() || it->second.file != (folder / file).string())
      return fail(ErrorCode::kCorruptData, (folder / file).string() + ": has no tensor " + name +
                                               ", though " + index_path.filename().string() +
                                               " says so");
  }
  return {};
}

void add_dummies(Checkpoint::Impl& impl) {
  const StorageType type = impl.config.dtype == DType::kF32   ? StorageType::kF32
                           : impl.config.dtype == DType::kF16 ? StorageType::kF16
                                                              : StorageType::kBf16;
  for (TensorSpec& spec : expected_tensors(impl.config)) {
    StoredTensor t;
    t.view.name = spec.name;
    t.view.type = type;
    t.view.shape = std::move(spec.shape);
    t.file = impl.path.string();
    impl.tensors.emplace(std::move(spec.name), std::move(t));
  }
}

// Base-model checkpoints leave out the "model." that the language-model class adds.
void add_base_prefix(Checkpoint::Impl& impl) {
  if (impl.tensors.contains("model.embed_tokens.weight") ||
      !impl.tensors.contains("embed_tokens.weight"))
    return;
  std::unordered_map<std::string, StoredTensor> renamed;
  for (auto& [name, t] : impl.tensors)
    renamed.emplace(name.starts_with("lm_head.") ? name : "model." + name, std::move(t));
  impl.tensors = std::move(renamed);
}

// As the reference ties on load: a config that ties while the file holds two different matrices is
// wrong about the file, and one matrix under either name serves as both.
void settle_tied_head(Checkpoint::Impl& impl) {
  constexpr const char* kTable = "model.embed_tokens.weight";
  constexpr const char* kHead = "lm_head.weight";
  if (!impl.config.tied_head) return;
  const auto head = impl.tensors.find(kHead);
  if (head == impl.tensors.end()) return;
  const auto table = impl.tensors.find(kTable);
  if (table == impl.tensors.end()) {
    StoredTensor shared = std::move(head->second);
    impl.tensors.erase(head);
    impl.tensors.emplace(kTable, std::move(shared));
    return;
  }
  const HostTensor& a = head->second.view;
  const HostTensor& b = table->second.view;
  if (a.type == b.type && a.bytes.size() == b.bytes.size() &&
      std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0) {
    impl.tensors.erase(head);
    return;
  }
  impl.config.tied_head = false;
  impl.config.notes.push_back(impl.path.string() +
                              ": tie_word_embeddings is true, but lm_head.weight differs from "
                              "embed_tokens.weight; the head keeps its own weights");
}

}  // namespace

Result<std::unique_ptr<Checkpoint::Impl>> open_hugging_face(const fs::path& folder,
                                                            const CheckpointOptions& options) {
  auto impl = std::make_unique<Checkpoint::Impl>();
  impl->path = folder;
  TANDEM_ASSIGN(impl->config, read_config(folder));
  if (options.format == LoadFormat::kDummy) {
    impl->format = "dummy";
    impl->dummy = true;
    impl->dummy_seed = options.dummy_seed;
    add_dummies(*impl);
    return impl;
  }
  impl->format = "safetensors";
  const fs::path single = folder / "model.safetensors";
  const fs::path index = folder / "model.safetensors.index.json";
  std::error_code ec;
  if (fs::exists(single, ec)) {
    TANDEM_TRY(add_file(single, *impl));
  } else if (fs::exists(index, ec)) {
    TANDEM_TRY(add_shards(folder, index, *impl));
  } else {
    const bool pickled = fs::exists(folder / "pytorch_model.bin", ec) ||
                         fs::exists(folder / "pytorch_model.bin.index.json", ec);
    return fail(pickled ? ErrorCode::kUnsupported : ErrorCode::kNotFound,
                folder.string() + ": has no model.safetensors and no model.safetensors.index.json" +
                    (pickled ? "; pytorch_model.bin files are not read, convert them to safetensors"
                             : "; load format dummy works without weights"));
  }
  add_base_prefix(*impl);
  settle_tied_head(*impl);
  return impl;
}

}  // namespace tandem::model

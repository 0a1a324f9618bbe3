#include "common/model/checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "common/model/checkpoint_impl.h"

namespace tandem::model {
namespace {

namespace fs = std::filesystem;

// Sampling bounds of the fingerprint: content of at most this many tensors, three samples each.
constexpr size_t kSampledTensors = 512;
constexpr size_t kSampleBytes = 64;

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t d : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(d);
  }
  return text + "]";
}

std::string fixed(double v) {
  char text[48];
  std::snprintf(text, sizeof text, "%.1f", v);
  return text;
}

size_t alignment_of(StorageType t) { return t == StorageType::kF32 ? 4 : 2; }

class Fingerprint {
 public:
  Fingerprint() : state_(XXH3_createState()) { XXH3_128bits_reset(state_); }
  ~Fingerprint() { XXH3_freeState(state_); }
  Fingerprint(const Fingerprint&) = delete;
  Fingerprint& operator=(const Fingerprint&) = delete;

  void add(const void* p, size_t n) { XXH3_128bits_update(state_, p, n); }
  void add(std::string_view s) {
    const uint64_t n = s.size();
    add(&n, sizeof n);
    add(s.data(), s.size());
  }
  [[nodiscard]] std::string hex() const {
    const XXH128_hash_t h = XXH3_128bits_digest(state_);
    char text[33];
    std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(h.high64),
                  static_cast<unsigned long long>(h.low64));
    return text;
  }

 private:
  XXH3_state_t* state_;
};

void add_samples(Fingerprint& print, std::span<const std::byte> bytes) {
  const size_t n = std::min(kSampleBytes, bytes.size());
  for (const size_t at : {size_t{0}, (bytes.size() - n) / 2, bytes.size() - n})
    print.add(bytes.data() + at, n);
}

// Buffers and legacy entries that every reader ignores.
bool is_known_extra(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with("self_attn.bias") ||
         name.ends_with("self_attn.masked_bias");
}

}  // namespace

Result<LoadFormat> parse_load_format(std::string_view name) {
  if (name == "auto") return LoadFormat::kAuto;
  if (name == "dummy") return LoadFormat::kDummy;
  return fail(ErrorCode::kInvalidArgument,
              "load format \"" + std::string(name) + "\" is unknown; use auto or dummy",
              "load_format");
}

std::string CheckpointSummary::describe() const {
  std::string text = format + ", " + std::to_string(tensors) + " tensors, " +
                     fixed(static_cast<double>(parameters) / 1e6) + " M parameters, " +
                     fixed(static_cast<double>(stored_bytes) / 0x1p20) + " MiB stored (";
  bool first = true;
  for (const auto& [type, bytes] : bytes_by_type) {
    if (!first) text += ", ";
    first = false;
    text += std::string(to_string(type)) + " " + fixed(static_cast<double>(bytes) / 0x1p20);
  }
  return text + ")";
}

Status Checkpoint::Impl::finish() {
  const std::vector<TensorSpec> specs = expected_tensors(config);
  std::unordered_map<std::string, StoredTensor> used;
  Fingerprint print;
  print.add(config.canonical());
  const size_t stride = (specs.size() + kSampledTensors - 1) / kSampledTensors;
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[i];
    const auto it = tensors.find(spec.name);
    if (it == tensors.end())
      return fail(ErrorCode::kMismatch, path.string() + ": tensor " + spec.name +
                                            " is missing; the model needs it with shape " +
                                            shape_text(spec.shape));
    StoredTensor& t = it->second;
    const std::string where = t.file + ": tensor " + t.view.name;
    if (t.view.shape != spec.shape)
      return fail(ErrorCode::kMismatch,
                  where + " has shape " + shape_text(t.view.shape) +
                      ", the model's configuration needs " + shape_text(spec.shape) +
                      (t.view.name == spec.name ? "" : " (" + spec.name + ")"));
    if (!t.unsupported.empty())
      return fail(
          ErrorCode::kUnsupported,
          where + " is of type " + t.unsupported +
              ", which is not read; known are F32, F16, BF16 and, in GGUF, Q8_0, Q4_0, Q4_1");
    const auto elements = static_cast<uint64_t>(t.view.elements());
    const uint64_t bytes = storage_bytes(t.view.type, elements);
    ++summary.tensors;
    summary.parameters += elements;
    summary.stored_bytes += bytes;
    summary.bytes_by_type[t.view.type] += bytes;
    print.add(spec.name);
    print.add(to_string(t.view.type));
    print.add(shape_text(spec.shape));
    if (i % stride == 0 && !t.view.bytes.empty()) add_samples(print, t.view.bytes);
    used.insert(tensors.extract(it));
  }
  if (dummy) print.add(&dummy_seed, sizeof dummy_seed);
  summary.format = format;
  fingerprint = print.hex();

  std::vector<std::string> extra;
  for (const auto& [name, t] : tensors)
    if (!is_known_extra(name)) extra.push_back(t.view.name);
  std::sort(extra.begin(), extra.end());
  if (!extra.empty()) {
    std::string text = std::to_string(extra.size()) + " tensors are not used by this model:";
    for (size_t i = 0; i < std::min<size_t>(extra.size(), 5); ++i) text += " " + extra[i];
    if (extra.size() > 5) text += " …";
    warnings.push_back(std::move(text));
  }
  warnings.insert(warnings.end(), config.notes.begin(), config.notes.end());
  tensors = std::move(used);
  return {};
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const fs::path& path,
                                                     const CheckpointOptions& options) {
  std::error_code ec;
  const fs::file_status status = fs::status(path, ec);
  if (ec || !fs::exists(status))
    return fail(ErrorCode::kNotFound, path.string() + ": no such file or folder");
  fs::path gguf;
  if (!fs::is_directory(status)) {
    gguf = path;
    if (path.filename() == "config.json")
      return open(path.has_parent_path() ? path.parent_path() : fs::path("."), options);
  } else if (!fs::exists(path / "config.json", ec)) {
    const std::vector<fs::path> models = gguf_models_in(path);
    if (models.empty())
      return fail(
          ErrorCode::kNotFound,
          path.string() + ": has neither config.json nor a .gguf file (part 1 of a split one)");
    if (models.size() > 1) {
      std::string names;
      for (const fs::path& m : models) names += (names.empty() ? "" : ", ") + m.filename().string();
      return fail(ErrorCode::kInvalidArgument,
                  path.string() + ": holds several GGUF models, name one of them: " + names);
    }
    gguf = models.front();
  }
  if (!gguf.empty() && options.format == LoadFormat::kDummy)
    return fail(ErrorCode::kInvalidArgument,
                gguf.string() + ": load format dummy needs a folder with config.json",
                "load_format");
  TANDEM_ASSIGN(auto impl, gguf.empty() ? open_hugging_face(path, options) : open_gguf(gguf));
  TANDEM_TRY(impl->finish());
  return std::unique_ptr<Checkpoint>(new Checkpoint(std::move(impl)));
}

const ModelConfig& Checkpoint::config() const { return impl_->config; }
const fs::path& Checkpoint::path() const { return impl_->path; }
const std::string& Checkpoint::fingerprint() const { return impl_->fingerprint; }
const CheckpointSummary& Checkpoint::summary() const { return impl_->summary; }
const std::vector<std::string>& Checkpoint::warnings() const { return impl_->warnings; }
const GgufFile* Checkpoint::gguf() const {
  return impl_->gguf.empty() ? nullptr : &impl_->gguf.front();
}

bool Checkpoint::contains(std::string_view name) const {
  return impl_->tensors.contains(std::string(name));
}

Result<CheckpointTensor> Checkpoint::tensor(std::string_view name) const {
  const auto it = impl_->tensors.find(std::string(name));
  if (it == impl_->tensors.end())
    return fail(ErrorCode::kNotFound,
                impl_->path.string() + ": has no tensor " + std::string(name));
  CheckpointTensor out;
  out.view = it->second.view;
  const size_t bytes = storage_bytes(out.view.type, static_cast<size_t>(out.view.elements()));
  const auto address = reinterpret_cast<uintptr_t>(out.view.bytes.data());
  const bool misaligned = address % alignment_of(out.view.type) != 0;
  if (!impl_->dummy && !misaligned) return out;
  try {
    out.storage = std::make_unique_for_overwrite<std::byte[]>(bytes);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kResourceExhausted, "no memory for the " + std::to_string(bytes) +
                                                   " bytes of tensor " + std::string(name));
  }
  const std::span<std::byte> storage(out.storage.get(), bytes);
  if (impl_->dummy)
    fill_dummy(impl_->dummy_seed, out.view, storage);
  else
    std::memcpy(storage.data(), out.view.bytes.data(), bytes);
  out.view.bytes = storage;
  return out;
}

void Checkpoint::prefetch() const {
  for (const MappedFile& f : impl_->files) f.read_ahead();
}

void Checkpoint::release_pages() const {
  for (const MappedFile& f : impl_->files) f.release_pages();
}

}  // namespace tandem::model

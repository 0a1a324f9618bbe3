#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "common/model/checkpoint.h"
#include "common/model/gguf.h"
#include "common/model/mapped_file.h"

namespace tandem::model {

// A tensor that is in the files: what was declared, and the bytes if the type is one we read.
struct StoredTensor {
  HostTensor view;
  std::string unsupported;  // the dtype's own name when `view.type` means nothing
  std::string file;
};

struct Checkpoint::Impl {
  std::filesystem::path path;
  ModelConfig config;
  std::string format;
  std::vector<MappedFile> files;
  std::vector<GgufFile> gguf;                             // one per part; views into `files`
  std::unordered_map<std::string, StoredTensor> tensors;  // by Hugging Face name
  bool dummy = false;
  uint64_t dummy_seed = 0;
  std::string fingerprint;
  CheckpointSummary summary;
  std::vector<std::string> warnings;

  // Checks that every tensor of the config is there with its shape and a known type, drops the
  // others with a warning, then fills summary and fingerprint.
  [[nodiscard]] Status finish();
};

[[nodiscard]] Result<std::unique_ptr<Checkpoint::Impl>> open_hugging_face(
    const std::filesystem::path& folder, const CheckpointOptions& options);
[[nodiscard]] Result<std::unique_ptr<Checkpoint::Impl>> open_gguf(
    const std::filesystem::path& file);

// Of the .gguf files in a folder, those that start a model: parts past the first are left out.
// Sorted.
[[nodiscard]] std::vector<std::filesystem::path> gguf_models_in(
    const std::filesystem::path& folder);

// Fills `out` with deterministic values for (seed, name): norms 1, else normal with deviation 0.02.
void fill_dummy(uint64_t seed, const HostTensor& tensor, std::span<std::byte> out);

}  // namespace tandem::model

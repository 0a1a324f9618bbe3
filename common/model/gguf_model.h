#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/model/config.h"
#include "common/model/gguf.h"

namespace tandem::model {

// Tensors of every part of a GGUF model, by the name the files use.
using GgufTensors = std::unordered_map<std::string_view, const GgufTensor*>;

// Metadata of the first part to a config. What llama.cpp leaves to the presence of a tensor
// (biases, an own head, rope_freqs) is read off `tensors`. Keys: github.com/ggml-org/ggml,
// docs/gguf.md.
[[nodiscard]] Result<ModelConfig> gguf_config(const GgufFile& file, const GgufTensors& tensors);

// The GGUF name of a Hugging Face tensor name, and the expert inside it when experts share a
// tensor.
struct GgufName {
  std::string name;
  std::optional<uint32_t> expert;
};
[[nodiscard]] std::optional<GgufName> gguf_name(std::string_view hf_name);

// Heads whose rows the format permutes in this tensor (HostTensor::interleaved_heads); 0: none.
// Only the llama family does: its converter turns rotate-half pairs into adjacent ones.
[[nodiscard]] uint32_t gguf_interleaved_heads(const ModelConfig& config,
                                              std::string_view gguf_name);

}  // namespace tandem::model

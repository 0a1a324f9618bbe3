#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/base/result.h"
#include "common/config/cluster_config.h"

namespace tandem::model {

class Checkpoint;
class GgufFile;

// How a model's makers recommend to draw its tokens; empty where they say nothing. `do_sample` is
// not looked at: whoever asks a server for an answer says temperature 0 for a greedy one.
struct SamplingDefaults {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<uint32_t> top_k;  // 0: off
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<uint32_t> max_new_tokens;
};

// From generation_config.json of a Hugging Face folder, or the general.sampling.* keys of a GGUF
// file. kCorruptData, naming file and field, for values that make no sense.
[[nodiscard]] Result<SamplingDefaults> load_sampling_defaults(const Checkpoint& checkpoint);

// The same for a router with those settings: nothing where they say not to read it. kConfig, with
// the key that says so, for values that make no sense.
[[nodiscard]] Result<SamplingDefaults> recommended_sampling(const SamplingSettings& settings,
                                                            const Checkpoint& checkpoint);

// The text of a generation_config.json; `file` is for errors.
[[nodiscard]] Result<SamplingDefaults> parse_generation_config(std::string_view json,
                                                               std::string_view file);
[[nodiscard]] Result<SamplingDefaults> gguf_sampling_defaults(const GgufFile& file);

}  // namespace tandem::model

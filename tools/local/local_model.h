#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/engine/cuda/step_profile.h"
#include "common/engine/sampling.h"
#include "common/kv/layout.h"
#include "common/model/checkpoint.h"

namespace tandem::local {

struct LocalOptions {
  std::string model;  // folder or GGUF file
  std::string load_format = "auto";
  std::string dtype = "auto";  // "float32", "bf16"; auto: bf16 unless the weights hold 32 bits
  std::string kv = "auto";     // a KvFormat's name; auto: the weights' type
  std::string device = "cpu";  // parse_device() reads it
  std::string quantization = "none";  // or "fp8", on a GPU
  uint32_t threads = 0;               // 0: one per CPU
  bool profile = false;               // measure every op; slower, CUDA only
  std::string isa;                    // a CpuIsa name; empty: the best of this machine
  std::string cache_dir;              // as CudaOptions::cache_dir
};

struct GenerateJob {
  std::span<const TokenId> prompt;
  engine::SamplingParams sampling;
  uint32_t max_new_tokens = 0;
  std::vector<TokenId> stop_tokens;       // one of them ends the answer and is its last id
  std::function<bool(TokenId)> on_token;  // false ends the answer; may be empty
  // Raw logits of prompt positions first .. first+rows-1, [rows, vocab]; may be empty. An error
  // ends the job.
  std::function<Status(uint32_t first, std::span<const float> logits)> on_logits;
};

struct GenerateOutcome {
  std::vector<TokenId> ids;
  bool stopped = false;        // by a stop token
  double prefill_seconds = 0;  // until the first token is known
  double decode_seconds = 0;   // all further ones
};

// Log-likelihood of a token sequence, and what its KV takes.
struct ScoreOutcome {
  double nll = 0;  // natural log, summed over predicted tokens
  uint32_t predicted = 0;
  uint64_t raw_bytes = 0;   // KV pages as bf16
  uint64_t wire_bytes = 0;  // as stored, and therefore shipped; frame headers are not in it
};

// One model in this process and one sequence at a time: checkpoint, engine and KV pool, without
// a cluster. The thread that calls generate() or score() first must make all later calls too.
class LocalModel {
 public:
  // Errors: kInvalidArgument for a wrong option, whatever the loaders say for wrong files.
  [[nodiscard]] static Result<std::unique_ptr<LocalModel>> create(
      const LocalOptions& options, std::unique_ptr<model::Checkpoint> checkpoint,
      uint32_t positions, const Clock& clock);
  ~LocalModel();

  // Prompt and answer must fit into the positions asked for at creation.
  [[nodiscard]] Result<GenerateOutcome> generate(const GenerateJob& job);
  // Scores tokens[1..] given their predecessors.
  [[nodiscard]] Result<ScoreOutcome> score(std::span<const TokenId> tokens);

  [[nodiscard]] const kv::KvLayout& layout() const;
  [[nodiscard]] std::string_view engine_name() const;  // "cpu-avx2", …
  [[nodiscard]] std::string_view dtype_name() const;
  [[nodiscard]] const engine::StepProfile& profile() const;  // empty unless asked for

 private:
  struct State;
  explicit LocalModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Opens the checkpoint of `options`.
[[nodiscard]] Result<std::unique_ptr<model::Checkpoint>> open_checkpoint(
    const LocalOptions& options);

}  // namespace tandem::local

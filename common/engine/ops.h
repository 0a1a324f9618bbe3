#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "common/base/dtype.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/engine/sampling.h"
#include "common/kv/layout.h"
#include "common/kv/page_memory.h"
#include "common/model/host_tensor.h"

namespace tandem::engine {

// Activations: a row-major matrix in the engine's own memory. `rows` is the capacity; every op says
// how many rows it touches. Activations are float32 on the CPU engine and bf16 on others; the model
// code never looks inside.
struct Activation {
  void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
};

// Weights as the engine keeps them (converted, packed, on the device). Made by Ops, destroyed by
// the engine that made them; opaque to the model code.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  int64_t in = 0;   // columns of the input
  int64_t out = 0;  // columns of the output
};
class VectorWeight {  // norm scales
 public:
  virtual ~VectorWeight() = default;
  int64_t size = 0;
};
class EmbeddingWeight {
 public:
  virtual ~EmbeddingWeight() = default;
  int64_t vocab = 0;
  int64_t hidden = 0;
};
class MoeWeight {
 public:
  virtual ~MoeWeight() = default;
};

// One sequence's part of a step: `rows` new tokens at positions start .. start+rows-1.
struct SequenceView {
  uint32_t first_row = 0;  // in the packed batch
  uint32_t rows = 0;
  uint32_t start = 0;
  // Covers positions 0 .. start+rows-1, ceil((start+rows)/16) entries; shared by all layers.
  std::span<const BlockId> blocks;
  // Open page of this sequence (layouts with needs_tail()): index into KvPages::tail. Holds
  // positions start - start%16 .. start-1 on entry.
  uint32_t tail = 0;
};

// A ragged batch, packed without padding. Views stay valid for the whole step.
struct StepView {
  std::span<const TokenId> tokens;      // [rows]
  std::span<const uint32_t> positions;  // [rows]
  std::span<const SequenceView> sequences;
  [[nodiscard]] uint32_t rows() const { return static_cast<uint32_t>(tokens.size()); }
};

// The KV pool as the engine sees it; addresses are the engine's own memory. The pages of a layer
// lie together, in the order of their blocks; so do its open pages, in tail_layout().
struct KvPages {
  kv::KvLayout layout;
  std::byte* pages = nullptr;
  uint32_t blocks = 0;
  std::byte* tail = nullptr;
  uint32_t tails = 0;

  [[nodiscard]] std::span<std::byte> page(uint32_t layer, BlockId block) const {
    const size_t bytes = layout.page_bytes();
    return {pages + (size_t{layer} * blocks + block.value) * bytes, bytes};
  }
  [[nodiscard]] std::span<std::byte> open_page(uint32_t layer, uint32_t slot) const {
    const size_t bytes = layout.tail_layout().page_bytes();
    return {tail + (size_t{layer} * tails + slot) * bytes, bytes};
  }
};

// What is wanted of one row of a step after the last layer. What it points to stays valid until
// run_step() returns.
struct RowOutput {
  uint32_t row = 0;  // in the packed batch
  // Draw the token for position history.tokens.size(); null: draw none.
  const SamplingParams* sampling = nullptr;
  TokenHistory history;
  // Log-probability of this token, and of the `score_top` best.
  std::optional<TokenId> scored;
  int32_t score_top = 0;
  float* logits = nullptr;  // [V] in host memory: the raw logits go here
};
struct RowResult {
  std::optional<SampledToken> token;
  std::optional<SampledToken> score;
};

// Called on the device thread when a layer's KV of this step is complete in the pool.
using LayerHook = std::function<void(uint32_t layer)>;

struct StepRequest {
  StepView view;
  KvPages kv;
  std::span<const RowOutput> outputs;
  const LayerHook* hook = nullptr;  // null: nobody wants to know
};
// The model's sequence of ops over a step. What it may depend on besides its arguments is fixed at
// load time: an engine may record it with one step and replay it with others of the same shape.
using StepBody = std::function<void(const StepView&, const KvPages&)>;

struct AttentionShape {
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  float scale = 0;      // usually 1/sqrt(head_dim)
  uint32_t window = 0;  // keys visible to a query, itself included; 0: all earlier ones
};

// cos/sin factors of rotary embedding, one per position and rotated pair; "rotate half" convention
// (pairs are (i, i + rotary_dim/2)), as Hugging Face checkpoints use.
struct RopeTable {
  const float* cos = nullptr;  // [max_positions][rotary_dim/2], host memory
  const float* sin = nullptr;
  uint32_t max_positions = 0;
  uint32_t rotary_dim = 0;
};

// Everything a layer needs between its QKV projection and attention.
struct QkvParams {
  AttentionShape shape;
  RopeTable rope;
  const VectorWeight* q_norm = nullptr;  // per-head RMS norm before RoPE (Qwen3), or null
  const VectorWeight* k_norm = nullptr;
  float norm_eps = 0;
};

struct MoeShape {
  uint32_t experts = 0;
  uint32_t experts_per_token = 0;
  uint32_t intermediate = 0;  // of one expert
  bool normalize_top_k = false;
};

// The compute seam: CPU today, CUDA behind the same interface. Granularity follows what a GPU
// fuses: norm + projection, RoPE + KV write + encode, gate/up + SiLU, projection + residual. Every
// function runs on the engine's device thread; CPU ops return when done, device ops when enqueued
// in order. Shapes: N rows of the step, H hidden, V vocabulary.
class Ops {
 public:
  virtual ~Ops() = default;

  // ---- load time: host tensors may be unmapped after the call returns ----
  // `parts` ([out_i, in] each, as checkpoints store them) are concatenated along `out`
  // (q, k, v; gate, up). `biases` is empty, or has one entry per part (null: no bias for that
  // part).
  virtual Result<std::unique_ptr<LinearWeight>> load_linear(
      std::span<const model::HostTensor* const> parts,
      std::span<const model::HostTensor* const> biases) = 0;
  // The two parts of norm_gate_up's weight, which engines may store interleaved.
  virtual Result<std::unique_ptr<LinearWeight>> load_gate_up(
      std::span<const model::HostTensor* const> parts,
      std::span<const model::HostTensor* const> biases) = 0;
  virtual Result<std::unique_ptr<VectorWeight>> load_vector(const model::HostTensor& values) = 0;
  // [V, H]. A tied head is load_tied_head() on the result, so that the table is kept once.
  virtual Result<std::unique_ptr<EmbeddingWeight>> load_embedding(
      const model::HostTensor& table) = 0;
  virtual Result<std::unique_ptr<LinearWeight>> load_tied_head(const EmbeddingWeight& table) = 0;
  // router [experts, H]; per expert gate/up [I, H] and down [H, I], as the checkpoint has made sure
  // for every engine. The router stays float32 whatever the weight type: rounding it would send
  // tokens to other experts.
  virtual Result<std::unique_ptr<MoeWeight>> load_moe(
      const MoeShape& shape, const model::HostTensor& router,
      std::span<const model::HostTensor* const> gate, std::span<const model::HostTensor* const> up,
      std::span<const model::HostTensor* const> down) = 0;
  // `whole` makes the table for every position of the context. Engines that read QkvParams::rope
  // from host memory do not ask: theirs grows as positions are reached.
  virtual Status load_rope(const std::function<RopeTable()>& whole) = 0;
  // Live as long as the Ops. The residual stream is `x` of the ops below.
  virtual Result<Activation> allocate(int64_t rows, int64_t cols) = 0;
  virtual Result<Activation> allocate_residual(int64_t rows, int64_t cols) = 0;
  // Bytes that a KV pool of this layout can have once weights and activations are loaded; nullopt:
  // whatever the operating system gives.
  virtual Result<std::optional<uint64_t>> kv_memory_limit(const kv::KvLayout& layout) = 0;
  // Memory for a pool of this shape, which may outlive the Ops.
  virtual Result<std::unique_ptr<kv::PageMemory>> create_kv_memory(const kv::KvLayout& layout,
                                                                   uint32_t blocks,
                                                                   uint32_t tails) = 0;
  // Makes everything that steps on these pages need (workspace, recorded steps), so that none of
  // them meets a first-use cost. `sequences` is the most that decode at once. Without it the first
  // steps are slow, not wrong.
  virtual Status prepare(const KvPages& kv, uint32_t sequences, const StepBody& body) = 0;

  // ---- one step ----
  // The bracket around a step: describes it to the device, runs `body` (or replays what an earlier
  // call of it recorded), hands out results[i] for outputs[i], and returns when all of it is done.
  // The ops below are called only inside of `body`. kDeviceLost: this Ops can never run again.
  virtual Status run_step(const StepRequest& request, const StepBody& body,
                          std::span<RowResult> results) = 0;
  // out[N, H] = table[tokens]
  virtual void embed(const StepView& step, const EmbeddingWeight& table, Activation out) = 0;
  // out[N, O] = rms_norm(x[N, H]) * norm  @ weight^T + bias
  virtual void norm_linear(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                           const LinearWeight& weight, Activation out) = 0;
  // In place on qkv[N, (heads + 2*kv_heads) * head_dim]: per-head norms and RoPE on q and k; writes
  // k and v of this step into the pool (encoding full pages) and keeps them for `attention`.
  virtual void write_kv(const StepView& step, uint32_t layer, const QkvParams& params,
                        Activation qkv, const KvPages& kv) = 0;
  // Behind write_kv of `layer`: the step's hook is called for it once that has happened.
  virtual void layer_written(uint32_t layer) = 0;
  // out[N, heads*head_dim]: causal attention of this step's q rows over all keys so far.
  virtual void attention(const StepView& step, uint32_t layer, const AttentionShape& shape,
                         Activation qkv, const KvPages& kv, Activation out) = 0;
  // x[N, H] += in[N, I] @ weight^T + bias
  virtual void linear_add(uint32_t rows, Activation in, const LinearWeight& weight,
                          Activation x) = 0;
  // out[N, I] = silu(gate) * up, (gate | up) = rms_norm(x) * norm @ gate_up^T + bias
  virtual void norm_gate_up(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                            const LinearWeight& gate_up, Activation out) = 0;
  // x[N, H] += mixture of the chosen experts applied to rms_norm(x) * norm
  virtual void norm_moe(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                        const MoeShape& shape, const MoeWeight& weight) = 0;
  // Last op of a step: final norm and head for the rows that the request wants something of, then
  // sampling and scores. logits[V] of a row are float32.
  virtual void outputs(Activation x, const VectorWeight& norm, float eps,
                       const LinearWeight& head) = 0;

  // Bytes of weights held, for logs and the read-stream ratio.
  [[nodiscard]] virtual size_t weight_bytes() const = 0;
  [[nodiscard]] virtual std::string_view name() const = 0;  // "cpu-avx512bf16", "cuda-sm90", …
};

}  // namespace tandem::engine

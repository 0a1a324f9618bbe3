#include "common/engine/forward_model.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "common/model/checkpoint.h"

namespace tandem::engine {

// Fetches tensors and hands them to Ops; what it fetched is freed when the call returns, so a dummy
// or converted checkpoint is never in memory twice.
class ForwardModel::Loader {
 public:
  Loader(const model::Checkpoint& checkpoint, Ops& ops) : checkpoint_(checkpoint), ops_(ops) {}

  Result<std::unique_ptr<VectorWeight>> vector(const std::string& name) {
    TANDEM_ASSIGN(const auto t, checkpoint_.tensor(name));
    return ops_.load_vector(t.view);
  }

  Result<std::unique_ptr<EmbeddingWeight>> embedding(const std::string& name) {
    TANDEM_ASSIGN(const auto t, checkpoint_.tensor(name));
    return ops_.load_embedding(t.view);
  }

  Result<std::unique_ptr<LinearWeight>> linear(const std::vector<std::string>& names, bool bias,
                                               bool gate_up = false) {
    std::vector<model::CheckpointTensor> held;
    std::vector<const model::HostTensor*> parts;
    std::vector<const model::HostTensor*> biases;
    held.reserve(2 * names.size());  // pointers into it stay valid
    for (const std::string& name : names) TANDEM_TRY(fetch(name + ".weight", held, parts));
    if (bias)
      for (const std::string& name : names) TANDEM_TRY(fetch(name + ".bias", held, biases));
    return gate_up ? ops_.load_gate_up(parts, biases) : ops_.load_linear(parts, biases);
  }

  Result<std::unique_ptr<MoeWeight>> moe(const std::string& prefix, const MoeShape& shape) {
    std::vector<model::CheckpointTensor> held;
    std::vector<const model::HostTensor*> router;
    std::vector<const model::HostTensor*> gate;
    std::vector<const model::HostTensor*> up;
    std::vector<const model::HostTensor*> down;
    held.reserve(1 + 3 * size_t{shape.experts});
    TANDEM_TRY(fetch(prefix + "gate.weight", held, router));
    for (uint32_t e = 0; e < shape.experts; ++e) {
      const std::string expert = prefix + "experts." + std::to_string(e) + ".";
      TANDEM_TRY(fetch(expert + "gate_proj.weight", held, gate));
      TANDEM_TRY(fetch(expert + "up_proj.weight", held, up));
      TANDEM_TRY(fetch(expert + "down_proj.weight", held, down));
    }
    return ops_.load_moe(shape, *router.front(), gate, up, down);
  }

  Status layer(const model::ModelConfig& config, uint32_t index, const MoeShape& moe_shape,
               Layer& out) {
    const std::string at = "model.layers." + std::to_string(index) + ".";
    const std::string attention = at + "self_attn.";
    TANDEM_ASSIGN(out.input_norm, vector(at + "input_layernorm.weight"));
    TANDEM_ASSIGN(out.qkv,
                  linear({attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                         config.qkv_bias));
    if (config.qk_norm) {
      TANDEM_ASSIGN(out.q_norm, vector(attention + "q_norm.weight"));
      TANDEM_ASSIGN(out.k_norm, vector(attention + "k_norm.weight"));
    }
    TANDEM_ASSIGN(out.output, linear({attention + "o_proj"}, config.o_bias));
    TANDEM_ASSIGN(out.mlp_norm, vector(at + "post_attention_layernorm.weight"));
    if (config.is_moe_layer(index)) {
      TANDEM_ASSIGN(out.moe, moe(at + "mlp.", moe_shape));
      return {};
    }
    TANDEM_ASSIGN(out.gate_up,
                  linear({at + "mlp.gate_proj", at + "mlp.up_proj"}, config.mlp_bias, true));
    TANDEM_ASSIGN(out.down, linear({at + "mlp.down_proj"}, config.mlp_bias));
    return {};
  }

 private:
  Status fetch(const std::string& name, std::vector<model::CheckpointTensor>& held,
               std::vector<const model::HostTensor*>& out) {
    TANDEM_ASSIGN(auto t, checkpoint_.tensor(name));
    held.push_back(std::move(t));
    out.push_back(&held.back().view);
    return {};
  }

  const model::Checkpoint& checkpoint_;
  Ops& ops_;
};

namespace {

uint32_t context_of(const model::ModelConfig& config, const EngineOptions& options) {
  return options.max_context == 0 ? config.max_positions
                                  : std::min(options.max_context, config.max_positions);
}

}  // namespace

ForwardModel::ForwardModel(const model::ModelConfig& config, Ops& ops, const EngineOptions& options)
    : config_(config),
      ops_(ops),
      max_rows_(options.max_rows),
      context_(context_of(config, options)),
      rope_(rope_frequencies(config.rope, config.head_dim, context_), context_),
      moe_shape_{config.moe.experts, config.moe.experts_per_token, config.moe.intermediate,
                 config.moe.normalize_top_k},
      body_([this](const StepView& step, const KvPages& kv) { run_layers(step, kv); }) {}

Result<std::unique_ptr<ForwardModel>> ForwardModel::create(const model::Checkpoint& checkpoint,
                                                           Ops& ops, const EngineOptions& options) {
  if (options.max_rows == 0)
    return fail(ErrorCode::kInvalidArgument, "an engine needs at least one row a step", "max_rows");
  std::unique_ptr<ForwardModel> m(new ForwardModel(checkpoint.config(), ops, options));
  const model::ModelConfig& config = m->config_;
  checkpoint.prefetch();
  Loader loader(checkpoint, ops);
  TANDEM_ASSIGN(m->embedding_, loader.embedding("model.embed_tokens.weight"));
  m->layers_.resize(config.layers);
  for (uint32_t i = 0; i < config.layers; ++i)
    TANDEM_TRY(loader.layer(config, i, m->moe_shape_, m->layers_[i]));
  TANDEM_ASSIGN(m->final_norm_, loader.vector("model.norm.weight"));
  if (config.tied_head) {
    TANDEM_ASSIGN(m->head_, ops.load_tied_head(*m->embedding_));
  } else {
    TANDEM_ASSIGN(m->head_, loader.linear({"lm_head"}, false));
  }
  checkpoint.release_pages();
  TANDEM_TRY(ops.load_rope([&] { return m->rope_.table(m->context_); }));
  TANDEM_TRY(m->allocate());
  return m;
}

Status ForwardModel::allocate() {
  const int64_t rows = max_rows_;
  const int64_t q = int64_t{config_.heads} * config_.head_dim;
  const int64_t kv = int64_t{config_.kv_heads} * config_.head_dim;
  TANDEM_ASSIGN(x_, ops_.allocate_residual(rows, config_.hidden));
  TANDEM_ASSIGN(qkv_, ops_.allocate(rows, q + 2 * kv));
  TANDEM_ASSIGN(attended_, ops_.allocate(rows, q));
  bool dense = false;
  for (const Layer& layer : layers_) dense = dense || layer.moe == nullptr;
  if (dense) {
    TANDEM_ASSIGN(inner_, ops_.allocate(rows, config_.intermediate));
  }
  return {};
}

Status ForwardModel::run(const StepRequest& request, std::span<RowResult> results) {
  return ops_.run_step(request, body_, results);
}

Status ForwardModel::prepare(const KvPages& kv, uint32_t sequences) {
  return ops_.prepare(kv, sequences, body_);
}

void ForwardModel::run_layers(const StepView& step, const KvPages& kv) {
  uint32_t positions = 0;
  for (const SequenceView& s : step.sequences) positions = std::max(positions, s.start + s.rows);
  const RopeTable rope = rope_.table(positions);
  ops_.embed(step, *embedding_, x_);
  for (uint32_t i = 0; i < config_.layers; ++i) {
    run_attention(step, i, kv, rope);
    run_mlp(step.rows(), layers_[i]);
  }
  ops_.outputs(x_, *final_norm_, config_.norm_eps, *head_);
}

void ForwardModel::run_attention(const StepView& step, uint32_t index, const KvPages& kv,
                                 const RopeTable& rope) {
  const Layer& layer = layers_[index];
  QkvParams params;
  params.shape = {config_.heads, config_.kv_heads, config_.head_dim,
                  1.0F / std::sqrt(static_cast<float>(config_.head_dim)), config_.windows[index]};
  params.rope = rope;
  params.q_norm = layer.q_norm.get();
  params.k_norm = layer.k_norm.get();
  params.norm_eps = config_.norm_eps;
  ops_.norm_linear(step.rows(), x_, *layer.input_norm, config_.norm_eps, *layer.qkv, qkv_);
  ops_.write_kv(step, index, params, qkv_, kv);
  ops_.layer_written(index);
  ops_.attention(step, index, params.shape, qkv_, kv, attended_);
  ops_.linear_add(step.rows(), attended_, *layer.output, x_);
}

void ForwardModel::run_mlp(uint32_t rows, const Layer& layer) {
  if (layer.moe != nullptr) {
    ops_.norm_moe(rows, x_, *layer.mlp_norm, config_.norm_eps, moe_shape_, *layer.moe);
    return;
  }
  ops_.norm_gate_up(rows, x_, *layer.mlp_norm, config_.norm_eps, *layer.gate_up, inner_);
  ops_.linear_add(rows, inner_, *layer.down, x_);
}

}  // namespace tandem::engine

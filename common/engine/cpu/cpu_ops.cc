#include "common/engine/cpu/cpu_ops.h"

#include <algorithm>
#include <string>

#include "common/base/check.h"
#include "common/base/process_limits.h"
#include "common/engine/cpu/attention.h"
#include "common/engine/cpu/kv_pages.h"
#include "common/engine/cpu/linear.h"
#include "common/engine/cpu/moe.h"
#include "common/engine/cpu/thread_pool.h"
#include "common/engine/cpu/weights.h"
#include "kernels/cpu/kernels.h"

namespace tandem::engine {
namespace {

const float* vector_data(const VectorWeight* v) {
  return v == nullptr ? nullptr : static_cast<const CpuVector*>(v)->data;
}

LinearInput rows_of(Activation a) {
  LinearInput in;
  in.x = static_cast<const float*>(a.data);
  in.stride = a.cols;
  return in;
}

LinearInput rows_of(Activation a, const VectorWeight& norm, float eps) {
  LinearInput in = rows_of(a);
  in.norm = vector_data(&norm);
  in.eps = eps;
  return in;
}

LinearOutput rows_to(Epilogue epilogue, Activation a) {
  return {epilogue, static_cast<float*>(a.data), a.cols};
}

class CpuOps final : public HostOps {
 public:
  CpuOps(std::unique_ptr<ThreadPool> pool, const cpu::KernelTable& kernels, DType weights)
      : pool_(std::move(pool)),
        kernels_(kernels),
        type_(weights),
        name_("cpu-" + std::string(cpu::to_string(kernels.isa))),
        loader_(arena_, *pool_, kernels),
        linear_(*pool_, kernels),
        writer_(*pool_, kernels),
        attention_(*pool_, kernels),
        moe_(*pool_, kernels, linear_) {}

  Result<std::unique_ptr<LinearWeight>> load_linear(
      std::span<const model::HostTensor* const> parts,
      std::span<const model::HostTensor* const> biases) override {
    return loader_.linear(parts, biases, type_);
  }

  Result<std::unique_ptr<VectorWeight>> load_vector(const model::HostTensor& values) override {
    auto v = std::make_unique<CpuVector>();
    v->size = values.elements();
    TANDEM_ASSIGN(v->data, loader_.vector(values));
    return v;
  }

  Result<std::unique_ptr<EmbeddingWeight>> load_embedding(const model::HostTensor& table) override {
    auto e = std::make_unique<CpuEmbedding>();
    const model::HostTensor* const parts[] = {&table};
    TANDEM_ASSIGN(e->table, loader_.linear(parts, {}, type_));
    e->vocab = e->table->out;
    e->hidden = e->table->in;
    return e;
  }

  Result<std::unique_ptr<LinearWeight>> load_tied_head(const EmbeddingWeight& table) override {
    return std::make_unique<CpuLinear>(*static_cast<const CpuEmbedding&>(table).table);
  }

  Result<std::unique_ptr<MoeWeight>> load_moe(
      const MoeShape& shape, const model::HostTensor& router,
      std::span<const model::HostTensor* const> gate, std::span<const model::HostTensor* const> up,
      std::span<const model::HostTensor* const> down) override;

  Result<Activation> allocate(int64_t rows, int64_t cols) override {
    TANDEM_ASSIGN(std::byte * data, arena_.allocate(static_cast<size_t>(rows) *
                                                    static_cast<size_t>(cols) * sizeof(float)));
    return Activation{data, rows, cols};
  }

  void embed(const StepView& step, const EmbeddingWeight& table, Activation out) override;
  void norm_linear(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                   const LinearWeight& weight, Activation out) override {
    linear_.run(rows, rows_of(x, norm, eps), static_cast<const CpuLinear&>(weight),
                rows_to(Epilogue::kStore, out));
  }
  void write_kv(const StepView& step, uint32_t layer, const QkvParams& params, Activation qkv,
                const KvPages& kv) override {
    writer_.write(step, layer, params, vector_data(params.q_norm), vector_data(params.k_norm), qkv,
                  kv);
  }
  void attention(const StepView& step, uint32_t layer, const AttentionShape& shape, Activation qkv,
                 const KvPages& kv, Activation out) override {
    attention_.run(step, layer, shape, qkv, kv, writer_, out);
  }
  void linear_add(uint32_t rows, Activation in, const LinearWeight& weight, Activation x) override {
    linear_.run(rows, rows_of(in), static_cast<const CpuLinear&>(weight),
                rows_to(Epilogue::kAdd, x));
  }
  void norm_gate_up(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                    const LinearWeight& gate_up, Activation out) override {
    linear_.run(rows, rows_of(x, norm, eps), static_cast<const CpuLinear&>(gate_up),
                rows_to(Epilogue::kSiluMul, out));
  }
  void norm_moe(uint32_t rows, Activation x, const VectorWeight& norm, float eps,
                const MoeShape& shape, const MoeWeight& weight) override {
    moe_.run(rows, rows_of(x, norm, eps), shape, static_cast<const CpuMoe&>(weight), x);
  }
  void logits(std::span<const uint32_t> rows, Activation x, const VectorWeight& norm, float eps,
              const LinearWeight& head, float* out) override {
    LinearInput in = rows_of(x, norm, eps);
    in.rows = rows;
    linear_.run(static_cast<int64_t>(rows.size()), in, static_cast<const CpuLinear&>(head),
                {Epilogue::kStore, out, head.out});
  }

  [[nodiscard]] size_t weight_bytes() const override { return loader_.bytes(); }
  [[nodiscard]] std::string_view name() const override { return name_; }

 private:
  std::unique_ptr<ThreadPool> pool_;
  const cpu::KernelTable& kernels_;
  const DType type_;
  const std::string name_;
  CpuArena arena_;
  WeightLoader loader_;
  LinearRunner linear_;
  KvWriter writer_;
  AttentionRunner attention_;
  MoeRunner moe_;
};

Result<std::unique_ptr<MoeWeight>> CpuOps::load_moe(
    const MoeShape& shape, const model::HostTensor& router,
    std::span<const model::HostTensor* const> gate, std::span<const model::HostTensor* const> up,
    std::span<const model::HostTensor* const> down) {
  auto moe = std::make_unique<CpuMoe>();
  const model::HostTensor* const routers[] = {&router};
  TANDEM_ASSIGN(moe->router, loader_.linear(routers, {}, DType::kF32));
  for (size_t e = 0; e < shape.experts; ++e) {
    const model::HostTensor* const in[] = {gate[e], up[e]};
    const model::HostTensor* const out[] = {down[e]};
    TANDEM_ASSIGN(auto gate_up, loader_.linear(in, {}, type_));
    TANDEM_ASSIGN(auto down_weight, loader_.linear(out, {}, type_));
    moe->gate_up.push_back(std::move(gate_up));
    moe->down.push_back(std::move(down_weight));
  }
  return moe;
}

void CpuOps::embed(const StepView& step, const EmbeddingWeight& table, Activation out) {
  const CpuLinear& weight = *static_cast<const CpuEmbedding&>(table).table;
  pool_->split(step.rows(), 16, [&](uint32_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const TokenId token = step.tokens[static_cast<size_t>(r)];
      TANDEM_CHECK(token >= 0 && token < table.vocab, "token id outside the vocabulary");
      const std::byte* panel = weight.panel(token / cpu::kPanel);
      float* to = static_cast<float*>(out.data) + r * out.cols;
      if (weight.type == DType::kF32)
        kernels_.pack.unpack_f32(reinterpret_cast<const float*>(panel), token % cpu::kPanel,
                                 weight.in, to);
      else
        kernels_.pack.unpack_bf16(reinterpret_cast<const uint16_t*>(panel), token % cpu::kPanel,
                                  weight.in, to);
    }
  });
}

}  // namespace

Result<std::unique_ptr<HostOps>> create_cpu_ops(const CpuOptions& options) {
  if (options.weights != DType::kF32 && options.weights != DType::kBf16)
    return fail(ErrorCode::kUnsupported,
                "the CPU engine keeps weights as float32 or bfloat16, not " +
                    std::string(to_string(options.weights)));
  const cpu::CpuIsa isa = options.isa.value_or(cpu::best_isa());
  if (std::ranges::count(cpu::supported_isas(), isa) == 0)
    return fail(ErrorCode::kUnsupported,
                "this machine does not run " + std::string(cpu::to_string(isa)) +
                    " kernels; its best are " + std::string(cpu::to_string(cpu::best_isa())));
  uint32_t threads = options.threads;
  if (threads == 0)
    threads = options.cpus.empty() ? usable_cpus() : static_cast<uint32_t>(options.cpus.size());
  TANDEM_ASSIGN(auto pool, ThreadPool::create(threads, options.cpus));
  return std::make_unique<CpuOps>(std::move(pool), cpu::kernels(isa), options.weights);
}

}  // namespace tandem::engine

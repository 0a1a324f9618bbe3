#include "common/engine/cuda/linear_wide.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "common/cuda/cuda_status.h"

namespace tandem::engine {
namespace {

// Asked for at each bucket; the library orders them by its own estimate and the best is nearly
// always among the first few (H200, Qwen2-7B shapes).
constexpr int kCandidates = 8;
constexpr int kTimedRuns = 3;

static_assert(sizeof(WideAlgorithm) == sizeof(cublasLtMatmulAlgo_t));

cudaDataType_t result_type(WideOutput output) {
  return output == WideOutput::kStore ? CUDA_R_16BF : CUDA_R_32F;
}

// Whether the epilogue adds a bias is part of what is chosen, and what is multiplied.
WideKey key_of(const WideTask& task, uint32_t rows) {
  const uint32_t kind = static_cast<uint32_t>(task.output) * 2 + (task.bias != nullptr ? 1U : 0U) +
                        (task.fp8() ? 8U : 0U);
  return {kind, task.in, task.out, rows};
}

cublasLtMatmulAlgo_t as_library(const WideAlgorithm& algorithm) {
  return std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
}

}  // namespace

// Descriptors of one shape. In the library's column-major words: result[out, rows] =
// weight[in, out]^T x[in, rows].
struct WideLinear::Product {
  const cuda::CublasLtApi* api = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t result = nullptr;
  uint32_t rows = 0;  // as the layouts say
};

void WideLinear::ProductDeleter::operator()(Product* p) const {
  if (p->operation != nullptr) (void)p->api->cublasLtMatmulDescDestroy(p->operation);
  for (const cublasLtMatrixLayout_t layout : {p->weight, p->x, p->result})
    if (layout != nullptr) (void)p->api->cublasLtMatrixLayoutDestroy(layout);
  delete p;
}

#define LT_TRY(name, ...) TANDEM_TRY(deps_.lt->status(deps_.lt->api().name(__VA_ARGS__), #name))

Result<WideLinear> WideLinear::create(Deps deps) {
  WideCache cache({deps.gpu, deps.lt->version(), deps.workspace_bytes});
  std::vector<std::string> warnings;
  if (!deps.cache_path.empty())
    if (const Status status = cache.load(deps.cache_path); !status)
      warnings.push_back(status.error().detail);
  WideLinear result(std::move(deps), std::move(cache));
  result.warnings_ = std::move(warnings);
  return result;
}

Result<WideLinear::Product*> WideLinear::product(const WideTask& task) {
  const WideKey key = key_of(task, 0);
  const auto it = products_.find(key);
  if (it != products_.end()) return it->second.get();
  std::unique_ptr<Product, ProductDeleter> p(new Product{});
  p->api = &deps_.lt->api();
  LT_TRY(cublasLtMatmulDescCreate, &p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  LT_TRY(cublasLtMatmulDescSetAttribute, p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
         sizeof transposed);
  if (task.bias != nullptr) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t type = CUDA_R_16BF;
    LT_TRY(cublasLtMatmulDescSetAttribute, p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
           sizeof epilogue);
    LT_TRY(cublasLtMatmulDescSetAttribute, p->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
           sizeof type);
  }
  const cudaDataType_t element = task.fp8() ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  if (task.fp8()) {
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    for (const auto attribute :
         {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
      LT_TRY(cublasLtMatmulDescSetAttribute, p->operation, attribute, &mode, sizeof mode);
    const int8_t fast = deps_.fast_accumulation ? 1 : 0;
    LT_TRY(cublasLtMatmulDescSetAttribute, p->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast,
           sizeof fast);
  }
  const auto in = static_cast<uint64_t>(task.in);
  const auto out = static_cast<uint64_t>(task.out);
  LT_TRY(cublasLtMatrixLayoutCreate, &p->weight, element, in, out, task.in);
  LT_TRY(cublasLtMatrixLayoutCreate, &p->x, element, in, 1, task.in);
  LT_TRY(cublasLtMatrixLayoutCreate, &p->result, result_type(task.output), out, 1, task.out);
  p->rows = 1;
  Product* raw = p.get();
  products_[key] = std::move(p);
  return raw;
}

Status WideLinear::set_rows(Product& p, const WideTask& task) const {
  if (task.bias != nullptr)
    LT_TRY(cublasLtMatmulDescSetAttribute, p.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
           &task.bias, sizeof task.bias);
  if (task.fp8()) {
    LT_TRY(cublasLtMatmulDescSetAttribute, p.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
           &task.weight_scales, sizeof task.weight_scales);
    LT_TRY(cublasLtMatmulDescSetAttribute, p.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
           &task.x_scales, sizeof task.x_scales);
  }
  if (p.rows == task.rows) return {};
  const uint64_t columns = task.rows;
  for (const cublasLtMatrixLayout_t layout : {p.x, p.result})
    LT_TRY(cublasLtMatrixLayoutSetAttribute, layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns,
           sizeof columns);
  p.rows = task.rows;
  return {};
}

Status WideLinear::enqueue(Product& p, const WideTask& task, const WideAlgorithm& algorithm,
                           cudaStream_t stream) const {
  const cublasLtMatmulAlgo_t chosen = as_library(algorithm);
  const float one = 1.0F;
  const float beta = task.output == WideOutput::kAdd ? 1.0F : 0.0F;
  LT_TRY(cublasLtMatmul, deps_.lt->handle(), p.operation, &one, task.weight, p.weight, task.x, p.x,
         &beta, task.result, p.result, task.result, p.result, &chosen, deps_.workspace,
         deps_.workspace_bytes, stream);
  return {};
}

Result<std::vector<WideAlgorithm>> WideLinear::candidates(Product& p, const WideTask& task) {
  cublasLtMatmulPreference_t preference = nullptr;
  LT_TRY(cublasLtMatmulPreferenceCreate, &preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return deps_.lt->status(deps_.lt->api().cublasLtMatmulPreferenceSetAttribute(
                                preference, attribute, &value, sizeof value),
                            "cublasLtMatmulPreferenceSetAttribute");
  };
  // What an algorithm may assume must hold for every use of the shape: activations lie on 256-byte
  // boundaries, weights within an arena as well.
  const auto alignment = [](const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    return static_cast<uint32_t>(std::min<uintptr_t>(256, address & (~address + 1)));
  };
  Status status = set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, deps_.workspace_bytes);
  if (status) status = set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(task.weight));
  if (status) status = set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(task.x));
  if (status) status = set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(task.result));
  if (status) status = set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(task.result));
  cublasLtMatmulHeuristicResult_t results[kCandidates] = {};
  int found = 0;
  cublasStatus_t answer = CUBLAS_STATUS_SUCCESS;
  if (status)
    answer = deps_.lt->api().cublasLtMatmulAlgoGetHeuristic(
        deps_.lt->handle(), p.operation, p.weight, p.x, p.result, p.result, preference, kCandidates,
        results, &found);
  (void)deps_.lt->api().cublasLtMatmulPreferenceDestroy(preference);
  TANDEM_TRY(std::move(status));
  if (answer != CUBLAS_STATUS_NOT_SUPPORTED)
    TANDEM_TRY(deps_.lt->status(answer, "cublasLtMatmulAlgoGetHeuristic"));
  std::vector<WideAlgorithm> algorithms;
  for (int i = 0; i < found; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS)
      algorithms.push_back(std::bit_cast<WideAlgorithm>(results[i].algo));
  if (algorithms.empty())
    return fail(ErrorCode::kUnsupported,
                "cuBLASLt has no " + std::string(task.fp8() ? "fp8" : "bf16") + " product of " +
                    std::to_string(task.in) + " inputs and " + std::to_string(task.out) +
                    " outputs");
  return algorithms;
}

Result<WideAlgorithm> WideLinear::fastest(Product& p, const WideTask& task,
                                          const cuda::Stream& stream) {
  TANDEM_ASSIGN(const std::vector<WideAlgorithm> all, candidates(p, task));
  TANDEM_ASSIGN(const cuda::Event begin, cuda::Event::create(cuda::Event::Kind::kTiming));
  TANDEM_ASSIGN(const cuda::Event end, cuda::Event::create(cuda::Event::Kind::kTiming));
  float best = std::numeric_limits<float>::infinity();
  WideAlgorithm chosen = all.front();
  for (const WideAlgorithm& algorithm : all) {
    // The first run also loads the kernel.
    if (!enqueue(p, task, algorithm, stream.get())) continue;
    TANDEM_TRY(begin.record(stream));
    for (int i = 0; i < kTimedRuns; ++i) TANDEM_TRY(enqueue(p, task, algorithm, stream.get()));
    TANDEM_TRY(end.record(stream));
    TANDEM_TRY(end.synchronize());
    TANDEM_ASSIGN(const float milliseconds, end.milliseconds_since(begin));
    if (milliseconds >= best) continue;
    best = milliseconds;
    chosen = algorithm;
  }
  return chosen;
}

Status WideLinear::prepare(std::span<const WideTask> tasks, uint32_t max_rows,
                           const cuda::Stream& stream) {
  for (WideTask task : tasks) {
    TANDEM_ASSIGN(Product * p, product(task));
    for (uint32_t bucket = wide_bucket(1);; bucket = wide_bucket(bucket + 1)) {
      task.rows = std::min(bucket, max_rows);
      const WideKey key = key_of(task, bucket);
      if (!chosen_.contains(key)) {
        TANDEM_TRY(set_rows(*p, task));
        std::optional<WideAlgorithm> known = cache_.find(key);
        if (known) {
          const cublasLtMatmulAlgo_t algorithm = as_library(*known);
          cublasLtMatmulHeuristicResult_t checked{};
          if (deps_.lt->api().cublasLtMatmulAlgoCheck(deps_.lt->handle(), p->operation, p->weight,
                                                      p->x, p->result, p->result, &algorithm,
                                                      &checked) != CUBLAS_STATUS_SUCCESS ||
              checked.workspaceSize > deps_.workspace_bytes ||
              !enqueue(*p, task, *known, stream.get()))
            known.reset();
        }
        if (!known) {
          auto found = fastest(*p, task, stream);
          if (!found && found.error().code == ErrorCode::kUnsupported) break;
          TANDEM_ASSIGN(known, std::move(found));
          ++timed_;
          changed_ = true;
          cache_.put(key, *known);
        }
        chosen_[key] = *known;
      }
      if (bucket >= max_rows) break;
    }
  }
  return stream.synchronize();
}

Status WideLinear::save() const {
  if (deps_.cache_path.empty() || !changed_) return {};
  return cache_.save(deps_.cache_path);
}

Status WideLinear::run(const WideTask& task, cudaStream_t stream) {
  TANDEM_ASSIGN(Product * p, product(task));
  TANDEM_TRY(set_rows(*p, task));
  const WideKey key = key_of(task, wide_bucket(task.rows));
  auto it = chosen_.find(key);
  if (it == chosen_.end()) {
    TANDEM_ASSIGN(const std::vector<WideAlgorithm> all, candidates(*p, task));
    it = chosen_.emplace(key, all.front()).first;
  }
  return enqueue(*p, task, it->second, stream);
}

}  // namespace tandem::engine

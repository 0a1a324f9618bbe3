#include "common/engine/cuda/fp8_row.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "common/kv/codec.h"
#include "kernels/cuda/fp8_rows.h"

namespace tandem::engine {
namespace {

constexpr size_t kFirstCublasLt = 120900;
// What cuBLASLt wants of FP8 matrices' rows, in bytes.
constexpr int64_t kMultiple = 16;

}  // namespace

float quantize_fp8_row(std::span<const float> row, uint8_t* out) {
  float most = 0;
  for (const float x : row) most = std::max(most, std::abs(x));
  const float factor = most > 0 ? kv::kMaxE4m3 / most : 0.0F;
  for (size_t i = 0; i < row.size(); ++i) out[i] = kv::float_to_e4m3(row[i] * factor);
  return most / kv::kMaxE4m3;
}

Status check_fp8(const cuda::DeviceInfo& device, size_t cublaslt_version) {
  const std::string card = "device " + std::to_string(device.index) + " (" + device.name + ")";
  if (device.major != 9) {
    return fail(ErrorCode::kUnsupported,
                "quantization fp8 wants a Hopper card (compute capability 9.0); " + card + " has " +
                    std::to_string(device.major) + "." + std::to_string(device.minor) +
                    ": use quantization none",
                "quantization");
  }
  if (cublaslt_version < kFirstCublasLt) {
    return fail(ErrorCode::kUnsupported,
                "quantization fp8 wants cuBLASLt 12.9 or newer, the one found is " +
                    std::to_string(cublaslt_version / 10000) + "." +
                    std::to_string(cublaslt_version / 100 % 100) +
                    ": name a newer one's folder in gpu.libraries, or use quantization none",
                "quantization");
  }
  return {};
}

Status check_fp8_shape(int64_t in, int64_t out) {
  if (in > cuda::kFp8RowCols)
    return fail(ErrorCode::kUnsupported,
                "quantization fp8 wants projections of at most " +
                    std::to_string(cuda::kFp8RowCols) + " inputs; this model has one of " +
                    std::to_string(in) + ": use quantization none",
                "quantization");
  if (in > 0 && out > 0 && in % kMultiple == 0 && out % kMultiple == 0) return {};
  return fail(ErrorCode::kUnsupported,
              "quantization fp8 wants projections whose sizes are multiples of 16; this model has "
              "one of " +
                  std::to_string(in) + " inputs and " + std::to_string(out) +
                  " outputs: use quantization none",
              "quantization");
}

Status check_fp8_model(const model::ModelConfig& model) {
  if (model.moe.experts > 0)
    return fail(ErrorCode::kUnsupported,
                "quantization fp8 is for dense models; this one is a mixture of experts: use "
                "quantization none",
                "quantization");
  const int64_t q = int64_t{model.heads} * model.head_dim;
  const int64_t kv = int64_t{model.kv_heads} * model.head_dim;
  TANDEM_TRY(check_fp8_shape(model.hidden, q + 2 * kv));
  TANDEM_TRY(check_fp8_shape(q, model.hidden));
  TANDEM_TRY(check_fp8_shape(model.hidden, 2 * int64_t{model.intermediate}));
  return check_fp8_shape(model.intermediate, model.hidden);
}

}  // namespace tandem::engine

#include "common/engine/cuda/bench/device_bench.h"
#include "common/engine/cuda/bench/transfer_bench.h"

namespace tandem::bench {
namespace {

tl::unexpected<Error> not_built() {
  return fail(
      ErrorCode::kUnsupported,
      "this program was built without CUDA; build it with -DTANDEM_CUDA=ON to bench a card");
}

}  // namespace

Result<Ceilings> bench_ceilings(const KernelBenchOptions& /*options*/) { return not_built(); }
Result<Ceilings> bench_kernels(const KernelBenchOptions& /*options*/, const RowSink& /*sink*/) {
  return not_built();
}
Result<double> product_seconds(const KernelBenchOptions& /*options*/, const LayerShape& /*shape*/,
                               uint32_t /*rows*/, bool /*fp8*/) {
  return not_built();
}
Result<Ceilings> bench_transfers(const TransferBenchOptions& /*options*/,
                                 const std::vector<std::string>& /*program*/,
                                 const RowSink& /*sink*/) {
  return not_built();
}
Status serve_transfers(const TransferPlace& /*place*/,
                       const std::vector<std::string>& /*libraries*/) {
  return not_built();
}

}  // namespace tandem::bench

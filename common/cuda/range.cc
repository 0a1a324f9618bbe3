#include "common/cuda/range.h"

#include <nvtx3/nvToolsExt.h>

namespace tandem::cuda {

Range::Range(const char* name) { (void)nvtxRangePushA(name); }
Range::~Range() { (void)nvtxRangePop(); }

}  // namespace tandem::cuda

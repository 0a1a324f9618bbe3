#include "kernels/cuda/tensor_map.h"

namespace tandem::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

// Asked of the runtime, so that nothing links libcuda: a machine without a driver still starts.
Encode find_encode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                              12000, cudaEnableDefault, &found);
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Encode>(entry);
}

}  // namespace

cudaError_t make_tensor_map(const TensorMap3d& tensor, CUtensorMap& map) {
  static const Encode encode = find_encode();
  if (encode == nullptr) return cudaErrorNotSupported;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  if (tensor.swizzle == 128)
    swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  else if (tensor.swizzle == 64)
    swizzle = CU_TENSOR_MAP_SWIZZLE_64B;
  else if (tensor.swizzle == 32)
    swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
  else
    return cudaErrorInvalidValue;
  const std::array<cuuint64_t, 3> size = {tensor.size[0], tensor.size[1], tensor.size[2]};
  const std::array<cuuint64_t, 2> strides = {tensor.stride_1, tensor.stride_2};
  const std::array<cuuint32_t, 3> steps = {1, 1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(tensor.data), size.data(),
             strides.data(), tensor.box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
             swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace tandem::cuda

#include "kernels/cuda/sampling.h"

#include "kernels/cuda/sampling_cut.cuh"

// One cluster of thread blocks a row, each block with its slice of the logits in shared memory:
// memory is read once, whatever the row asks for. Blocks meet at cluster barriers and read each
// other's partial results. Against the CPU sampler only the rounding of sums differs: masses are
// the same floats, added as integers in units of 2^-44 instead of as floats by chunk and then as
// doubles, which moves a boundary by about 1e-7 of the whole.
//
// Where a row cuts (top-k, top-p) the cut is a place in the order "higher logit, then lower id".
// For a small top-k, gather_best() finds it among a few candidates: the k-th best of all threads'
// best logits bounds the k-th best logit from below. Else select_cut() narrows a window of logits
// by histograms until few candidates are left.
namespace tandem::cuda {
namespace sampling {
namespace {

class Row : public Cutter {
 public:
  __device__ Row(const SamplingPlan& plan, const float* logits, const SampleRow& row,
                 const DeviceSampling& io, uint32_t index, float* dynamic, Shared& shared)
      : Cutter(plan, logits, dynamic, shared), row_(row), io_(io), index_(index) {}

  __device__ void run(bool vectors) {
    const bool penalized = row_.bias_count > 0 || row_.history != kNoHistory;
    const bool greedy = row_.mode == SampleMode::kSample && row_.inverse == 0;
    const bool scored = row_.mode == SampleMode::kScore || row_.logprobs >= 0;
    if (greedy && !penalized && !scored) {
      load_best(vectors);
    } else {
      load(vectors);
    }
    Spread spread = agree(mine_);
    if (scored) {
      set_range(spread, 1.0F);
      raw_top_ = top_;
      log_sum_ = top_ == impossible() ? 0.0F : log_of(sum_masses(none()).total);
      if (row_.logprobs > 0) list_top();
    }
    if (row_.mode == SampleMode::kScore) {
      if (rank_ == 0 && thread_ == 0) write_logprob(static_cast<uint32_t>(row_.token));
      return;
    }
    if (penalized) {
      penalize();
      mine_ = rescan();
      spread = agree(mine_);
    }
    set_range(spread, row_.inverse);
    if (greedy || top_ == impossible()) {
      if (rank_ == 0 && thread_ == 0) finish(id_of(spread.best));
      return;
    }
    draw(find_cut(row_));
  }

  // No block may leave while another can still read its shared memory.
  __device__ void leave() { cluster_.sync(); }

 private:
  // ---- penalties ----

  __device__ void penalize() {
    __syncthreads();
    const SampleBias* bias = io_.biases + row_.bias_first;
    for (uint32_t b = thread_; b < row_.bias_count; b += kThreads) {
      const int32_t id = bias[b].id;
      if (b > 0 && bias[b - 1].id == id) continue;  // the run's first thread adds all, in order
      const uint32_t at = static_cast<uint32_t>(id) - first_;
      if (at >= count_) continue;
      float x = slice_[at];
      for (uint32_t k = b; k < row_.bias_count && bias[k].id == id; ++k)
        x = __fadd_rn(x, bias[k].value);
      slice_[at] = x;
    }
    __syncthreads();
    if (row_.history == kNoHistory) return;
    for (uint32_t part = 0; part < count_; part += kCounts) penalize_part(part);
  }

  __device__ void penalize_part(uint32_t part) {
    constexpr uint32_t kInPrompt = 0x80000000u;
    const bool repetition = row_.repetition != 1.0F && row_.repetition > 0.0F;
    const uint32_t size = min(kCounts, count_ - part);
    const int32_t* history = io_.history + size_t{row_.history} * io_.history_stride;
    uint32_t* counts = words_;
    for (uint32_t i = thread_; i < size; i += kThreads) counts[i] = 0;
    __syncthreads();
    for (uint32_t i = (repetition ? 0 : row_.prompt) + thread_; i < row_.length; i += kThreads) {
      const uint32_t at = static_cast<uint32_t>(__ldcg(history + i)) - first_ - part;
      if (at >= size) continue;
      if (i < row_.prompt) {
        atomicOr(&counts[at], kInPrompt);
      } else {
        atomicAdd(&counts[at], 1);
      }
    }
    __syncthreads();
    for (uint32_t i = thread_; i < size; i += kThreads) {
      const uint32_t seen = counts[i];
      if (seen == 0) continue;
      float x = slice_[part + i];
      if (repetition) x = x > 0 ? __fdiv_rn(x, row_.repetition) : __fmul_rn(x, row_.repetition);
      const uint32_t times = seen & ~kInPrompt;
      if (times > 0 && (row_.presence != 0 || row_.frequency != 0))
        x = __fsub_rn(
            x, __fadd_rn(row_.presence, __fmul_rn(row_.frequency, static_cast<float>(times))));
      slice_[part + i] = x;
    }
    __syncthreads();
  }

  // Walks what the cut keeps in id order until the mass passes u of the whole.
  __device__ void draw(const Cut& cut) {
    const Sum sum = sum_masses(cut);
    const u64 odd = 2 * static_cast<u64>(philox(row_.seed, row_.length)) + 1;  // u * 2^33
    const u64 target = (__umul64hi(sum.total, odd) << 31) | ((sum.total * odd) >> 33);
    u64 seen = sum.before + warps_before();
    if (target < seen || target >= seen + sum.warp) return;
    for (uint32_t i = begin_; i < end_; i += kSampleGroup) {
      u64 m[4];
      u64 mine = 0;
      for (uint32_t k = 0; k < 4; ++k) {
        const float x = slice_[i + k];
        const bool kept = better_or_equal(x, first_ + i + k, cut.logit, cut.id);
        m[k] = kept ? mass_of(x, top_, inverse_) : 0;
        mine += m[k];
      }
      const u64 inclusive = seen + warp_inclusive(mine, lane_);
      u64 at = inclusive - mine;
      if (target >= at && target < inclusive) {
        for (uint32_t k = 0; k < 4; ++k) {
          if (target >= at && target < at + m[k]) finish(first_ + i + k);
          at += m[k];
        }
      }
      seen = __shfl_sync(kAll, inclusive, 31);
      if (target < seen) return;
    }
  }

  // ---- results ----

  __device__ static float log_of(u64 mass) {
    return static_cast<float>(log(static_cast<double>(mass) * 0x1p-44));
  }
  __device__ float logprob(float raw) const {
    const float value = __fsub_rn(__fsub_rn(raw, raw_top_), log_sum_);
    return value > kMinLogprob ? value : kMinLogprob;  // false for NaN too
  }
  __device__ void write_logprob(uint32_t id) {
    io_.logprobs[index_] = logprob(sanitized(__ldcg(logits_ + id)));
  }

  // The best of the raw distribution; the slice still is that.
  __device__ void list_top() {
    const uint32_t k = min(static_cast<uint32_t>(row_.logprobs), min(vocab_, io_.top_capacity));
    uint32_t n = gather_best(k);
    if (n > kCandidates) {
      const Cut cut = select_cut(false, k, 0, none());
      new_list();
      cluster_.sync();
      each([&](float x, uint32_t i) {
        append(i < count_ && better_or_equal(x, first_ + i, cut.logit, cut.id), x, first_ + i);
      });
      cluster_.sync();
      n = list_size();
    }
    if (rank_ != 0) return;
    sort_list(n);
    SampleTop* out = io_.top + size_t{index_} * io_.top_capacity;
    for (uint32_t i = thread_; i < k; i += kThreads)
      out[i] = {static_cast<int32_t>(id_of(list_[i])), logprob(logit_of(list_[i]))};
    __syncthreads();
  }

  __device__ void finish(uint32_t id) {
    io_.tokens[index_] = static_cast<int32_t>(id);
    if (row_.appends != 0 && row_.history != kNoHistory && row_.length < io_.history_stride)
      io_.history[size_t{row_.history} * io_.history_stride + row_.length] =
          static_cast<int32_t>(id);
    if (row_.logprobs >= 0) write_logprob(id);
  }

  const SampleRow& row_;
  const DeviceSampling& io_;
  uint32_t index_;
  float raw_top_ = 0;
  float log_sum_ = 0;
};

__global__ void __launch_bounds__(kThreads, 2)
    sample_rows(SamplingPlan plan, const float* logits, size_t stride, DeviceSampling io) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared shared;
  __shared__ __align__(16) uint32_t words[sizeof(SampleRow) / sizeof(uint32_t)];
  const uint32_t index = blockIdx.x / plan.cluster;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (threadIdx.x < sizeof(SampleRow) / sizeof(uint32_t))
    words[threadIdx.x] = reinterpret_cast<const uint32_t*>(io.rows + index)[threadIdx.x];
  __syncthreads();
  const SampleRow& row = *reinterpret_cast<const SampleRow*>(words);
  if (row.mode == SampleMode::kSkip) return;  // all blocks of the cluster
  Row worker(plan, logits + row.source * stride, row, io, index, reinterpret_cast<float*>(dynamic),
             shared);
  worker.run(stride % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % 16 == 0);
  worker.leave();
}

}  // namespace
}  // namespace sampling

cudaError_t prepare_sampling(const SamplingPlan& plan) {
  if (plan.cluster == 0) return cudaErrorInvalidValue;
  const cudaError_t error =
      cudaFuncSetAttribute(sampling::sample_rows, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(plan.shared_bytes));
  if (error != cudaSuccess) return error;
  // Without this the driver may keep only enough shared memory for one block an SM.
  return cudaFuncSetAttribute(sampling::sample_rows, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

cudaError_t launch_sampling(const SamplingPlan& plan, const float* logits, size_t stride,
                            uint32_t rows, const DeviceSampling& io, bool overlap,
                            cudaStream_t stream) {
  if (plan.cluster == 0 || stride < plan.vocab || io.top_capacity > kMaxTop)
    return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = plan.cluster;
  attributes[0].val.clusterDim.y = 1;
  attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(rows * plan.cluster);
  config.blockDim = dim3(sampling::kThreads);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = overlap ? 2 : 1;
  const cudaError_t launched =
      cudaLaunchKernelEx(&config, sampling::sample_rows, plan, logits, stride, io);
  return launched != cudaSuccess ? launched : cudaGetLastError();
}

}  // namespace tandem::cuda

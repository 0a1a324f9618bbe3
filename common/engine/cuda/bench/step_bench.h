#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/engine/cuda/bench/device_bench.h"
#include "common/engine/cuda/cuda_ops.h"
#include "common/kv/layout.h"

namespace tandem::bench {

struct StepBenchOptions {
  KernelBenchOptions card;  // device and libraries
  // A folder with a config.json, its weights made up; empty: Qwen2-7B's shape.
  std::string model;
  uint32_t layers = 0;  // instead of the model's, to load faster; 0: all
  std::vector<uint32_t> batches = {1, 8, 32};
  uint32_t context = 1024;  // tokens of each decoding sequence
  // Of one sequence that decodes alone, besides; 0: none.
  uint32_t long_context = 8192;
  // New tokens that one sequence has in a step, to be verified; beside one.
  std::vector<uint32_t> verified = {4, 8, 16};
  std::vector<uint32_t> prompts = {512, 2048, 8192};
  kv::KvFormat format = kv::KvFormat::kBf16;
  engine::Quantization quantization = engine::Quantization::kNone;
  std::string cache_dir;  // as CudaOptions::cache_dir
  // Instead of whole steps: where their time goes, stage by stage (engine::StepProfile).
  bool profile = false;
};

// Whole steps of the real engine, timed by the wall clock around Engine::step(): uploads, launches
// and the way back to the host are in it. Blocks for as long as it takes to load the model.
[[nodiscard]] Result<Ceilings> bench_steps(const StepBenchOptions& options, const RowSink& sink);

}  // namespace tandem::bench

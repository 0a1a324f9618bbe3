#include <gtest/gtest.h>
#include <iterator>

#include "common/engine/cpu/cpu_ops.h"
#include "tests/support/backends.h"
#include "tests/support/reference_ops.h"

namespace tandem::testing {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBf16};
constexpr kv::KvFormat kFormats[] = {kv::KvFormat::kF32,  kv::KvFormat::kBf16,
                                     kv::KvFormat::kInt8, kv::KvFormat::kFp8E4M3,
                                     kv::KvFormat::kK8V4, kv::KvFormat::kInt4};

std::unique_ptr<engine::Ops> create_cpu(cpu::CpuIsa isa, DType weights) {
  engine::CpuOptions options;
  options.threads = 2;
  options.weights = weights;
  options.isa = isa;
  auto ops = engine::create_cpu_ops(options);
  EXPECT_TRUE(ops) << ops.error().to_string();
  return ops ? std::move(*ops) : nullptr;
}

}  // namespace

// The CPU engine joins once for every instruction set that this machine has.
std::vector<Backend> backends() {
  std::vector<Backend> out(1);
  out[0].name = "reference";
  out[0].create = [](DType weights, const model::ModelConfig&, const Backend::Limits&) {
    return create_reference_ops(weights);
  };
  out[0].slow = true;
  for (const cpu::CpuIsa isa : cpu::supported_isas()) {
    Backend b;
    b.name = "cpu_" + std::string(to_string(isa));
    b.create = [isa](DType weights, const model::ModelConfig&, const Backend::Limits&) {
      return create_cpu(isa, weights);
    };
    b.fast = isa == cpu::best_isa();
    b.slow = b.name == "cpu_reference";
    out.push_back(std::move(b));
  }
  for (Backend& b : out) {
    b.types.assign(std::begin(kTypes), std::end(kTypes));
    b.formats.assign(std::begin(kFormats), std::end(kFormats));
  }
  return out;
}

}  // namespace tandem::testing

// tandem-decode whose device can be lost: when the file named by FAIL_DEVICE_FILE is there, the
// next step takes it away and ends as CUDA's sticky errors do.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "decode_node/decode_main.h"

namespace {

using namespace tandem;

node::StepFunction failing(node::StepFunction step, const std::string& file) {
  return [step = std::move(step), file](
             std::span<const engine::SequenceInput> sequences,
             const engine::LayerHook& hook) -> Result<std::vector<engine::SequenceOutput>> {
    std::error_code error;
    if (std::filesystem::remove(file, error)) {
      return fail(ErrorCode::kDeviceLost, "an illegal memory access was encountered");
    }
    return step(sequences, hook);
  };
}

}  // namespace

int main(int argc, char** argv) {
  node::NodeMain main = decode::decode_main();
  const char* file = std::getenv("FAIL_DEVICE_FILE");
  if (file == nullptr) return 2;
  main.spec = [make = std::move(main.spec), file = std::string(file)](
                  const ClusterConfig& config, const std::string& name) -> Result<node::NodeSpec> {
    TANDEM_ASSIGN(node::NodeSpec spec, make(config, name));
    spec.wrap_step = [file](node::StepFunction step) { return failing(std::move(step), file); };
    return spec;
  };
  return node::node_main(argc, argv, main);
}

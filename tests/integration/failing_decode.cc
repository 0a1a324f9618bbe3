// tandem-decode whose device can be lost: when the file named by FAIL_STEP_FILE is there, the next
// step takes it away and ends as CUDA's sticky errors do; FAIL_TRANSFER_FILE likewise for the next
// transfer that arrives.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "decode_node/decode_main.h"

namespace {

using namespace tandem;

Error lost_device() {
  return make_error(ErrorCode::kDeviceLost, "an illegal memory access was encountered");
}

node::StepFunction failing(node::StepFunction step, const std::string& file) {
  return [step = std::move(step), file](
             std::span<const engine::SequenceInput> sequences,
             const engine::LayerHook& hook) -> Result<std::vector<engine::SequenceOutput>> {
    std::error_code error;
    if (std::filesystem::remove(file, error)) return fail(lost_device());
    return step(sequences, hook);
  };
}

class FailingEvents final : public transport::TransportEvents {
 public:
  FailingEvents(transport::TransportEvents& node, std::string file)
      : node_(node), file_(std::move(file)) {}
  void on_received(TransferId id, std::string commit,
                   const transport::ReceiveStats& stats) override {
    std::error_code error;
    if (std::filesystem::remove(file_, error)) return node_.on_receive_failed(id, lost_device());
    node_.on_received(id, std::move(commit), stats);
  }
  void on_receive_failed(TransferId id, Error error) override {
    node_.on_receive_failed(id, std::move(error));
  }
  void on_sent(TransferId id, const transport::SendStats& stats) override {
    node_.on_sent(id, stats);
  }
  void on_send_failed(TransferId id, Error error) override {
    node_.on_send_failed(id, std::move(error));
  }

 private:
  transport::TransportEvents& node_;
  const std::string file_;
};

std::string file_of(const char* variable) {
  const char* file = std::getenv(variable);
  return file == nullptr ? "" : file;
}

}  // namespace

int main(int argc, char** argv) {
  node::NodeMain main = decode::decode_main();
  main.spec = [make = std::move(main.spec)](const ClusterConfig& config,
                                            const std::string& name) -> Result<node::NodeSpec> {
    TANDEM_ASSIGN(node::NodeSpec spec, make(config, name));
    spec.wrap_step = [](node::StepFunction step) {
      return failing(std::move(step), file_of("FAIL_STEP_FILE"));
    };
    spec.wrap_events = [](transport::TransportEvents& node) {
      return std::make_unique<FailingEvents>(node, file_of("FAIL_TRANSFER_FILE"));
    };
    return spec;
  };
  return node::node_main(argc, argv, main);
}

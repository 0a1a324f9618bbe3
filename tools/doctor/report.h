#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/cuda/card_health.h"
#include "common/cuda/device_info.h"
#include "common/cuda/libraries.h"
#include "common/preflight/finding.h"
#include "tools/doctor/system_facts.h"

namespace tandem::doctor {

// A transport of KV between nodes and whether this machine can use it.
struct TransportFacts {
  std::string name;  // "ucx", "cuda_ipc", "nccl"
  bool usable = false;
  std::string detail;  // lanes, or why not
};

struct Report {
  std::string version;  // of Tandem
  bool built_with_cuda = false;
  std::string architectures;  // that the build has GPU code for
  SystemFacts system;
  std::string kernels;  // of the CPU engine: "avx512bf16"

  std::string driver;       // "580.159.04"; empty: NVML could not be opened
  cuda::CudaVersions cuda;  // zeros where not told
  std::string cuda_error;   // why there are no devices
  std::vector<cuda::DeviceInfo> devices;
  std::string nvml_error;
  std::vector<cuda::CardHealth> cards;
  std::vector<std::vector<cuda::CardPair>> topology;  // of `cards`
  std::vector<cuda::LibraryInfo> libraries;

  std::string ucx_version;
  std::vector<std::string> ucx_lanes;  // that UCX has on this machine
  bool ucx_knows_cuda = false;
  std::vector<TransportFacts> transports;

  // Of the cluster file, if one was given.
  struct Node {
    std::string name;
    std::string device;
  };
  std::vector<Node> nodes;
  int supervisor = 0;  // process that runs that file now; 0: none

  // Whether there is a card, usable or not.
  [[nodiscard]] bool has_hardware() const { return system.nvidia_device_files || !cards.empty(); }
  // Of a machine without one.
  [[nodiscard]] std::string_view what_is_missing() const {
    return cuda.driver == 0 ? "no NVIDIA driver found" : "no NVIDIA card found";
  }
};

enum class Severity : uint8_t {
  kNote,     // worth knowing
  kWarning,  // slower, or less sure than it should be
  kProblem,  // something that was asked for, or that the hardware is there for, does not work
};
[[nodiscard]] std::string_view to_string(Severity severity);  // "note", "warning", "problem"
struct Finding {
  Severity severity = Severity::kNote;
  std::string text;                                // what, and what to do
  std::optional<preflight::Finding> of_file = {};  // when a cluster file is at fault: where
};

// Of the machine, and of a cluster file that was judged against it. Pure. Problems first.
[[nodiscard]] std::vector<Finding> find(const Report& report,
                                        const preflight::Findings& of_file = {});
[[nodiscard]] bool healthy(const std::vector<Finding>& findings);  // no problem among them

[[nodiscard]] std::string render_text(const Report& report, const std::vector<Finding>& findings);
[[nodiscard]] std::string render_json(const Report& report, const std::vector<Finding>& findings);

}  // namespace tandem::doctor

#include <algorithm>

#include "common/cuda/device_info.h"
#include "tools/doctor/report.h"

namespace tandem::doctor {
namespace {

class Findings {
 public:
  void note(std::string text) { add(Severity::kNote, std::move(text)); }
  void warning(std::string text) { add(Severity::kWarning, std::move(text)); }
  void problem(std::string text) { add(Severity::kProblem, std::move(text)); }
  void add(const preflight::Finding& finding) {
    all_.push_back({.severity = finding.refuses ? Severity::kProblem : Severity::kWarning,
                    .text = preflight::to_string(finding),
                    .of_file = finding});
  }
  std::vector<Finding> take() {
    std::stable_sort(all_.begin(), all_.end(),
                     [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
    return std::move(all_);
  }

 private:
  void add(Severity severity, std::string text) {
    all_.push_back({.severity = severity, .text = std::move(text), .of_file = {}});
  }

  std::vector<Finding> all_;
};

void find_in_system(const SystemFacts& s, Findings& out) {
  constexpr uint64_t kSmallShm = uint64_t{256} << 20;
  constexpr uint64_t kSmallLock = uint64_t{64} << 20;
  if (s.nvidia_device_files && s.shm_bytes && *s.shm_bytes < kSmallShm) {
    out.warning("/dev/shm has " + std::to_string(*s.shm_bytes >> 20) +
                " MiB; NCCL between processes of this host wants it: give it 256 MiB or more (in a "
                "container --shm-size) before transport.kind is nccl");
  }
  if (s.transparent_huge_pages == "never")
    out.note("transparent huge pages are off; `madvise` speeds up the KV pool of CPU nodes");
  if (s.memlock_bytes && *s.memlock_bytes < kSmallLock && s.nvidia_device_files) {
    out.note("at most " + std::to_string(*s.memlock_bytes >> 10) +
             " KiB may be locked (ulimit -l); RDMA needs more, CUDA does not");
  }
}

const cuda::LibraryInfo* library(const Report& r, std::string_view name) {
  for (const cuda::LibraryInfo& info : r.libraries) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

void find_in_cuda(const Report& r, Findings& out) {
  if (!r.built_with_cuda) {
    if (r.has_hardware()) {
      out.warning(
          "this machine has an NVIDIA card, but this build has no CUDA: run "
          "scripts/install-cuda.sh and build again");
    }
    return;
  }
  if (r.devices.empty()) {
    if (r.has_hardware()) {
      out.problem("there is an NVIDIA card, but CUDA cannot use it: " + r.cuda_error);
    } else {
      out.note(std::string(r.what_is_missing()) +
               ": nodes run on CPU (a container sees cards when it is started with --gpus)");
    }
    return;
  }
  if (r.cuda.driver != 0 && r.cuda.driver < r.cuda.runtime) {
    out.problem("the driver speaks CUDA " + cuda::version_text(r.cuda.driver) +
                ", this build needs " + cuda::version_text(r.cuda.runtime) + ": update the driver");
  }
  for (const cuda::DeviceInfo& device : r.devices) {
    if (const Status fits = cuda::check_architecture(device, r.architectures); !fits)
      out.warning(fits.error().detail);
  }
  const cuda::LibraryInfo* blas = library(r, "cuBLASLt");
  if (blas != nullptr && !blas->found) {
    out.problem("cuBLASLt is missing, so device: cuda cannot start: " + blas->problem +
                ". It comes with the CUDA toolkit, PyTorch or scripts/install-cuda.sh; name its "
                "folder in gpu.libraries (TANDEM_GPU_LIBRARIES)");
  }
  const cuda::LibraryInfo* nccl = library(r, "NCCL");
  if (nccl != nullptr && !nccl->found && r.devices.size() > 1)
    out.warning("NCCL is missing, so transport nccl cannot be used: " + nccl->problem);
  if (!r.nvml_error.empty()) out.warning("cards cannot be watched: " + r.nvml_error);
  if (!r.ucx_knows_cuda) {
    out.note("UCX " + r.ucx_version +
             " does not know CUDA: KV of cards goes through host memory under transport ucx");
  }
}

void find_in_cards(const Report& r, Findings& out) {
  for (const cuda::CardHealth& card : r.cards) {
    const std::string who = "card " + std::to_string(card.index) + " (" + card.uuid + "): ";
    for (const std::string& text : cuda::link_problems(card, nullptr, 0)) out.warning(who + text);
    if (card.ecc_uncorrected.value_or(0) > 0) {
      out.warning(who + std::to_string(*card.ecc_uncorrected) +
                  " uncorrectable memory errors since the driver was loaded");
    }
    for (const std::string& reason : card.slowed_by)
      out.warning(who + "its clocks are held down by " + reason);
  }
}

}  // namespace

std::vector<Finding> find(const Report& report, const preflight::Findings& of_file) {
  Findings out;
  find_in_system(report.system, out);
  find_in_cuda(report, out);
  find_in_cards(report, out);
  if (report.supervisor != 0) {
    out.note("this cluster runs (process " + std::to_string(report.supervisor) +
             "): its ports are its own");
  }
  for (const preflight::Finding& finding : of_file) out.add(finding);
  for (const TransportFacts& transport : report.transports) {
    if (transport.name == "ucx" && !transport.usable)
      out.problem("UCX does not work here: " + transport.detail);
  }
  return out.take();
}

std::string_view to_string(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kProblem:
      return "problem";
  }
  return "note";
}

bool healthy(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& f) { return f.severity == Severity::kProblem; });
}

}  // namespace tandem::doctor

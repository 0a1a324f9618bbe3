#include <fmt/format.h>

#include <algorithm>

#include "common/cuda/device_info.h"
#include "tools/doctor/report.h"

namespace tandem::doctor {
namespace {

std::string gib(uint64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

template <typename Value>
std::string or_unknown(const std::optional<Value>& value, const std::string& unit) {
  return value ? fmt::format("{}{}", *value, unit) : std::string("?");
}

void line(std::string& out, std::string_view name, const std::string& text) {
  out += fmt::format("  {:<14}{}\n", name, text);
}

std::string system_text(const Report& r) {
  const SystemFacts& s = r.system;
  std::string out = "machine\n";
  line(out, "system", fmt::format("{}, kernel {}", s.os.empty() ? "?" : s.os, s.kernel));
  line(out, "CPU",
       fmt::format("{} ({} usable, {} NUMA node{}), kernels {}", s.cpu.empty() ? "?" : s.cpu,
                   s.cpus, s.numa_nodes, s.numa_nodes == 1 ? "" : "s", r.kernels));
  line(out, "memory",
       fmt::format("{}, {} available", s.memory_bytes ? gib(*s.memory_bytes) : "?",
                   s.memory_available_bytes ? gib(*s.memory_available_bytes) : "?"));
  line(out, "huge pages",
       fmt::format("{} reserved, transparent: {}", or_unknown(s.huge_pages, ""),
                   s.transparent_huge_pages.empty() ? "?" : s.transparent_huge_pages));
  line(out, "lockable",
       s.memlock_bytes ? fmt::format("{} KiB (ulimit -l)", *s.memlock_bytes >> 10) : "unlimited");
  line(out, "/dev/shm",
       s.shm_bytes
           ? fmt::format("{}, {} free", gib(*s.shm_bytes), gib(s.shm_free_bytes.value_or(0)))
           : "?");
  return out;
}

std::string cuda_text(const Report& r) {
  std::string out = "\nCUDA\n";
  if (!r.built_with_cuda) {
    line(out, "build", "without CUDA");
    return out;
  }
  line(out, "build",
       fmt::format("runtime {} (static), code for sm_{}", cuda::version_text(r.cuda.runtime),
                   r.architectures));
  line(out, "driver",
       r.cuda.driver == 0 ? "none"
                          : fmt::format("{}, speaks CUDA {}", r.driver.empty() ? "?" : r.driver,
                                        cuda::version_text(r.cuda.driver)));
  for (const cuda::LibraryInfo& l : r.libraries) {
    if (l.name == "driver") continue;
    line(out, l.name,
         l.found ? fmt::format("{} {}", l.version, l.path)
                 : fmt::format("missing ({}); for {}", l.soname, l.purpose));
  }
  return out;
}

std::string card_text(const cuda::CardHealth& card) {
  std::string out;
  line(out, "",
       fmt::format("{}, {} MHz of {}, {:.0f} W of {:.0f}, {} used of {}",
                   or_unknown(card.temperature_celsius, " °C"),
                   card.sm_clock_hertz.value_or(0) / 1'000'000,
                   card.sm_clock_max_hertz.value_or(0) / 1'000'000, card.power_watts.value_or(0),
                   card.power_limit_watts.value_or(0), gib(card.memory_used_bytes.value_or(0)),
                   gib(card.memory_total_bytes.value_or(0))));
  const cuda::LinkState links = cuda::link_state(card);
  std::string text =
      fmt::format("PCIe gen {} of {}, {} of {} lanes", or_unknown(card.pcie_generation, ""),
                  or_unknown(card.pcie_generation_max, ""), or_unknown(card.pcie_lanes, ""),
                  or_unknown(card.pcie_lanes_max, ""));
  if (links.links > 0) {
    text += fmt::format("; {} of {} NVLinks up", links.active, links.links);
    if (links.active > 0) {
      text += fmt::format(", {:.0f} GB/s each way, {} replays, {} recoveries, {} CRC errors",
                          static_cast<double>(links.bytes_per_second) / 1e9, links.replays,
                          links.recoveries, links.crc_errors);
    }
  }
  line(out, "", text);
  for (const cuda::CardHealth::Process& p : card.processes) {
    line(out, "", fmt::format("process {} {}: {}", p.pid, p.name, gib(p.bytes)));
  }
  return out;
}

std::string devices_text(const Report& r) {
  std::string out = "\ncards\n";
  if (r.devices.empty() && r.cards.empty()) {
    const bool fault = r.built_with_cuda && r.has_hardware();
    const std::string_view why = r.built_with_cuda ? r.what_is_missing() : "this build has no CUDA";
    line(out, "none", fault ? r.cuda_error : fmt::format("{}: CPU only", why));
    return out;
  }
  for (const cuda::DeviceInfo& d : r.devices) {
    line(out, fmt::format("cuda:{}", d.index),
         fmt::format("{}, {}, compute capability {}.{}, {} SMs, {} L2, PCI {}, {}", d.name,
                     gib(d.memory_bytes), d.major, d.minor, d.multiprocessors,
                     fmt::format("{} MiB", d.l2_bytes >> 20), d.pci_id, d.uuid));
    for (const cuda::CardHealth& card : r.cards) {
      if (card.uuid == d.uuid) out += card_text(card);
    }
  }
  if (r.devices.empty()) {
    for (const cuda::CardHealth& card : r.cards) {
      line(out, fmt::format("card {}", card.index), card.name + ", " + card.uuid);
      out += card_text(card);
    }
  }
  return out;
}

std::string topology_text(const Report& r) {
  if (r.topology.size() < 2) return {};
  std::string out = "\nhow cards reach each other\n        ";
  for (size_t i = 0; i < r.topology.size(); ++i) out += fmt::format("{:>6}", fmt::format("#{}", i));
  out += '\n';
  for (size_t i = 0; i < r.topology.size(); ++i) {
    out += fmt::format("  {:<6}", fmt::format("#{}", i));
    for (const cuda::CardPair& pair : r.topology[i]) {
      std::string text = cuda::path_name(pair.path);
      if (pair.path == cuda::PairPath::kNvLink) text += std::to_string(pair.nvlinks);
      out += fmt::format("{:>6}", text);
    }
    out += '\n';
  }
  return out;
}

std::string transports_text(const Report& r) {
  std::string out = "\nKV transports\n";
  for (const TransportFacts& t : r.transports) {
    line(out, t.name, fmt::format("{} ({})", t.usable ? "usable" : "not usable", t.detail));
  }
  line(
      out, "UCX",
      fmt::format("{}, {}", r.ucx_version, r.ucx_knows_cuda ? "knows CUDA" : "does not know CUDA"));
  return out;
}

// The last line is what many read: it does not hide warnings.
std::string verdict(const std::vector<Finding>& findings) {
  if (!healthy(findings)) return "there are problems\n";
  const auto warnings = std::ranges::count(findings, Severity::kWarning, &Finding::severity);
  if (warnings == 0) return "no problem found\n";
  return fmt::format("no problem that stops anything, but {} warning{}: see above\n", warnings,
                     warnings == 1 ? "" : "s");
}

}  // namespace

std::string render_text(const Report& r, const std::vector<Finding>& findings) {
  std::string out = fmt::format("tandem {}\n\n", r.version);
  out += system_text(r) + cuda_text(r) + devices_text(r) + topology_text(r) + transports_text(r);
  out += "\n";
  for (const Finding& f : findings) out += fmt::format("{}: {}\n", to_string(f.severity), f.text);
  out += verdict(findings);
  return out;
}

}  // namespace tandem::doctor

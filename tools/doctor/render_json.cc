#include <boost/json.hpp>

#include "common/cuda/device_info.h"
#include "tools/doctor/report.h"

namespace tandem::doctor {
namespace {

namespace json = boost::json;

template <typename Value>
json::value maybe(const std::optional<Value>& value) {
  if (!value) return nullptr;
  return json::value_from(*value);
}

json::value text_or_null(const std::string& text) {
  if (text.empty()) return nullptr;
  return json::string(text);
}

json::object system_json(const Report& r) {
  const SystemFacts& s = r.system;
  return {{"os", s.os},
          {"kernel", s.kernel},
          {"cpu", s.cpu},
          {"cpus", s.cpus},
          {"numa_nodes", s.numa_nodes},
          {"cpu_kernels", r.kernels},
          {"memory_bytes", maybe(s.memory_bytes)},
          {"memory_available_bytes", maybe(s.memory_available_bytes)},
          {"huge_pages", maybe(s.huge_pages)},
          {"transparent_huge_pages", text_or_null(s.transparent_huge_pages)},
          {"memlock_bytes", maybe(s.memlock_bytes)},
          {"shm_bytes", maybe(s.shm_bytes)},
          {"shm_free_bytes", maybe(s.shm_free_bytes)}};
}

json::object cuda_json(const Report& r) {
  json::array libraries;
  for (const cuda::LibraryInfo& l : r.libraries) {
    libraries.push_back({{"name", l.name},
                         {"soname", l.soname},
                         {"found", l.found},
                         {"version", text_or_null(l.version)},
                         {"path", text_or_null(l.path)},
                         {"needed_for", l.purpose},
                         {"problem", text_or_null(l.problem)}});
  }
  const auto version = [](int v) { return v == 0 ? std::string() : cuda::version_text(v); };
  return {{"built", r.built_with_cuda},
          {"architectures", r.architectures},
          {"runtime", text_or_null(version(r.cuda.runtime))},
          {"driver", text_or_null(version(r.cuda.driver))},
          {"nvidia_driver", text_or_null(r.driver)},
          {"error", text_or_null(r.cuda_error)},
          {"nvml_error", text_or_null(r.nvml_error)},
          {"libraries", std::move(libraries)}};
}

json::object device_json(const cuda::DeviceInfo& d) {
  return {{"index", d.index},
          {"name", d.name},
          {"uuid", d.uuid},
          {"pci_id", d.pci_id},
          {"compute_capability", std::to_string(d.major) + "." + std::to_string(d.minor)},
          {"multiprocessors", d.multiprocessors},
          {"copy_engines", d.copy_engines},
          {"memory_bytes", d.memory_bytes},
          {"l2_bytes", d.l2_bytes}};
}

json::object card_json(const cuda::CardHealth& c) {
  const cuda::LinkState links = cuda::link_state(c);
  json::array processes;
  for (const cuda::CardHealth::Process& p : c.processes)
    processes.push_back({{"pid", p.pid}, {"name", text_or_null(p.name)}, {"bytes", p.bytes}});
  json::array slowed(c.slowed_by.begin(), c.slowed_by.end());
  return {
      {"index", c.index},
      {"uuid", c.uuid},
      {"name", c.name},
      {"temperature_celsius", maybe(c.temperature_celsius)},
      {"power_watts", maybe(c.power_watts)},
      {"power_limit_watts", maybe(c.power_limit_watts)},
      {"sm_clock_hertz", maybe(c.sm_clock_hertz)},
      {"sm_clock_max_hertz", maybe(c.sm_clock_max_hertz)},
      {"memory_clock_hertz", maybe(c.memory_clock_hertz)},
      {"slowed_by", std::move(slowed)},
      {"memory_used_bytes", maybe(c.memory_used_bytes)},
      {"memory_total_bytes", maybe(c.memory_total_bytes)},
      {"pcie",
       {{"generation", maybe(c.pcie_generation)},
        {"generation_max", maybe(c.pcie_generation_max)},
        {"lanes", maybe(c.pcie_lanes)},
        {"lanes_max", maybe(c.pcie_lanes_max)},
        {"replays", maybe(c.pcie_replays)}}},
      {"ecc", {{"corrected", maybe(c.ecc_corrected)}, {"uncorrected", maybe(c.ecc_uncorrected)}}},
      {"nvlink",
       {{"links", links.links},
        {"active", links.active},
        {"bytes_per_second", links.bytes_per_second},
        {"replays", links.replays},
        {"recoveries", links.recoveries},
        {"crc_errors", links.crc_errors}}},
      {"processes", std::move(processes)}};
}

json::array topology_json(const Report& r) {
  json::array rows;
  for (const auto& row : r.topology) {
    json::array cells;
    for (const cuda::CardPair& pair : row) {
      std::string text = cuda::path_name(pair.path);
      if (pair.path == cuda::PairPath::kNvLink) text += std::to_string(pair.nvlinks);
      cells.push_back(json::string(text));
    }
    rows.push_back(std::move(cells));
  }
  return rows;
}

json::object finding_json(const Finding& f) {
  json::object object{{"severity", to_string(f.severity)}, {"text", f.text}};
  if (!f.of_file) return object;
  object["origin"] = text_or_null(f.of_file->origin);
  object["key"] = f.of_file->key;
  object["value"] = text_or_null(f.of_file->value);
  object["reason"] = f.of_file->reason;
  object["remedy"] = text_or_null(f.of_file->remedy);
  return object;
}

}  // namespace

std::string render_json(const Report& r, const std::vector<Finding>& findings) {
  json::array devices, cards, transports, nodes, found;
  for (const cuda::DeviceInfo& d : r.devices) devices.push_back(device_json(d));
  for (const cuda::CardHealth& c : r.cards) cards.push_back(card_json(c));
  for (const TransportFacts& t : r.transports)
    transports.push_back({{"name", t.name}, {"usable", t.usable}, {"detail", t.detail}});
  for (const Report::Node& n : r.nodes) nodes.push_back({{"name", n.name}, {"device", n.device}});
  for (const Finding& f : findings) found.push_back(finding_json(f));
  const json::object all{{"version", r.version},
                         {"healthy", healthy(findings)},
                         {"system", system_json(r)},
                         {"cuda", cuda_json(r)},
                         {"devices", std::move(devices)},
                         {"cards", std::move(cards)},
                         {"topology", topology_json(r)},
                         {"ucx",
                          {{"version", r.ucx_version},
                           {"lanes", json::value_from(r.ucx_lanes)},
                           {"knows_cuda", r.ucx_knows_cuda}}},
                         {"transports", std::move(transports)},
                         {"nodes", std::move(nodes)},
                         {"findings", std::move(found)}};
  return json::serialize(all);
}

}  // namespace tandem::doctor

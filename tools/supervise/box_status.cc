#include "tools/supervise/box_status.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "tools/client/http_fetch.h"

namespace tandem::supervise {
namespace {

ProcessStatus status_of(const std::string& run_dir, const rundir::ProcessState& process) {
  ProcessStatus status{.process = process, .url = {}, .report = {}};
  const bool node = process.role != "router";
  const auto published = rundir::read_endpoints(run_dir, process.name);
  if (!published || published->pid != process.pid) return status;
  const auto endpoint = published->endpoints.find(node ? "metrics" : "http");
  if (endpoint == published->endpoints.end()) return status;
  status.url = client::url_of(endpoint->second, /*tls=*/false);
  if (!node) return status;
  auto fetcher = client::HttpFetcher::create(
      {.url = status.url, .api_key = {}, .timeout = std::chrono::seconds(2)});
  if (!fetcher) return status;
  if (auto report = ask_node(**fetcher)) status.report = std::move(*report);
  return status;
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size() + 1, width), ' ');
  return text;
}

}  // namespace

bool BoxStatus::ready() const {
  return std::all_of(processes.begin(), processes.end(), [](const ProcessStatus& status) {
    return status.process.role == "router" ? status.process.state == "ready"
                                           : status.report && status.report->ready();
  });
}

BoxStatus box_status(const std::string& run_dir, const rundir::SupervisorState& state) {
  BoxStatus box{.run_dir = run_dir, .config = state.config, .processes = {}};
  for (const rundir::ProcessState& process : state.processes) {
    box.processes.push_back(status_of(run_dir, process));
    if (process.role == "router") box.processes.back().url = state.url;
  }
  return box;
}

std::string render_text(const BoxStatus& box) {
  std::string out = "processes of " + box.config + ", logs in " + box.run_dir + "\n";
  for (const ProcessStatus& status : box.processes) {
    const rundir::ProcessState& process = status.process;
    // The node knows better than its supervisor, which no longer asks what was ready once.
    const std::string state = status.report ? status.report->state : process.state;
    out += "  " + padded(process.name, 15) + padded(process.role, 8) + padded(state, 11) +
           padded("pid " + std::to_string(process.pid), 13) +
           padded("restarts " + std::to_string(process.restarts), 12) +
           (status.url.empty() ? "-" : status.url);
    if (status.report) out += "  " + describe(*status.report);
    out += "\n";
  }
  return out;
}

std::string render_json(const BoxStatus& box) {
  boost::json::array processes;
  for (const ProcessStatus& status : box.processes) {
    const rundir::ProcessState& process = status.process;
    boost::json::object object{{"name", process.name},
                               {"role", process.role},
                               {"state", status.report ? status.report->state : process.state},
                               {"pid", process.pid},
                               {"restarts", process.restarts},
                               {"url", status.url}};
    if (status.report) {
      object["router"] = boost::json::object{{"address", status.report->router},
                                             {"state", status.report->registration},
                                             {"reason", status.report->reason}};
    }
    processes.push_back(std::move(object));
  }
  return boost::json::serialize(boost::json::object{{"config", box.config},
                                                    {"run_dir", box.run_dir},
                                                    {"ready", box.ready()},
                                                    {"processes", std::move(processes)}});
}

}  // namespace tandem::supervise

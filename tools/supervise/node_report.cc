#include "tools/supervise/node_report.h"

#include <boost/json.hpp>

#include "tools/client/http_fetch.h"
#include "tools/run_dir/json_members.h"

namespace tandem::supervise {

Result<NodeReport> ask_node(client::HttpFetcher& node) {
  TANDEM_ASSIGN(const boost::json::object answer, node.get_object("/status"));
  NodeReport report;
  report.state = rundir::text_of(answer, "state");
  const boost::json::value* router = answer.if_contains("router");
  if (report.state.empty() || router == nullptr || !router->is_object()) {
    return fail(ErrorCode::kUnavailable, "/status is not that of a node");
  }
  report.router = rundir::text_of(router->get_object(), "address");
  report.registration = rundir::text_of(router->get_object(), "state");
  report.reason = rundir::text_of(router->get_object(), "reason");
  report.lasting = rundir::flag_of(router->get_object(), "lasting");
  return report;
}

std::string describe(const NodeReport& report) {
  const std::string where = "the router at " + report.router;
  const std::string because = report.reason.empty() ? std::string() : ": " + report.reason;
  if (report.registration == "registered") return "registered with " + where;
  if (report.refused()) return "refused by " + where + because;
  if (report.unreachable()) return "cannot reach " + where + because;
  return "not registered yet with " + where + because;
}

}  // namespace tandem::supervise

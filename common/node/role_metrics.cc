#include "common/node/role_metrics.h"

#include <utility>

#include "common/base/error.h"

namespace tandem::node {

Label outcome_label(std::string well) {
  Label label{.name = "outcome", .values = {std::move(well)}};
  for (int code = 0; code <= static_cast<int>(kLastErrorCode); ++code)
    label.values.emplace_back(error_traits(static_cast<ErrorCode>(code)).label);
  return label;
}

RoleMetrics::RoleMetrics(MetricsRegistry& r, const std::string& subsystem)
    : kv_(r, subsystem),
      fenced_(r.counter("tandem_" + subsystem + "_generations_fenced_total",
                        "Peers that went away and may write nothing more")),
      duplicates_(r.counter("tandem_" + subsystem + "_duplicate_messages_total",
                            "Messages ignored because they had come before")),
      failed_steps_(
          r.counter("tandem_" + subsystem + "_failed_steps_total", "Forward passes that failed")),
      step_seconds_(r.histogram("tandem_" + subsystem + "_step_seconds",
                                "Duration of one forward pass", kShortLatencyBuckets)) {}

}  // namespace tandem::node

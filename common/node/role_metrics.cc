#include "common/node/role_metrics.h"

namespace tandem::node {

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

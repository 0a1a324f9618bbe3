#include "router/status_page/status_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/json_text.h"

namespace tandem::router {

namespace {

constexpr double kFirstBucket = 20e-6;
const double kLogStep = std::log(1.08);

void append_key(std::string& out, std::string_view key) {
  append_json_string(out, key);
  out += ':';
}

void append_optional(std::string& out, std::string_view key, std::optional<double> value) {
  append_key(out, key);
  if (value) {
    append_json_number(out, *value);
  } else {
    out += "null";
  }
}

// null when nothing has been counted yet.
void append_ratio(std::string& out, std::string_view key, double part, double whole) {
  append_key(out, key);
  append_json_number(out, whole > 0 ? part / whole : std::numeric_limits<double>::quiet_NaN());
}

void append_field(std::string& out, std::string_view key, double value) {
  append_key(out, key);
  append_json_number(out, value);
}

void append_field(std::string& out, std::string_view key, std::string_view value) {
  append_key(out, key);
  append_json_string(out, value);
}

std::string_view state_of(const NodeStatus& n) {
  if (n.draining) return "draining";
  if (n.stuck || n.breaker == BreakerState::kOpen) return "lost";
  return "ready";
}

void append_node(std::string& out, const NodeStatus& n, std::string_view state) {
  out += '{';
  append_field(out, "id", n.id);
  out += ',';
  append_field(out, "role", to_string(n.role));
  out += ',';
  append_field(out, "state", state);
  out += ',';
  append_field(out, "breaker", to_string(n.breaker));
  out += ',';
  append_field(out, "generation", fmt::format("{:016x}", n.generation));
  out += ',';
  append_field(out, "engine", n.engine);
  out += ',';
  append_field(out, "version", n.build_version);
  out += ',';
  append_field(out, "transport", n.transport);
  out += ',';
  append_field(out, "transport_detail", n.transport_detail);
  out += ',';
  append_field(out, "transport_reason", n.transport_reason);
  out += fmt::format(",\"queued\":{},\"running\":{},\"reservations\":{},", n.queued, n.running,
                     n.reservations);
  out += fmt::format("\"kv\":{{\"used\":{},\"cached\":{},\"free\":{},\"total\":{}}},", n.kv_used,
                     n.kv_cached, n.kv_free, n.kv_total);
  append_ratio(out, "prefix_hit_ratio", static_cast<double>(n.prefix_hit_tokens),
               static_cast<double>(n.prefix_query_tokens));
  out += ',';
  append_field(out, "tokens_per_second", n.tokens_per_second);
  out += ',';
  append_ratio(out, "step_seconds", n.step_seconds, n.step_seconds > 0 ? 1 : 0);
  out += ',';
  append_field(out, "heartbeat_age_seconds", n.heartbeat_age_seconds);
  out += ',';
  append_field(out, "fitted_seconds_per_prompt_token", n.fitted_a);
  out += ',';
  append_field(out, "fitted_seconds_per_token", n.fitted_b);
  out += '}';
}

void append_transfers(std::string& out, const ClusterSnapshot& s) {
  const DispatchCounters& c = s.counters;
  out += fmt::format("\"transfers\":{{\"count\":{},\"raw_bytes\":{},\"wire_bytes\":{},",
                     c.transfers, c.transfer_raw_bytes, c.transfer_wire_bytes);
  append_field(out, "seconds", c.transfer_seconds);
  out += ',';
  append_ratio(out, "exposed_ratio", c.transfer_exposed_seconds, c.prefill_compute_seconds);
  out += ',';
  append_key(out, "transport");
  if (s.nodes.empty()) {
    out += "null";
  } else {
    // A prefill node is the one that chose the lanes to its peers.
    const auto sender = std::find_if(s.nodes.begin(), s.nodes.end(), [](const NodeStatus& n) {
      return n.role == NodeRole::kPrefill;
    });
    append_json_string(out, (sender == s.nodes.end() ? s.nodes.front() : *sender).transport_detail);
  }
  out += '}';
}

}  // namespace

void LatencyBuckets::observe(double seconds) {
  const double position =
      seconds <= kFirstBucket ? 0 : std::log(seconds / kFirstBucket) / kLogStep + 1;
  const auto bucket = static_cast<size_t>(std::clamp(position, 0.0, double{kBuckets - 1}));
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
}

LatencyBuckets::Counts LatencyBuckets::take() {
  Counts out;
  for (size_t i = 0; i < kBuckets; ++i) out[i] = counts_[i].exchange(0, std::memory_order_relaxed);
  return out;
}

std::optional<double> LatencyBuckets::quantile(const Counts& counts, double q) {
  uint64_t total = 0;
  for (uint32_t c : counts) total += c;
  if (total == 0) return std::nullopt;
  const auto rank = static_cast<uint64_t>(std::ceil(q * static_cast<double>(total)));
  uint64_t seen = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    seen += counts[i];
    if (seen >= std::max<uint64_t>(rank, 1)) {  // the middle of the bucket
      return kFirstBucket * std::exp(kLogStep * (static_cast<double>(i) - 0.5));
    }
  }
  return std::nullopt;
}

StatusBoard::StatusBoard(const Clock& clock, std::string model_id, std::string sampling_members,
                         std::string version)
    : clock_(clock),
      model_id_(std::move(model_id)),
      sampling_members_(std::move(sampling_members)),
      version_(std::move(version)),
      start_(clock.now()),
      last_sample_(start_) {}

double StatusBoard::uptime_seconds() const { return to_seconds(clock_.now() - start_); }

void StatusBoard::sample(std::shared_ptr<const ClusterSnapshot> snapshot) {
  const TimePoint now = clock_.now();
  const double dt = std::max(1e-3, to_seconds(now - last_sample_));
  Second s;
  s.t = to_seconds(now - start_);
  s.ttft = ttft.take();
  s.itl = itl.take();
  s.e2e = e2e.take();
  s.prefill_to_decode = prefill_to_decode.take();
  const uint64_t prompt = prompt_tokens.load(std::memory_order_relaxed);
  const uint64_t output = output_tokens.load(std::memory_order_relaxed);
  s.prompt_tps = static_cast<double>(prompt - last_prompt_tokens_) / dt;
  s.output_tps = static_cast<double>(output - last_output_tokens_) / dt;
  s.queued = snapshot->queue_depth;
  s.running = snapshot->running;
  last_prompt_tokens_ = prompt;
  last_output_tokens_ = output;
  last_sample_ = now;
  std::lock_guard lock(mutex_);
  history_.push_back(s);
  if (history_.size() > kHistory) history_.pop_front();
}

void StatusBoard::append_latency(std::string& out, std::string_view name,
                                 LatencyBuckets::Counts Second::*member) const {
  LatencyBuckets::Counts sum{};
  const size_t window = std::min(history_.size(), kQuantileWindow);
  for (size_t i = history_.size() - window; i < history_.size(); ++i) {
    const LatencyBuckets::Counts& counts = history_[i].*member;
    for (size_t b = 0; b < sum.size(); ++b) sum[b] += counts[b];
  }
  append_key(out, name);
  out += '{';
  append_optional(out, "p50", LatencyBuckets::quantile(sum, 0.50));
  out += ',';
  append_optional(out, "p90", LatencyBuckets::quantile(sum, 0.90));
  out += ',';
  append_optional(out, "p99", LatencyBuckets::quantile(sum, 0.99));
  out += '}';
}

void StatusBoard::append_history(std::string& out) const {
  out += "\"history\":[";
  bool first = true;
  for (const Second& s : history_) {
    out += first ? "{" : ",{";
    first = false;
    append_field(out, "t", s.t);
    out += ',';
    append_optional(out, "ttft_p50", LatencyBuckets::quantile(s.ttft, 0.50));
    out += ',';
    append_optional(out, "ttft_p99", LatencyBuckets::quantile(s.ttft, 0.99));
    out += ',';
    append_optional(out, "itl_p50", LatencyBuckets::quantile(s.itl, 0.50));
    out += ',';
    append_optional(out, "itl_p99", LatencyBuckets::quantile(s.itl, 0.99));
    out += ',';
    append_field(out, "prompt_tps", s.prompt_tps);
    out += ',';
    append_field(out, "output_tps", s.output_tps);
    out += fmt::format(",\"queued\":{},\"running\":{}}}", s.queued, s.running);
  }
  out += ']';
}

std::string StatusBoard::json(const ClusterSnapshot& s, uint32_t max_context) const {
  std::string out = "{";
  append_field(out, "version", version_);
  out += fmt::format(",\"ready\":{},", s.ready);
  append_field(out, "uptime_seconds", uptime_seconds());
  out += ',';
  append_field(out, "now_unix", clock_.unix_seconds());
  out += ",\"model\":{";
  append_field(out, "id", model_id_);
  out += fmt::format(",\"max_context\":{},{}}},", max_context, sampling_members_);
  out += fmt::format(
      "\"requests\":{{\"running\":{},\"total\":{},\"failed\":{},\"rejected\":{},\"left\":{},"
      "\"failovers\":{},\"retries\":{},\"resumes\":{}}},",
      s.running, requests.load(), requests_failed.load(), requests_rejected.load(),
      requests_left.load(), s.counters.failovers_local, s.counters.retries, s.counters.resumes);
  out += fmt::format("\"queues\":{{\"prefill\":{{\"depth\":{},\"capacity\":{},", s.queue_depth,
                     s.queue_capacity);
  append_field(out, "oldest_seconds", s.queue_oldest_seconds);
  out += "}},";
  append_transfers(out, s);
  out += ",\"nodes\":[";
  for (size_t i = 0; i < s.nodes.size(); ++i) {
    if (i != 0) out += ',';
    append_node(out, s.nodes[i], state_of(s.nodes[i]));
  }
  for (const NodeStatus& gone : s.lost) {
    if (out.back() != '[') out += ',';
    append_node(out, gone, "lost");
  }
  out += "],";
  std::lock_guard lock(mutex_);
  out += "\"tokens_per_second\":{";
  append_field(out, "prompt", history_.empty() ? 0 : history_.back().prompt_tps);
  out += ',';
  append_field(out, "output", history_.empty() ? 0 : history_.back().output_tps);
  out += "},\"latency\":{";
  append_latency(out, "ttft", &Second::ttft);
  out += ',';
  append_latency(out, "itl", &Second::itl);
  out += ',';
  append_latency(out, "e2e", &Second::e2e);
  out += ',';
  append_latency(out, "prefill_to_decode", &Second::prefill_to_decode);
  out += "},";
  append_history(out);
  out += '}';
  return out;
}

}  // namespace tandem::router

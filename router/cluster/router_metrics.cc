#include "router/cluster/router_metrics.h"

#include <algorithm>
#include <map>

namespace tandem::router {

namespace {

Label node_label() { return {.name = "node", .values = {}, .max_values = 64}; }
Label role_label() { return {.name = "role", .values = {"prefill", "decode"}}; }

// What each route can answer. These series are there from the start; further statuses come with
// their first answer.
struct RouteAnswers {
  std::string_view route;
  std::initializer_list<int> statuses;
};
constexpr auto kGenerates = {200, 400, 401, 404, 429, 499, 500, 502, 503};
constexpr auto kTokenizes = {200, 400, 401, 404, 429, 499};
const RouteAnswers kAnswers[] = {
    {"chat", kGenerates},
    {"completions", kGenerates},
    {"models", {200, 401, 404}},
    {"tokenize", kTokenizes},
    {"detokenize", kTokenizes},
    {"health", {200, 503}},
    {"metrics", {200}},
    {"status", {200, 401}},
    {"page", {200}},
    {"version", {200}},
    {"none", {404, 405}},  // no such path or method
    {"preflight", {204}},
    {"refused", {400, 408, 413, 417, 431, 500, 503, 505}},  // by the HTTP server itself
};

Label route_label() {
  Label label{.name = "route"};
  for (const RouteAnswers& known : kAnswers) label.values.emplace_back(known.route);
  return label;
}

// The names of common/transport.
Label transport_label() {
  return {.name = "transport", .values = {"cuda_ipc", "inproc", "nccl", "ucx"}};
}

double delta(uint64_t now, uint64_t before) { return static_cast<double>(now - before); }

}  // namespace

RouterMetrics::RouterMetrics(MetricsRegistry& r)
    : request_seconds(r.histograms(
          "tandem_router_request_seconds", "First byte of a request to the end of its answer",
          {{.name = "route", .values = {"chat", "completions"}}}, kLatencyBuckets)),
      ttft_seconds(
          r.histogram("tandem_router_ttft_seconds", "Request to first token", kLatencyBuckets)),
      itl_seconds(r.histogram("tandem_router_itl_seconds", "Between two tokens of an answer",
                              kShortLatencyBuckets)),
      e2e_seconds(
          r.histogram("tandem_router_e2e_seconds", "Request to last token", kLatencyBuckets)),
      queue_wait_seconds(r.histogram("tandem_router_queue_wait_seconds",
                                     "In the prefill queue, until first sent to a node",
                                     kLatencyBuckets)),
      prefill_to_decode_seconds(r.histogram(
          "tandem_router_prefill_to_decode_seconds",
          "First token at the router to admission on the decode node", kShortLatencyBuckets)),
      transfer_seconds(r.histograms("tandem_router_transfer_seconds",
                                    "First page posted to last completion, by transport",
                                    {transport_label()}, kShortLatencyBuckets)),
      prompt_tokens_per_request(r.histogram("tandem_router_request_prompt_tokens",
                                            "Prompt tokens of a request", kCountBuckets)),
      output_tokens_per_request(r.histogram("tandem_router_request_output_tokens",
                                            "Generated tokens of a request", kCountBuckets)),
      prompt_tokens(
          r.counter("tandem_router_prompt_tokens_total", "Prompt tokens of answered requests")),
      cached_tokens(r.counter("tandem_router_cached_tokens_total",
                              "Prompt tokens that came from a prefix cache")),
      output_tokens(r.counter("tandem_router_output_tokens_total", "Tokens sent to clients")),
      client_disconnects(r.counter("tandem_router_client_disconnects_total",
                                   "Clients that left before their answer was complete")),
      slow_clients(r.counter("tandem_router_slow_clients_total",
                             "Clients given up because they did not read")),
      requests_(r.counters("tandem_router_requests_total",
                           "HTTP requests by route and status; 499: the client left",
                           {route_label(), {.name = "status"}})),
      queue_depth_(r.gauge("tandem_router_queue_depth", "Requests in the prefill queue")),
      queue_capacity_(r.gauge("tandem_router_queue_capacity", "Places in the prefill queue")),
      queue_oldest_seconds_(
          r.gauge("tandem_router_queue_oldest_seconds", "Age of the queue's head")),
      running_(r.gauge("tandem_router_running_requests", "Requests on nodes")),
      ready_(r.gauge("tandem_router_ready", "1 when a decode node takes work")),
      nodes_(r.gauges(
          "tandem_router_nodes", "Nodes by role and state",
          {role_label(), {.name = "state", .values = {"ready", "draining", "stuck", "broken"}}})),
      node_kv_blocks_(
          r.gauges("tandem_router_node_kv_blocks", "KV blocks as the node reports them",
                   {node_label(), {.name = "state", .values = {"used", "cached", "free"}}})),
      node_load_(
          r.gauges("tandem_router_node_requests", "Requests as the node reports them",
                   {node_label(), {.name = "state", .values = {"queued", "running", "reserved"}}})),
      node_rate_(r.gauges("tandem_router_node_tokens_per_second", "Tokens processed lately",
                          {node_label()})),
      breaker_(
          r.gauges("tandem_router_breaker_state", "0 closed, 1 half open, 2 open", {node_label()})),
      kv_miss_ratio_(r.gauges("tandem_router_kv_miss_ratio",
                              "Prompt tokens not found in a prefix cache, since the nodes started",
                              {role_label()})),
      dispatched_(r.counters(
          "tandem_router_dispatch_total", "Requests sent to nodes, by way",
          {{.name = "way",
            .values = {"remote", "local_short", "local_sooner", "local_only", "local_deadline"}}})),
      submitted_(
          r.counter("tandem_router_choices_submitted_total", "Choices handed to the dispatcher")),
      finished_(r.counter("tandem_router_choices_finished_total", "Choices that ended well")),
      failed_(r.counter("tandem_router_choices_failed_total",
                        "Choices that were taken and ended in an error")),
      cancelled_(r.counter("tandem_router_choices_cancelled_total", "Choices whose client left")),
      rejected_(r.counter("tandem_router_choices_rejected_total",
                          "Choices refused before any work: full queue, router shutting down")),
      rejected_full_(
          r.counter("tandem_router_queue_rejections_total", "Choices refused by a full queue")),
      retries_(r.counter("tandem_router_retries_total", "Attempts after a failed one")),
      resumes_(r.counter("tandem_router_resumes_total", "Retries of an answer that had begun")),
      failovers_(
          r.counter("tandem_router_failovers_total",
                    "Requests prefilled on a decode node because their queue deadline had passed")),
      nodes_lost_(
          r.counter("tandem_router_nodes_lost_total", "Nodes whose connection or heartbeat ended")),
      fenced_(r.counter("tandem_router_generations_fenced_total",
                        "Nodes given up while they may still run: silent, stuck or replaced")),
      stale_(r.counter("tandem_router_stale_messages_total",
                       "Messages dropped because their request or node has moved on")),
      repeated_(r.counter("tandem_router_repeated_tokens_total", "Tokens dropped as repeats")),
      leases_expired_(
          r.counter("tandem_router_leases_expired_total", "Hand-overs not complete in time")),
      reserve_timeouts_(r.counter("tandem_router_reservation_timeouts_total",
                                  "Reservations that a decode node did not answer")),
      stalls_(r.counter("tandem_router_stalls_total", "Answers that stopped growing")),
      breaker_opened_(r.counter("tandem_router_breaker_opened_total", "Times a breaker opened")),
      handshakes_refused_(
          r.counter("tandem_router_handshakes_refused_total", "Nodes not admitted")),
      transfers_(r.counter("tandem_router_transfers_total", "KV hand-overs completed")),
      transfer_raw_bytes_(
          r.counter("tandem_router_transfer_raw_bytes_total", "KV handed over, as bf16")),
      transfer_wire_bytes_(
          r.counter("tandem_router_transfer_wire_bytes_total", "KV handed over, as sent")) {
  for (const RouteAnswers& known : kAnswers) {
    for (int status : known.statuses) (void)requests_.with({known.route, std::to_string(status)});
  }
}

void RouterMetrics::answered(std::string_view route, int status) {
  requests_.with({route, std::to_string(status)}).add();
}

void RouterMetrics::publish(const ClusterSnapshot& s) {
  queue_depth_.set(s.queue_depth);
  queue_capacity_.set(s.queue_capacity);
  queue_oldest_seconds_.set(s.queue_oldest_seconds);
  running_.set(s.running);
  ready_.set(s.ready ? 1 : 0);
  publish_nodes(s);
  publish_counters(s.counters);
}

void RouterMetrics::publish_nodes(const ClusterSnapshot& s) {
  std::map<std::pair<std::string_view, std::string_view>, int> by_state;
  for (std::string_view role : {"prefill", "decode"}) {
    for (std::string_view state : {"ready", "draining", "stuck", "broken"})
      by_state[{role, state}] = 0;
  }
  std::map<std::string_view, std::pair<uint64_t, uint64_t>> prefix;
  std::set<std::string> present;
  for (const NodeStatus& n : s.nodes) {
    std::string_view state = "ready";
    if (n.breaker != BreakerState::kClosed) state = "broken";
    if (n.stuck) state = "stuck";
    if (n.draining) state = "draining";
    ++by_state[{to_string(n.role), state}];
    prefix[to_string(n.role)].first += n.prefix_hit_tokens;
    prefix[to_string(n.role)].second += n.prefix_query_tokens;
    present.insert(n.id);
    node_kv_blocks_.with({n.id, "used"}).set(n.kv_used);
    node_kv_blocks_.with({n.id, "cached"}).set(n.kv_cached);
    node_kv_blocks_.with({n.id, "free"}).set(n.kv_free);
    node_load_.with({n.id, "queued"}).set(n.queued);
    node_load_.with({n.id, "running"}).set(n.running);
    node_load_.with({n.id, "reserved"}).set(n.reservations);
    node_rate_.with({n.id}).set(n.tokens_per_second);
    breaker_.with({n.id}).set(static_cast<double>(n.breaker));
  }
  for (const auto& [key, count] : by_state) nodes_.with({key.first, key.second}).set(count);
  for (const auto& [role, tokens] : prefix) {
    if (tokens.second == 0) continue;
    const double hits = static_cast<double>(std::min(tokens.first, tokens.second));
    kv_miss_ratio_.with({role}).set(1 - hits / static_cast<double>(tokens.second));
  }
  for (const std::string& id : known_nodes_) {  // a lost node must not show its last load for ever
    if (present.contains(id)) continue;
    for (std::string_view state : {"used", "cached", "free"})
      node_kv_blocks_.with({id, state}).set(0);
    for (std::string_view state : {"queued", "running", "reserved"})
      node_load_.with({id, state}).set(0);
    node_rate_.with({id}).set(0);
    breaker_.with({id}).set(static_cast<double>(BreakerState::kClosed));
  }
  known_nodes_ = std::move(present);
}

void RouterMetrics::publish_counters(const DispatchCounters& now) {
  dispatched_.with({"remote"}).add(delta(now.remote, last_.remote));
  dispatched_.with({"local_short"}).add(delta(now.local_short, last_.local_short));
  dispatched_.with({"local_sooner"}).add(delta(now.local_predicted, last_.local_predicted));
  dispatched_.with({"local_only"}).add(delta(now.local_no_prefill, last_.local_no_prefill));
  dispatched_.with({"local_deadline"}).add(delta(now.failovers_local, last_.failovers_local));
  submitted_.add(delta(now.submitted, last_.submitted));
  finished_.add(delta(now.finished, last_.finished));
  failed_.add(delta(now.failed, last_.failed));
  cancelled_.add(delta(now.cancelled, last_.cancelled));
  rejected_.add(delta(now.rejected, last_.rejected));
  rejected_full_.add(delta(now.rejected_full, last_.rejected_full));
  retries_.add(delta(now.retries, last_.retries));
  resumes_.add(delta(now.resumes, last_.resumes));
  failovers_.add(delta(now.failovers_local, last_.failovers_local));
  nodes_lost_.add(delta(now.nodes_gone, last_.nodes_gone));
  fenced_.add(delta(now.generations_fenced, last_.generations_fenced));
  stale_.add(delta(now.messages_stale + now.messages_fenced,
                   last_.messages_stale + last_.messages_fenced));
  repeated_.add(delta(now.tokens_repeated, last_.tokens_repeated));
  leases_expired_.add(delta(now.leases_expired, last_.leases_expired));
  reserve_timeouts_.add(delta(now.reserve_timeouts, last_.reserve_timeouts));
  stalls_.add(delta(now.stalls, last_.stalls));
  breaker_opened_.add(delta(now.breaker_opened, last_.breaker_opened));
  handshakes_refused_.add(delta(now.handshakes_refused, last_.handshakes_refused));
  transfers_.add(delta(now.transfers, last_.transfers));
  transfer_raw_bytes_.add(delta(now.transfer_raw_bytes, last_.transfer_raw_bytes));
  transfer_wire_bytes_.add(delta(now.transfer_wire_bytes, last_.transfer_wire_bytes));
  last_ = now;
}

}  // namespace tandem::router

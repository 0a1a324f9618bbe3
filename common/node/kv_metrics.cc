#include "common/node/kv_metrics.h"

#include <utility>
#include <vector>

namespace tandem::node {
namespace {

const std::vector<std::string> kReasons{"checksum", "malformed", "generation", "unknown",
                                        "replayed"};
const std::vector<std::string> kDirections{"sent", "received"};

std::string metric(const std::string& subsystem, const char* rest) {
  return "tandem_" + subsystem + "_" + rest;
}

CounterFamily rejected(MetricsRegistry& r, const std::string& s) {
  return r.counters(metric(s, "transport_rejected_frames_total"), "KV frames dropped",
                    {Label{"reason", kReasons}});
}
CounterFamily frames(MetricsRegistry& r, const std::string& s) {
  return r.counters(metric(s, "transport_frames_total"), "KV frames",
                    {Label{"direction", kDirections}});
}
CounterFamily bytes(MetricsRegistry& r, const std::string& s) {
  return r.counters(metric(s, "transport_bytes_total"), "Bytes of KV frames",
                    {Label{"direction", kDirections}});
}

void advance(Counter counter, uint64_t now, uint64_t before) {
  if (now > before) counter.add(static_cast<double>(now - before));
}

}  // namespace

KvMetrics::KvMetrics(MetricsRegistry& r, const std::string& s)
    : used_(r.gauge(metric(s, "kv_used_blocks"), "KV blocks held by requests and reservations")),
      cached_(r.gauge(metric(s, "kv_cached_blocks"), "KV blocks of the prefix index, evictable")),
      free_(r.gauge(metric(s, "kv_free_blocks"), "KV blocks that hold nothing")),
      miss_ratio_(r.gauge(metric(s, "kv_miss_ratio"),
                          "Share of prompt tokens looked up in the prefix index and not found")),
      hit_tokens_(r.counter(metric(s, "kv_prefix_hit_tokens_total"),
                            "Prompt tokens whose KV came from the prefix index")),
      miss_tokens_(r.counter(metric(s, "kv_prefix_miss_tokens_total"),
                             "Prompt tokens looked up in the prefix index and not found")),
      evicted_(
          r.counter(metric(s, "kv_evicted_blocks_total"), "Prefix blocks evicted for new work")),
      bad_checksum_(rejected(r, s).with({"checksum"})),
      malformed_(rejected(r, s).with({"malformed"})),
      foreign_(rejected(r, s).with({"generation"})),
      unknown_(rejected(r, s).with({"unknown"})),
      replayed_(rejected(r, s).with({"replayed"})),
      expired_(r.counter(metric(s, "transport_expired_total"),
                         "Transfers that the transport ended at their deadline")),
      frames_sent_(frames(r, s).with({"sent"})),
      frames_received_(frames(r, s).with({"received"})),
      bytes_sent_(bytes(r, s).with({"sent"})),
      bytes_received_(bytes(r, s).with({"received"})),
      info_(r.gauges(metric(s, "transport_info"), "1 for the transport in use",
                     {Label{"transport", {}}, Label{"detail", {}}})) {}

void KvMetrics::usage(const KvUsage& u) {
  used_.set(u.used);
  cached_.set(u.cached);
  free_.set(u.free);
  const uint64_t misses = u.prefix_query_tokens - u.prefix_hit_tokens;
  const uint64_t last_misses = last_usage_.prefix_query_tokens - last_usage_.prefix_hit_tokens;
  advance(hit_tokens_, u.prefix_hit_tokens, last_usage_.prefix_hit_tokens);
  advance(miss_tokens_, misses, last_misses);
  advance(evicted_, u.evicted, last_usage_.evicted);
  if (u.prefix_query_tokens > 0) {
    miss_ratio_.set(static_cast<double>(misses) / static_cast<double>(u.prefix_query_tokens));
  }
  last_usage_ = u;
}

void KvMetrics::transport(const transport::Transport& transport) {
  const transport::TransportCounters c = transport.counters();
  advance(bad_checksum_, c.frames_rejected_checksum, last_.frames_rejected_checksum);
  advance(malformed_, c.frames_rejected_malformed, last_.frames_rejected_malformed);
  advance(foreign_, c.frames_rejected_generation, last_.frames_rejected_generation);
  advance(unknown_, c.frames_rejected_unknown, last_.frames_rejected_unknown);
  advance(replayed_, c.frames_rejected_replayed, last_.frames_rejected_replayed);
  advance(expired_, c.transfers_expired, last_.transfers_expired);
  advance(frames_sent_, c.frames_sent, last_.frames_sent);
  advance(frames_received_, c.frames_received, last_.frames_received);
  advance(bytes_sent_, c.bytes_sent, last_.bytes_sent);
  advance(bytes_received_, c.bytes_received, last_.bytes_received);
  last_ = c;
  std::string detail = transport.detail();
  if (detail == detail_) return;
  if (!detail_.empty()) info_.with({transport.name(), detail_}).set(0);
  info_.with({transport.name(), detail}).set(1);
  detail_ = std::move(detail);
}

}  // namespace tandem::node

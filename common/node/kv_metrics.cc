#include "common/node/kv_metrics.h"

#include <algorithm>
#include <vector>

namespace tandem::node {
namespace {

const std::vector<std::string> kReasons{"checksum", "malformed", "generation", "unknown", "replayed"};
const std::vector<std::string> kDirections{"sent", "received"};

std::string metric(const std::string& subsystem, const char* rest) {
  return "tandem_" + subsystem + "_" + rest;
}

void advance(Counter counter, uint64_t now, uint64_t before) {
  if (now > before) counter.add(static_cast<double>(now - before));
}

}  // namespace

KvMetrics::KvMetrics(MetricsRegistry& r, const std::string& s)
    : subsystem_(s),
      used_(r.gauge(metric(s, "kv_used_blocks"), "KV blocks held by requests and reservations")),
      cached_(r.gauge(metric(s, "kv_cached_blocks"), "KV blocks of the prefix index, evictable")),
      free_(r.gauge(metric(s, "kv_free_blocks"), "KV blocks that hold nothing")),
      miss_ratio_(r.gauge(metric(s, "kv_miss_ratio"),
                          "Share of prompt tokens looked up in the prefix index and not found")),
      hit_tokens_(r.counter(metric(s, "kv_prefix_hit_tokens_total"),
                            "Prompt tokens whose KV came from the prefix index")),
      miss_tokens_(r.counter(metric(s, "kv_prefix_miss_tokens_total"),
                             "Prompt tokens looked up in the prefix index and not found")),
      evicted_(r.counter(metric(s, "kv_evicted_blocks_total"), "Prefix blocks evicted for new work")),
      rejected_(r.counters(metric(s, "transport_rejected_frames_total"), "KV frames dropped",
                           {Label{"reason", kReasons}})),
      expired_(r.counter(metric(s, "transport_expired_total"),
                         "Transfers that the transport ended at their deadline")),
      frames_(r.counters(metric(s, "transport_frames_total"), "KV frames",
                         {Label{"direction", kDirections}})),
      frame_bytes_(r.counters(metric(s, "transport_bytes_total"), "Bytes of KV frames",
                              {Label{"direction", kDirections}})) {}

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

void KvMetrics::transport(const transport::TransportCounters& c) {
  advance(rejected_.with({"checksum"}), c.frames_rejected_checksum, last_.frames_rejected_checksum);
  advance(rejected_.with({"malformed"}), c.frames_rejected_malformed,
          last_.frames_rejected_malformed);
  advance(rejected_.with({"generation"}), c.frames_rejected_generation,
          last_.frames_rejected_generation);
  advance(rejected_.with({"unknown"}), c.frames_rejected_unknown, last_.frames_rejected_unknown);
  advance(rejected_.with({"replayed"}), c.frames_rejected_replayed, last_.frames_rejected_replayed);
  advance(expired_, c.transfers_expired, last_.transfers_expired);
  advance(frames_.with({"sent"}), c.frames_sent, last_.frames_sent);
  advance(frames_.with({"received"}), c.frames_received, last_.frames_received);
  advance(frame_bytes_.with({"sent"}), c.bytes_sent, last_.bytes_sent);
  advance(frame_bytes_.with({"received"}), c.bytes_received, last_.bytes_received);
  last_ = c;
}

void KvMetrics::transport_name(MetricsRegistry& registry, std::string_view name,
                               std::string_view detail) {
  registry
      .gauges(metric(subsystem_, "transport_info"), "The transport in use; always 1",
              {Label{"transport", {}}, Label{"detail", {}}})
      .with({name, detail})
      .set(1);
}

}  // namespace tandem::node

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/ids.h"
#include "router/api/render.h"
#include "router/api/request.h"

namespace tandem::router {

// One connection of a node, numbered by the session layer and never used twice.
using NodeHandle = StrongId<struct NodeHandleTag, uint64_t>;

inline constexpr uint32_t kBlockTokens = 16;

// One choice of one HTTP request, complete enough to start or resume it anywhere.
struct TaskSpec {
  std::vector<TokenId> prompt;
  std::vector<uint64_t> block_hashes;  // of the prompt's whole blocks: hash_blocks(prompt)
  uint32_t max_new_tokens = 0;         // 0: score the prompt only
  uint32_t min_new_tokens = 0;
  std::vector<TokenId> stop_tokens;
  SamplingFields sampling;  // its `seed` is not looked at
  uint64_t seed = 0;
  int32_t logprobs = -1;
  int32_t prompt_logprobs = -1;
};

struct AnswerToken {
  TokenId id = 0;
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top;  // best first
};

// What happened to a request since the last update. Every request ends in exactly one update with
// `finish` or `error`; nothing follows.
struct AnswerUpdate {
  RequestId id;
  std::vector<AnswerToken> tokens;         // in order, without gap or repeat, whatever failed over
  std::vector<AnswerToken> prompt_scores;  // one per prompt token after the first
  uint32_t cached_tokens = 0;  // prompt tokens that nobody had to compute; with the first tokens
  std::optional<FinishKind> finish;
  std::optional<Error> error;
  uint32_t retry_after_seconds = 0;  // with kQueueFull and kUnavailable
  bool rejected = false;             // with an error: nothing was done for it
};

// Receives updates on the cluster thread; must not block and must not call the dispatcher back.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual void on_update(AnswerUpdate update) = 0;
};

struct Submission {
  RequestId id;  // unique for the life of the router
  TaskSpec spec;
};

struct DispatchOptions {
  uint32_t queue_capacity = 256;
  Duration queue_deadline = std::chrono::seconds(3);
  // The same for an answer that has begun: its client already waits inside a stream.
  Duration resume_deadline = std::chrono::seconds(15);
  uint32_t max_retries = 2;
  Duration request_timeout = std::chrono::minutes(10);
  uint32_t decode_queue = 256;        // requests a decode node may hold beyond those it runs
  uint32_t local_prefill_below = 32;  // uncached prompt tokens
  bool prefix_affinity = true;
  Duration peer_timeout = std::chrono::seconds(5);     // without a heartbeat
  Duration reserve_timeout = std::chrono::seconds(2);  // Reserve to Reserved
  Duration lease = std::chrono::seconds(30);           // Prefill to Admitted, at most
  Duration stall_timeout = std::chrono::seconds(60);   // between two tokens
  uint32_t heartbeat_ms = 500;
  uint64_t generation = 0;  // the router's own
  // What nodes must agree with; empty or 0: the first admitted node decides.
  std::string model_fingerprint;
  std::string tokenizer_hash;
  uint32_t vocab = 0;
};

// Monotonic counts.
struct DispatchCounters {
  uint64_t submitted = 0;
  uint64_t finished = 0;
  uint64_t failed = 0;
  uint64_t cancelled = 0;
  uint64_t rejected = 0;  // before any work; so `submitted` is the sum of these and what is open
  uint64_t rejected_full = 0;
  uint64_t failovers_local = 0;   // queue deadline passed: prefilled on the decode node
  uint64_t local_short = 0;       // conditional disaggregation: short uncached prompt
  uint64_t local_predicted = 0;   // conditional disaggregation: local predicted to finish first
  uint64_t local_no_prefill = 0;  // no prefill node can be used
  uint64_t remote = 0;            // handed over
  uint64_t retries = 0;
  uint64_t resumes = 0;  // retries of an answer that had begun
  uint64_t nodes_gone = 0;
  uint64_t generations_fenced = 0;  // nodes given up while they may still run
  uint64_t messages_fenced = 0;     // of unknown connections
  uint64_t messages_stale = 0;      // of known nodes about requests that are no longer theirs
  uint64_t tokens_repeated = 0;     // dropped
  uint64_t leases_expired = 0;
  uint64_t reserve_timeouts = 0;
  uint64_t stalls = 0;
  uint64_t breaker_opened = 0;
  uint64_t handshakes_refused = 0;
  uint64_t transfers = 0;
  uint64_t transfer_raw_bytes = 0;
  uint64_t transfer_wire_bytes = 0;
  double transfer_seconds = 0;
  double transfer_exposed_seconds = 0;
  double prefill_compute_seconds = 0;  // of handed-over prompts
};

enum class NodeRole : uint8_t { kPrefill, kDecode };
[[nodiscard]] std::string_view to_string(NodeRole role);
enum class BreakerState : uint8_t { kClosed, kHalfOpen, kOpen };
[[nodiscard]] std::string_view to_string(BreakerState state);

struct NodeStatus {
  NodeHandle handle;
  std::string id;
  NodeRole role = NodeRole::kDecode;
  uint64_t generation = 0;
  bool draining = false;
  bool stuck = false;  // heartbeats come, the scheduler does not advance
  BreakerState breaker = BreakerState::kClosed;
  std::string engine, transport, transport_detail, transport_reason, build_version;
  uint32_t max_context = 0;
  uint32_t queued = 0, running = 0, open_requests = 0;
  uint32_t kv_used = 0, kv_cached = 0, kv_free = 0, kv_total = 0;
  uint32_t reservations = 0;
  uint64_t prefix_hit_tokens = 0, prefix_query_tokens = 0, tokens_processed = 0;
  double prefill_tokens_per_second = 0;
  double tokens_per_second = 0;  // from heartbeats
  double step_seconds = 0;
  double heartbeat_age_seconds = 0;
  double fitted_a = 0, fitted_b = 0;  // decode seconds = a * prompt + b * answer
};

// What the rest of the router may know of the cluster; immutable once published.
struct ClusterSnapshot {
  std::vector<NodeStatus> nodes;
  std::vector<NodeStatus> lost;  // as they were last seen; gone within the last minute
  uint32_t queue_depth = 0, queue_capacity = 0;
  double queue_oldest_seconds = 0;
  uint32_t running = 0;      // admitted and not finished
  bool ready = false;        // a decode node is admitted and takes work
  bool draining = false;     // nothing new is taken
  uint32_t max_context = 0;  // the smallest of the nodes'; 0: no node
  DispatchCounters counters;
};

// Latencies as they are seen on the cluster thread.
class DispatchObserver {
 public:
  virtual ~DispatchObserver() = default;
  virtual void on_queue_wait(double seconds) = 0;
  virtual void on_prefill_to_decode(double seconds) = 0;
  virtual void on_transfer(double seconds, const std::string& transport) = 0;
  // For the log: a line worth an operator's attention. `level` 0 info, 1 warning.
  virtual void on_event(int level, std::string message, std::string node_id,
                        uint64_t request_id) = 0;
};

}  // namespace tandem::router

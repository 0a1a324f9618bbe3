#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/proto/control.pb.h"
#include "router/dispatch/breaker.h"
#include "router/dispatch/dispatcher.h"
#include "router/dispatch/prefix_affinity.h"
#include "router/dispatch/time_model.h"

namespace tandem::router {

// Where a request is. Legs are set as its phase says:
//   kQueued      none
//   kReserving   decode (Reserve sent), prefill chosen
//   kPrefilling  prefill (Prefill sent), decode (reservation held) unless nothing is handed over
//   kDecoding    decode; prefill until its TransferDone
enum class Phase : uint8_t { kQueued, kReserving, kPrefilling, kDecoding };

struct Request {
  RequestId id;
  TaskSpec spec;
  std::shared_ptr<AnswerSink> sink;
  std::vector<TokenId> answer;  // every token delivered to the sink
  // Runs that overtook the first token (it comes from another node), by first index.
  std::map<uint32_t, std::vector<AnswerToken>> early;
  std::optional<FinishKind> early_finish;
  uint32_t early_finish_at = 0;  // answer length at which early_finish holds

  Phase phase = Phase::kQueued;
  NodeHandle decode;
  NodeHandle prefill;
  uint64_t transfer = 0;
  Duration lease{};       // of the hand-over, or of a prefill alone
  bool admitted = false;  // decode has the whole KV
  bool prefill_done = false;
  uint64_t prefill_charge = 0;  // tokens counted in a node's open_prefill_tokens
  NodeHandle charged;
  uint64_t prefill_ahead = 0;  // tokens of that node then, these included
  TimePoint charged_at;
  uint32_t block_charge = 0;  // blocks counted in the decode node's committed_blocks
  uint32_t cached_tokens = 0;
  uint32_t predicted = 0;
  bool scores_delivered = false;

  TimePoint submitted;
  TimePoint expires;          // of the whole request
  TimePoint queue_until;      // then it fails over to local prefill, or fails
  TimePoint deadline;         // of the present phase, once it is out of the queue
  bool forced_local = false;  // the queue deadline has passed
  TimePoint prefill_done_at;
  std::optional<TimePoint> first_token_here;  // on the present decode node
  uint32_t tokens_before_here = 0;
  uint32_t retries = 0;
  std::optional<Error> last_error;
  std::vector<std::pair<NodeHandle, TimePoint>> avoid;  // nodes that refused or failed, until when

  [[nodiscard]] uint32_t total_tokens() const {
    return static_cast<uint32_t>(spec.prompt.size() + answer.size());
  }
  [[nodiscard]] uint32_t tokens_left() const {
    return spec.max_new_tokens -
           std::min(spec.max_new_tokens, static_cast<uint32_t>(answer.size()));
  }
  // The present attempt's first token has been delivered.
  [[nodiscard]] bool has_first() const { return answer.size() > tokens_before_here; }
};

struct Node {
  NodeHandle handle;
  NodeRole role = NodeRole::kDecode;
  control::Hello hello;
  control::Heartbeat beat;
  TimePoint connected;
  TimePoint last_beat;
  TimePoint last_progress;  // last change of the scheduler's tick
  double tokens_per_second = 0;
  bool draining = false;
  bool introduced = false;  // knows of the nodes that it sends KV to
  Breaker breaker;
  DecodeTimeModel decode_time;
  TimePoint last_answer;                 // when decode_time learnt from one
  PrefillPaceModel pace;                 // of the prompts since it last idled
  double kept_pace = 0;                  // the last that was known; 0: none
  TimePoint last_first_token;            // when pace learnt from one
  size_t slot = PrefixAffinity::kSlots;  // in the prefix index; kSlots: none left
  uint32_t open_requests = 0;
  uint64_t open_prefill_tokens = 0;
  uint64_t committed_blocks = 0;
  [[nodiscard]] const std::string& id() const { return hello.node_id(); }
};

class Dispatcher::Impl {
 public:
  Impl(Deps deps, DispatchOptions options);

  void submit(std::vector<Submission> choices, std::shared_ptr<AnswerSink> sink);
  void cancel(RequestId id, bool satisfied);
  control::Welcome on_node_connected(NodeHandle handle, const control::Hello& hello);
  void on_message(NodeHandle handle, const control::ToRouter& message);
  // Tells a node that sends KV of one that it will send to.
  void introduce(const Node& receiver, const Node& sender) const;
  void remove_node(NodeHandle handle, const std::string& why);
  void tick();
  void drain();
  void cut();
  std::shared_ptr<const ClusterSnapshot> snapshot() const;

  [[nodiscard]] size_t open_requests() const { return requests_.size(); }
  [[nodiscard]] const DispatchCounters& counters() const { return counters_; }

 private:
  using RequestPtr = std::unique_ptr<Request>;

  // dispatcher.cc: queueing and routing
  void pump();
  // False when the head of the queue has to wait.
  bool dispatch(Request& r);
  [[nodiscard]] bool impossible(const Request& r, Error& why) const;
  void start_remote(Request& r, Node& prefill, Node& decode);
  // How long a node may take for every prompt it has now, with a margin.
  [[nodiscard]] Duration prefill_patience(const Node& node) const;
  void start_prefill(Request& r);
  void start_local(Request& r, Node& decode, RouteKind kind);
  void start_prefill_only(Request& r, Node& prefill);
  void fill_task(const Request& r, control::Task& task) const;
  // `guess` stands for the decode time of a node whose own fit says nothing.
  [[nodiscard]] NodeView view(const Node& node, const Request& r, uint32_t cached_blocks,
                              const DecodeTimeModel& guess) const;
  // The fit of the quickest decode node that has one, else that of all answers.
  [[nodiscard]] const DecodeTimeModel& best_decode_time() const;
  void observe_decode(Node& node, const Request& r);
  // The first token has come from the node that was charged with the prompt, of which so many
  // tokens needed no computing.
  void observe_prefill(Node& node, const Request& r, uint32_t cached);
  [[nodiscard]] bool avoided(const Request& r, NodeHandle node) const;
  void note_dispatched(TimePoint now);
  [[nodiscard]] uint32_t retry_after() const;

  // dispatcher_requests.cc: progress and endings
  void deliver(Request& r, std::vector<AnswerToken> tokens, uint32_t first_index,
               std::optional<FinishKind> finish, AnswerUpdate update);
  void finish(Request& r);
  void fail(Request& r, Error error, uint32_t retry_after_seconds = 0);
  // Nobody could take it in time: 503.
  void fail_unplaced(Request& r);
  // Ends the present attempt (cancelling its legs but the one on `gone`) and queues another, or
  // fails.
  void retry(Request& r, const Error& why, NodeHandle blame, NodeHandle gone, bool counts);
  void release_charges(Request& r);
  void cancel_legs(Request& r, NodeHandle except, std::string_view reason);
  void send_cancel(NodeHandle node, uint64_t request, uint64_t transfer, std::string_view reason);
  void charge_prefill(Request& r, Node& node, uint64_t tokens);
  void discharge_prefill(Request& r);
  void charge_decode(Request& r, Node& node);
  void begin_attempt(Request& r);
  void erase(RequestId id);

  // dispatcher_messages.cc
  void on_heartbeat(Node& node, const control::Heartbeat& beat);
  void on_reserved(Node& node, const control::Reserved& message);
  void on_prefill_done(Node& node, const control::PrefillDone& message);
  void on_transfer_done(Node& node, const control::TransferDone& message);
  void on_admitted(Node& node, const control::Admitted& message);
  void on_tokens(Node& node, const control::Tokens& message);
  void on_run(Node& node, const control::TokenRun& run);
  void on_failed(Node& node, const control::Failed& message);
  void mark_admitted(Request& r);
  void record(Node& node, Outcome outcome);

  // dispatcher_nodes.cc
  // Why a node cannot join: by what it is and what this router serves, and by the other nodes.
  // Empty when it can.
  [[nodiscard]] std::string lasting_refusal(const control::Hello& hello) const;
  [[nodiscard]] std::string present_refusal(const control::Hello& hello) const;
  void sweep_nodes(TimePoint now);
  // Gives up a node that may still run: nothing more is heard from this connection of it.
  void fence(NodeHandle handle, const std::string& why);
  void sweep_request(Request& r, TimePoint now);
  [[nodiscard]] bool stuck(const Node& node, TimePoint now) const;
  [[nodiscard]] Node* node(NodeHandle handle);
  [[nodiscard]] Request* request(uint64_t id);
  [[nodiscard]] NodeStatus status_of(const Node& node, TimePoint now) const;

  Deps deps_;
  DispatchOptions options_;
  std::map<uint64_t, std::unique_ptr<Node>> nodes_;  // by handle, in order of arrival
  std::unordered_map<uint64_t, RequestPtr> requests_;
  std::deque<RequestId> queue_;  // FIFO; retries return to the front
  PrefixAffinity affinity_;
  std::array<bool, PrefixAffinity::kSlots> slots_{};
  DecodeTimeModel decode_time_;  // of all decode nodes
  OutputLengthModel lengths_;
  DispatchCounters counters_;
  uint64_t next_transfer_ = 1;
  uint64_t decisions_ = 0;
  bool draining_ = false;
  bool pumping_ = false;
  double drain_rate_ = 0;  // dispatches per second, decaying
  TimePoint drain_rate_at_;
  std::deque<std::pair<NodeStatus, TimePoint>> lost_;
  // Requests that a node was told to drop because it spoke of them unasked; bounded.
  std::unordered_set<uint64_t> told_;
};

}  // namespace tandem::router

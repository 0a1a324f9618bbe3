#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/net/http_server.h"
#include "common/obs/log.h"
#include "router/api/render.h"
#include "router/dispatch/types.h"
#include "router/stream/choice_stream.h"

namespace tandem::text {
class Tokenizer;
}

namespace tandem::router {

class ClusterLink;
class RouterMetrics;
class StatusBoard;

// One prompt of a request, ready to be sent to nodes.
struct PlannedPrompt {
  std::vector<TokenId> tokens;
  std::string echo;  // its text, when it is to be part of the answer
  uint32_t max_new_tokens = 0;
};

// A request that was checked and tokenized.
struct GenerationPlan {
  AnswerHead head;
  GenerationFields fields;
  bool echo = false;
  std::vector<PlannedPrompt> prompts;  // choice c belongs to prompt c / n
  std::vector<TokenId> stop_tokens;
  std::string request_id;
  TimePoint received;
};

// Carries one request from the dispatcher's updates to its client, streamed or whole. on_update()
// comes on the cluster thread and only queues; everything else runs on the connection's thread.
// Lives as long as the dispatcher or a posted function holds it.
class Generation final : public AnswerSink, public std::enable_shared_from_this<Generation> {
 public:
  struct Deps {
    const Clock& clock;
    Logger log;
    RouterMetrics& metrics;
    StatusBoard& board;
    ClusterLink& cluster;
    std::shared_ptr<const text::Tokenizer> tokenizer;
  };
  static void start(Deps deps, GenerationPlan plan, HttpResponder responder);

  Generation(Deps deps, GenerationPlan plan, HttpResponder responder);
  void on_update(AnswerUpdate update) override;

 private:
  struct Choice {
    RequestId id;
    ChoiceStream stream;
    bool begun = false;  // its first delta has been written
    bool ended = false;
    bool scored = false;  // prompt scores have come
    std::vector<AnswerToken> scores;
    uint32_t cached_tokens = 0;
    std::optional<TimePoint> last_token;
    ChoiceBody body;  // when not streaming
  };
  // Updates that wait for the connection's thread; beyond it the client is given up.
  static constexpr size_t kMaxInbox = 8192;

  void submit();
  [[nodiscard]] TaskSpec spec_of(uint32_t choice) const;
  [[nodiscard]] const PlannedPrompt& prompt_of(const Choice& choice) const;
  [[nodiscard]] bool wants_scores() const;
  void drain();
  void process(AnswerUpdate update);
  void begin_choice(Choice& choice);
  void write_delta(Choice& choice, StreamDelta delta);
  void observe_tokens(Choice& choice, size_t count);
  void end_choice(Choice& choice, FinishKind kind);
  void fail(const AnswerUpdate& update);
  void complete();
  void give_up(ClientLoss why);
  void flush();
  void report(int status, std::string_view outcome);
  [[nodiscard]] Usage usage() const;

  const Deps deps_;
  const GenerationPlan plan_;
  const HttpResponder responder_;
  const ChunkRenderer chunks_;
  std::vector<Choice> choices_;
  std::string out_;         // events of this drain
  bool streaming_ = false;  // the head is out
  bool over_ = false;
  size_t ended_ = 0;
  double ttft_ = -1;

  std::mutex mutex_;  // guards the two below
  std::vector<AnswerUpdate> inbox_;
  bool posted_ = false;
};

}  // namespace tandem::router

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/net/gate.h"
#include "common/net/http_router.h"
#include "common/obs/log.h"
#include "router/api/request.h"
#include "router/http/generation.h"
#include "router/http/prompt_builder.h"
#include "router/http/text_worker.h"

namespace tandem {
class MetricsRegistry;
}

namespace tandem::router {

class ClusterLink;
class RouterMetrics;
class StatusBoard;

// What the router knows of the model that it serves.
struct ServedModel {
  std::string id;
  std::vector<std::string> aliases;
  std::string fingerprint;
  std::vector<TokenId> eos;
  uint32_t vocab = 0;
  uint32_t context = 0;
};

// Every endpoint. Immutable after creation: handlers run on all HTTP threads.
class ApiServer {
 public:
  struct Deps {
    const Clock& clock;
    Logger log;
    MetricsRegistry& registry;
    RouterMetrics& metrics;
    StatusBoard& board;
    ClusterLink& cluster;
  };
  // `limits.vocab` and `limits.context` are taken from the model.
  ApiServer(Deps deps, ServedModel model, ApiLimits limits, PromptBuilder prompts, ApiKeyGate gate);

  void handle(HttpRequest request, HttpResponder responder) const;

 private:
  using Handler = void (ApiServer::*)(HttpRequest, HttpResponder) const;
  void route(std::string method, std::string path, std::string name, Handler handler, bool guarded,
             bool prefix = false);

  void chat(HttpRequest request, HttpResponder responder) const;
  void completions(HttpRequest request, HttpResponder responder) const;
  void models(HttpRequest request, HttpResponder responder) const;
  void model(HttpRequest request, HttpResponder responder) const;
  void tokenize(HttpRequest request, HttpResponder responder) const;
  void detokenize(HttpRequest request, HttpResponder responder) const;
  void live(HttpRequest request, HttpResponder responder) const;
  void ready(HttpRequest request, HttpResponder responder) const;
  void metrics(HttpRequest request, HttpResponder responder) const;
  void status(HttpRequest request, HttpResponder responder) const;
  void page(HttpRequest request, HttpResponder responder) const;
  void version(HttpRequest request, HttpResponder responder) const;

  using TextWork = std::function<void(const HttpRequest&, const HttpResponder&, bool elsewhere)>;
  // Runs `work` at once, or on the text worker's thread (`elsewhere`) if the body is long.
  void with_text(HttpRequest request, HttpResponder responder, std::string_view route,
                 TextWork work) const;
  void plan_and_generate(HttpRequest request, HttpResponder responder, Endpoint endpoint) const;
  void tokenize_now(const HttpRequest& request, const HttpResponder& responder) const;
  void detokenize_now(const HttpRequest& request, const HttpResponder& responder) const;
  [[nodiscard]] Result<GenerationPlan> plan_chat(const HttpRequest& request) const;
  [[nodiscard]] Result<GenerationPlan> plan_completion(const HttpRequest& request) const;
  void generate(Result<GenerationPlan> plan, HttpResponder responder, Endpoint endpoint) const;
  void answer(const HttpResponder& responder, std::string_view route, HttpResponse response) const;
  void answer_error(const HttpResponder& responder, std::string_view route,
                    const Error& error) const;
  [[nodiscard]] Status check_model(const std::string& name) const;
  [[nodiscard]] ApiLimits limits() const;
  [[nodiscard]] GenerationPlan new_plan(const HttpRequest& request, Endpoint endpoint,
                                        GenerationFields fields) const;
  [[nodiscard]] std::string model_object(const std::string& id) const;

  Deps deps_;
  const ServedModel model_;
  const ApiLimits limits_;
  const PromptBuilder prompts_;
  const ApiKeyGate gate_;
  const int64_t created_;
  HttpRouter router_;
  mutable TextWorker text_worker_;  // last: its work uses the rest
};

}  // namespace tandem::router

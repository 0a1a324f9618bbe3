#include "router/http/api_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/json_text.h"
#include "common/obs/metrics.h"
#include "common/text/tokenizer.h"
#include "router/cluster/cluster_link.h"
#include "router/cluster/router_metrics.h"
#include "router/status_page/page.h"
#include "router/status_page/status_board.h"

namespace tandem::router {

namespace {

std::string new_answer_id(Endpoint endpoint) {
  return (endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-") + random_hex(12);
}

template <typename T>
void append_integers(std::string& out, const std::vector<T>& values) {
  out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) out += ',';
    append_json_integer(out, values[i]);
  }
  out += ']';
}

// OpenAI's own words for two faults that clients look for.
std::string_view special_code(const Error& error) {
  if (error.code == ErrorCode::kNotFound && error.param == "model") return "model_not_found";
  if (error.code == ErrorCode::kInvalidArgument &&
      error.detail.find("maximum context length") != error.detail.npos) {
    return "context_length_exceeded";
  }
  return {};
}

}  // namespace

ApiServer::ApiServer(Deps deps, ServedModel model, ApiLimits limits, PromptBuilder prompts,
                     ApiKeyGate gate)
    : deps_(deps),
      model_(std::move(model)),
      limits_(limits),
      prompts_(std::move(prompts)),
      gate_(std::move(gate)),
      created_(static_cast<int64_t>(deps_.clock.unix_seconds())) {
  route("POST", "/v1/chat/completions", "chat", &ApiServer::chat, true);
  route("POST", "/v1/completions", "completions", &ApiServer::completions, true);
  route("GET", "/v1/models", "models", &ApiServer::models, true);
  route("GET", "/v1/models/", "models", &ApiServer::model, true, true);
  for (const char* prefix : {"", "/v1"}) {
    route("POST", std::string(prefix) + "/tokenize", "tokenize", &ApiServer::tokenize, true);
    route("POST", std::string(prefix) + "/detokenize", "detokenize", &ApiServer::detokenize, true);
  }
  route("GET", "/status", "status", &ApiServer::status, true);
  route("GET", "/health", "health", &ApiServer::live, false);
  route("GET", "/health/live", "health", &ApiServer::live, false);
  route("GET", "/health/ready", "health", &ApiServer::ready, false);
  route("GET", "/metrics", "metrics", &ApiServer::metrics, false);
  route("GET", "/version", "version", &ApiServer::version, false);
  route("GET", "/", "page", &ApiServer::page, false);
}

void ApiServer::route(std::string method, std::string path, std::string name, Handler handler,
                      bool guarded, bool prefix) {
  HttpHandler wrapped = [this, handler, guarded, name = std::move(name)](HttpRequest request,
                                                                         HttpResponder responder) {
    if (guarded) {
      if (Status allowed = gate_.check(request); !allowed) {
        return answer(responder, name, error_response(allowed.error()));
      }
    }
    (this->*handler)(std::move(request), std::move(responder));
  };
  if (prefix) {
    router_.prefix(std::move(method), std::move(path), std::move(wrapped));
  } else {
    router_.exact(std::move(method), std::move(path), std::move(wrapped));
  }
}

void ApiServer::handle(HttpRequest request, HttpResponder responder) const {
  const int unmatched = router_.handle(std::move(request), std::move(responder));
  if (unmatched != 0) deps_.metrics.answered("none", unmatched);
}

void ApiServer::answer(const HttpResponder& responder, std::string_view route,
                       HttpResponse response) const {
  const int status = response.status;
  const bool there = responder.respond(std::move(response));
  deps_.metrics.answered(route, there ? status : 499);
  if (!there) deps_.metrics.client_disconnects.add();
}

void ApiServer::answer_error(const HttpResponder& responder, std::string_view route,
                             const Error& error) const {
  HttpResponse response = error_response(error);
  if (std::string_view code = special_code(error); !code.empty())
    response.body = openai_error_body(error, code);
  answer(responder, route, std::move(response));
}

ApiLimits ApiServer::limits() const {
  ApiLimits limits = limits_;
  limits.vocab = model_.vocab;
  limits.context = model_.context;
  const uint32_t nodes = deps_.cluster.snapshot()->max_context;
  if (nodes != 0) limits.context = std::min(limits.context, nodes);
  return limits;
}

Status ApiServer::check_model(const std::string& name) const {
  if (name == model_.id ||
      std::find(model_.aliases.begin(), model_.aliases.end(), name) != model_.aliases.end()) {
    return {};
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("The model `{}` does not exist; this server has `{}`",
                          name.substr(0, 200), model_.id),
              "model");
}

GenerationPlan ApiServer::new_plan(const HttpRequest& request, Endpoint endpoint,
                                   GenerationFields fields) const {
  GenerationPlan plan;
  plan.head.endpoint = endpoint;
  plan.head.id = new_answer_id(endpoint);
  plan.head.created = static_cast<int64_t>(deps_.clock.unix_seconds());
  plan.head.model = fields.model;
  plan.head.fingerprint = "fp_" + model_.fingerprint.substr(0, 10);
  if (!fields.ignore_eos) plan.stop_tokens = model_.eos;
  plan.stop_tokens.insert(plan.stop_tokens.end(), fields.stop_token_ids.begin(),
                          fields.stop_token_ids.end());
  plan.fields = std::move(fields);
  plan.request_id = request.request_id;
  plan.received = request.received;
  return plan;
}

Result<GenerationPlan> ApiServer::plan_chat(const HttpRequest& request) const {
  const ApiLimits limits = this->limits();
  TANDEM_ASSIGN(ChatRequest chat, parse_chat_request(request.body, limits));
  TANDEM_TRY(check_model(chat.common.model));
  PlannedPrompt prompt;
  TANDEM_ASSIGN(prompt.tokens, prompts_.chat(chat.prompt, limits.context));
  if (prompt.tokens.empty()) {
    return fail(ErrorCode::kInvalidArgument, "the chat template renders these messages to nothing",
                "messages");
  }
  TANDEM_ASSIGN(prompt.max_new_tokens,
                resolve_max_tokens(chat.common, prompt.tokens.size(), limits, "messages",
                                   limits.sampling.chat_max_tokens));
  GenerationPlan plan = new_plan(request, Endpoint::kChat, std::move(chat.common));
  plan.prompts.push_back(std::move(prompt));
  return plan;
}

Result<GenerationPlan> ApiServer::plan_completion(const HttpRequest& request) const {
  const ApiLimits limits = this->limits();
  TANDEM_ASSIGN(CompletionRequest completion, parse_completion_request(request.body, limits));
  TANDEM_TRY(check_model(completion.common.model));
  std::vector<PlannedPrompt> prompts;
  for (size_t i = 0; i < completion.prompts.size(); ++i) {
    const std::string field =
        completion.prompts.size() == 1 ? "prompt" : fmt::format("prompt[{}]", i);
    PlannedPrompt prompt;
    if (auto* text = std::get_if<std::string>(&completion.prompts[i])) {
      TANDEM_ASSIGN(prompt.tokens,
                    prompts_.text(*text, completion.add_special_tokens, limits.context, field));
      if (completion.echo) prompt.echo = std::move(*text);
    } else {
      prompt.tokens = std::move(std::get<std::vector<TokenId>>(completion.prompts[i]));
      if (completion.echo) prompt.echo = prompts_.tokenizer()->decode(prompt.tokens, false);
    }
    if (prompt.tokens.empty()) {
      return fail(ErrorCode::kInvalidArgument, field + " is empty: there is nothing to continue",
                  field);
    }
    TANDEM_ASSIGN(prompt.max_new_tokens,
                  resolve_max_tokens(completion.common, prompt.tokens.size(), limits, field,
                                     kCompletionDefaultMaxTokens));
    prompts.push_back(std::move(prompt));
  }
  GenerationPlan plan = new_plan(request, Endpoint::kCompletion, std::move(completion.common));
  plan.echo = completion.echo;
  plan.prompts = std::move(prompts);
  return plan;
}

void ApiServer::generate(Result<GenerationPlan> plan, HttpResponder responder,
                         Endpoint endpoint) const {
  if (!plan) {
    return answer_error(responder, route_name(endpoint), plan.error());
  }
  Generation::start({.clock = deps_.clock,
                     .log = deps_.log,
                     .metrics = deps_.metrics,
                     .board = deps_.board,
                     .cluster = deps_.cluster,
                     .tokenizer = prompts_.tokenizer()},
                    std::move(*plan), std::move(responder));
}

void ApiServer::with_text(HttpRequest request, HttpResponder responder, std::string_view route,
                          TextWork work) const {
  if (request.body.size() < TextWorker::kLongBody) return work(request, responder, false);
  const auto held = std::make_shared<HttpRequest>(std::move(request));
  const auto task = [this, held, responder, work = std::move(work)] {
    try {
      work(*held, responder, true);
    } catch (const std::exception& e) {  // its last responder then answers with a 500
      deps_.log.error("http_handler_failed",
                      {{"request_id", held->request_id}, {"error", e.what()}});
    }
  };
  if (text_worker_.run(task)) return;
  answer_error(responder, route,
               make_error(ErrorCode::kQueueFull,
                          "too many long texts are being tokenized; try again in a moment"));
}

// A Generation belongs to the connection's thread from its first moment on.
void ApiServer::plan_and_generate(HttpRequest request, HttpResponder responder,
                                  Endpoint endpoint) const {
  with_text(std::move(request), std::move(responder), route_name(endpoint),
            [this, endpoint](const HttpRequest& q, const HttpResponder& r, bool elsewhere) {
              Result<GenerationPlan> plan =
                  endpoint == Endpoint::kChat ? plan_chat(q) : plan_completion(q);
              if (!elsewhere) return generate(std::move(plan), r, endpoint);
              auto held = std::make_shared<Result<GenerationPlan>>(std::move(plan));
              r.post([this, held, r, endpoint] { generate(std::move(*held), r, endpoint); });
            });
}

void ApiServer::chat(HttpRequest request, HttpResponder responder) const {
  plan_and_generate(std::move(request), std::move(responder), Endpoint::kChat);
}

void ApiServer::completions(HttpRequest request, HttpResponder responder) const {
  plan_and_generate(std::move(request), std::move(responder), Endpoint::kCompletion);
}

std::string ApiServer::model_object(const std::string& id) const {
  std::string out = "{\"id\":";
  append_json_string(out, id);
  out += ",\"object\":\"model\",\"created\":";
  append_json_integer(out, created_);
  out += ",\"owned_by\":\"tandem\",\"root\":";
  append_json_string(out, model_.id);
  out += ",\"parent\":null,\"max_model_len\":";
  append_json_integer(out, limits().context);
  return out + ',' + sampling_members_json(limits_.sampling) + '}';
}

void ApiServer::models(HttpRequest, HttpResponder responder) const {
  HttpResponse response;
  response.body = "{\"object\":\"list\",\"data\":[" + model_object(model_.id);
  for (const std::string& alias : model_.aliases) response.body += ',' + model_object(alias);
  response.body += "]}";
  answer(responder, "models", std::move(response));
}

void ApiServer::model(HttpRequest request, HttpResponder responder) const {
  const std::string id = request.path.substr(std::string_view("/v1/models/").size());
  if (Status known = check_model(id); !known)
    return answer_error(responder, "models", known.error());
  HttpResponse response;
  response.body = model_object(id);
  answer(responder, "models", std::move(response));
}

void ApiServer::tokenize(HttpRequest request, HttpResponder responder) const {
  with_text(std::move(request), std::move(responder), "tokenize",
            [this](const HttpRequest& q, const HttpResponder& r, bool) { tokenize_now(q, r); });
}

void ApiServer::tokenize_now(const HttpRequest& request, const HttpResponder& responder) const {
  const ApiLimits limits = this->limits();
  auto run = [&]() -> Result<HttpResponse> {
    TANDEM_ASSIGN(const TokenizeRequest parsed, parse_tokenize_request(request.body, limits));
    if (!parsed.model.empty()) TANDEM_TRY(check_model(parsed.model));
    std::vector<TokenId> ids;
    if (const auto* chat = std::get_if<ChatPrompt>(&parsed.input)) {
      TANDEM_ASSIGN(ids, prompts_.chat(*chat, 0));
    } else {
      TANDEM_ASSIGN(ids, prompts_.text(std::get<std::string>(parsed.input),
                                       parsed.add_special_tokens, 0, "prompt"));
    }
    HttpResponse response;
    response.body =
        fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":", ids.size(), limits.context);
    append_integers(response.body, ids);
    response.body += ",\"token_strs\":";
    if (parsed.return_token_strs) {
      response.body += '[';
      for (size_t i = 0; i < ids.size(); ++i) {
        if (i != 0) response.body += ',';
        append_json_string(response.body, prompts_.tokenizer()->token_text(ids[i]));
      }
      response.body += ']';
    } else {
      response.body += "null";
    }
    response.body += '}';
    return response;
  };
  Result<HttpResponse> response = run();
  if (!response) return answer_error(responder, "tokenize", response.error());
  answer(responder, "tokenize", std::move(*response));
}

void ApiServer::detokenize(HttpRequest request, HttpResponder responder) const {
  with_text(std::move(request), std::move(responder), "detokenize",
            [this](const HttpRequest& q, const HttpResponder& r, bool) { detokenize_now(q, r); });
}

void ApiServer::detokenize_now(const HttpRequest& request, const HttpResponder& responder) const {
  auto run = [&]() -> Result<HttpResponse> {
    TANDEM_ASSIGN(const DetokenizeRequest parsed, parse_detokenize_request(request.body, limits()));
    if (!parsed.model.empty()) TANDEM_TRY(check_model(parsed.model));
    HttpResponse response;
    response.body = "{\"prompt\":";
    append_json_string(response.body, prompts_.tokenizer()->decode(parsed.tokens, false));
    response.body += '}';
    return response;
  };
  Result<HttpResponse> response = run();
  if (!response) return answer_error(responder, "detokenize", response.error());
  answer(responder, "detokenize", std::move(*response));
}

void ApiServer::live(HttpRequest, HttpResponder responder) const {
  HttpResponse response;
  const bool live = deps_.cluster.live();
  response.status = live ? 200 : 503;
  response.body = live ? "{\"status\":\"live\"}" : "{\"status\":\"stuck\"}";
  answer(responder, "health", std::move(response));
}

void ApiServer::ready(HttpRequest, HttpResponder responder) const {
  const auto snapshot = deps_.cluster.snapshot();
  const auto count = [&](NodeRole role) {
    return std::count_if(snapshot->nodes.begin(), snapshot->nodes.end(), [&](const NodeStatus& n) {
      return n.role == role && !n.draining && !n.stuck;
    });
  };
  HttpResponse response;
  response.status = snapshot->ready ? 200 : 503;
  response.body = fmt::format("{{\"status\":\"{}\",\"decode_nodes\":{},\"prefill_nodes\":{}}}",
                              snapshot->ready      ? "ready"
                              : snapshot->draining ? "draining"
                                                   : "waiting for a decode node",
                              count(NodeRole::kDecode), count(NodeRole::kPrefill));
  answer(responder, "health", std::move(response));
}

void ApiServer::metrics(HttpRequest, HttpResponder responder) const {
  HttpResponse response;
  response.content_type = std::string(kMetricsContentType);
  response.body = deps_.registry.exposition();
  answer(responder, "metrics", std::move(response));
}

void ApiServer::status(HttpRequest, HttpResponder responder) const {
  HttpResponse response;
  response.headers.emplace_back("Cache-Control", "no-store");
  response.body = deps_.board.json(*deps_.cluster.snapshot(), limits().context);
  answer(responder, "status", std::move(response));
}

void ApiServer::page(HttpRequest, HttpResponder responder) const {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.headers.emplace_back(
      "Content-Security-Policy",
      "default-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
      "img-src data:; frame-ancestors 'none'");
  response.body.assign(reinterpret_cast<const char*>(status_page), status_page_size);
  answer(responder, "page", std::move(response));
}

void ApiServer::version(HttpRequest, HttpResponder responder) const {
  HttpResponse response;
  response.body = "{\"version\":\"" TANDEM_VERSION "\"}";
  answer(responder, "version", std::move(response));
}

}  // namespace tandem::router

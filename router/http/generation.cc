#include "router/http/generation.h"

#include <algorithm>
#include <random>
#include <utility>

#include "router/cluster/cluster_link.h"
#include "router/cluster/router_metrics.h"
#include "router/dispatch/block_hashes.h"
#include "router/status_page/status_board.h"

namespace tandem::router {

namespace {

// Not reproducible on purpose: a request without a seed differs each time.
int64_t random_seed() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return static_cast<int64_t>(generator());
}

}  // namespace

void Generation::start(Deps deps, GenerationPlan plan, HttpResponder responder) {
  if (!plan.fields.sampling.seed) plan.fields.sampling.seed = random_seed();
  auto self = std::make_shared<Generation>(std::move(deps), std::move(plan), responder);
  self->submit();
}

Generation::Generation(Deps deps, GenerationPlan plan, HttpResponder responder)
    : deps_(std::move(deps)),
      plan_(std::move(plan)),
      responder_(std::move(responder)),
      chunks_(plan_.head, plan_.fields.include_usage) {
  const uint32_t n = plan_.fields.n;
  choices_.reserve(plan_.prompts.size() * n);
  for (uint32_t c = 0; c < plan_.prompts.size() * n; ++c) {
    StreamOptions options;
    options.stop = plan_.fields.stop;
    options.include_stop = plan_.fields.include_stop_in_output;
    options.skip_special_tokens = plan_.fields.skip_special_tokens;
    options.logprobs = plan_.fields.logprobs >= 0;
    if (plan_.echo) options.text_offset = count_characters(plan_.prompts[c / n].echo);
    choices_.push_back({.id = deps_.cluster.new_id(),
                        .stream = ChoiceStream(deps_.tokenizer, std::move(options)),
                        .scores = {},
                        .last_token = {},
                        .body = {}});
    choices_.back().body.index = c;
    if (plan_.fields.logprobs >= 0) choices_.back().body.logprobs.emplace();
  }
}

bool Generation::wants_scores() const { return plan_.echo && plan_.fields.logprobs >= 0; }

const PlannedPrompt& Generation::prompt_of(const Choice& choice) const {
  return plan_.prompts[choice.body.index / plan_.fields.n];
}

TaskSpec Generation::spec_of(uint32_t c) const {
  const PlannedPrompt& prompt = plan_.prompts[c / plan_.fields.n];
  TaskSpec spec;
  spec.prompt = prompt.tokens;
  spec.block_hashes = hash_blocks(prompt.tokens);
  spec.max_new_tokens = prompt.max_new_tokens;
  spec.min_new_tokens = plan_.fields.min_tokens;
  spec.stop_tokens = plan_.stop_tokens;
  spec.sampling = plan_.fields.sampling;
  spec.seed = choice_seed(*plan_.fields.sampling.seed, c % plan_.fields.n);
  spec.logprobs = plan_.fields.logprobs;
  spec.prompt_logprobs = wants_scores() ? plan_.fields.logprobs : -1;
  return spec;
}

void Generation::submit() {
  std::vector<Submission> submissions;
  std::vector<AnswerUpdate> nothing_to_do;
  for (uint32_t c = 0; c < choices_.size(); ++c) {
    const PlannedPrompt& prompt = prompt_of(choices_[c]);
    if (prompt.max_new_tokens == 0 && !wants_scores()) {  // no node is needed for an echo
      AnswerUpdate update;
      update.id = choices_[c].id;
      update.finish = FinishKind::kLength;
      nothing_to_do.push_back(std::move(update));
      continue;
    }
    submissions.push_back({choices_[c].id, spec_of(c)});
  }
  // Held while it is told: cancelling makes the dispatcher let go of this.
  responder_.on_disconnect([weak = weak_from_this()](ClientLoss why) {
    if (const auto self = weak.lock()) self->give_up(why);
  });
  if (over_) return;  // it had left before
  if (!submissions.empty()) deps_.cluster.submit(std::move(submissions), shared_from_this());
  for (AnswerUpdate& update : nothing_to_do) on_update(std::move(update));
}

void Generation::on_update(AnswerUpdate update) {
  {
    std::lock_guard lock(mutex_);
    if (inbox_.size() < kMaxInbox) {
      inbox_.push_back(std::move(update));
    } else {  // the connection's thread is far behind: what has ended must still end
      AnswerUpdate& last = inbox_.back();
      last.error =
          make_error(ErrorCode::kResourceExhausted, "the answer could not be delivered in time");
    }
    if (posted_) return;
    posted_ = true;
  }
  responder_.post([self = shared_from_this()] { self->drain(); });
}

void Generation::drain() {
  std::vector<AnswerUpdate> updates;
  {
    std::lock_guard lock(mutex_);
    updates.swap(inbox_);
    posted_ = false;
  }
  for (AnswerUpdate& update : updates) {
    if (over_) return;
    process(std::move(update));
  }
  if (!over_) flush();
}

void Generation::process(AnswerUpdate update) {
  const auto it = std::find_if(choices_.begin(), choices_.end(),
                               [&](const Choice& c) { return c.id == update.id; });
  if (it == choices_.end() || it->ended) return;
  Choice& choice = *it;
  if (update.error) return fail(update);
  if (!update.prompt_scores.empty()) choice.scores = std::move(update.prompt_scores);
  if (update.cached_tokens != 0 && choice.cached_tokens == 0)
    choice.cached_tokens = update.cached_tokens;
  if (!choice.begun) begin_choice(choice);
  observe_tokens(choice, update.tokens.size());
  StreamDelta delta;
  const uint32_t before = choice.stream.tokens();
  for (const AnswerToken& token : update.tokens) choice.stream.push(token, delta);
  if (plan_.fields.stream) deps_.metrics.output_tokens.add(choice.stream.tokens() - before);
  const bool by_string = choice.stream.ended();
  if (update.finish) choice.stream.finish(*update.finish, delta);
  const std::optional<FinishKind> finish = delta.finish;
  write_delta(choice, std::move(delta));
  if (by_string && !update.finish) deps_.cluster.finish_early(choice.id);
  if (finish) end_choice(choice, *finish);
}

void Generation::observe_tokens(Choice& choice, size_t count) {
  if (count == 0) return;
  const TimePoint now = deps_.clock.now();
  deps_.board.output_tokens.fetch_add(count, std::memory_order_relaxed);
  if (!choice.last_token) {
    const double ttft = to_seconds(now - plan_.received);
    if (ttft_ < 0) ttft_ = ttft;
    deps_.metrics.ttft_seconds.observe(ttft);
    deps_.board.ttft.observe(ttft);
    deps_.board.prompt_tokens.fetch_add(prompt_of(choice).tokens.size(), std::memory_order_relaxed);
  } else {
    const double each = to_seconds(now - *choice.last_token) / static_cast<double>(count);
    for (size_t i = 0; i < count; ++i) {
      deps_.metrics.itl_seconds.observe(each);
      deps_.board.itl.observe(each);
    }
  }
  choice.last_token = now;
}

void Generation::begin_choice(Choice& choice) {
  choice.begun = true;
  if (plan_.fields.stream && !streaming_) {
    streaming_ =
        responder_.start_stream(200, "text/event-stream; charset=utf-8",
                                {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
    if (!streaming_) return give_up(ClientLoss::kLeft);
  }
  if (streaming_ && plan_.head.endpoint == Endpoint::kChat)
    chunks_.append_role(out_, choice.body.index);
  if (!plan_.echo) return;
  StreamDelta delta;
  const PlannedPrompt& prompt = prompt_of(choice);
  delta.text = prompt.echo;
  if (wants_scores())
    delta.logprobs = prompt_entries(deps_.tokenizer, prompt.tokens, choice.scores);
  write_delta(choice, std::move(delta));
}

void Generation::write_delta(Choice& choice, StreamDelta delta) {
  if (delta.text.empty() && delta.logprobs.empty()) return;
  if (plan_.fields.stream) {
    chunks_.append_text(out_, choice.body.index, delta.text,
                        plan_.fields.logprobs >= 0 ? &delta.logprobs : nullptr);
    return;
  }
  choice.body.text += delta.text;
  if (!choice.body.logprobs) return;
  std::move(delta.logprobs.begin(), delta.logprobs.end(),
            std::back_inserter(*choice.body.logprobs));
}

void Generation::end_choice(Choice& choice, FinishKind kind) {
  choice.ended = true;
  choice.body.finish = kind;
  if (plan_.fields.stream) chunks_.append_finish(out_, choice.body.index, kind);
  if (++ended_ == choices_.size()) complete();
}

Usage Generation::usage() const {
  Usage usage;
  for (const PlannedPrompt& p : plan_.prompts) usage.prompt_tokens += p.tokens.size();
  for (const Choice& c : choices_) {
    usage.completion_tokens += c.stream.tokens();
    if (c.body.index % plan_.fields.n == 0) usage.cached_tokens += c.cached_tokens;
  }
  return usage;
}

void Generation::complete() {
  if (over_) return;
  over_ = true;
  if (plan_.fields.stream) {
    if (plan_.fields.include_usage) chunks_.append_usage(out_, usage());
    append_done(out_);
    if (!responder_.write(std::move(out_))) responder_.abort();
    responder_.finish();
  } else {
    std::vector<ChoiceBody> bodies;
    for (Choice& c : choices_) bodies.push_back(std::move(c.body));
    HttpResponse response;
    response.body = render_answer(plan_.head, bodies, usage());
    responder_.respond(std::move(response));
  }
  const Usage u = usage();
  deps_.metrics.prompt_tokens.add(static_cast<double>(u.prompt_tokens));
  deps_.metrics.cached_tokens.add(static_cast<double>(u.cached_tokens));
  if (!plan_.fields.stream)
    deps_.metrics.output_tokens.add(static_cast<double>(u.completion_tokens));
  deps_.metrics.prompt_tokens_per_request.observe(static_cast<double>(u.prompt_tokens));
  deps_.metrics.output_tokens_per_request.observe(static_cast<double>(u.completion_tokens));
  report(200, "answered");
}

void Generation::fail(const AnswerUpdate& update) {
  if (over_) return;
  over_ = true;
  const Error& error = *update.error;
  std::vector<RequestId> others;
  for (const Choice& c : choices_) {
    if (!c.ended) others.push_back(c.id);
  }
  deps_.cluster.cancel(std::move(others));
  const int status = error_traits(error.code).http_status;
  if (streaming_) {  // the head said 200: a clean error event, and no [DONE]
    append_error_event(out_, error);
    if (!responder_.write(std::move(out_))) responder_.abort();
    responder_.finish();
  } else {
    HttpResponse response = error_response(error);
    if (update.retry_after_seconds != 0) {
      std::erase_if(response.headers,
                    [](const auto& h) { return equal_ignoring_case(h.first, "Retry-After"); });
      response.headers.emplace_back("Retry-After", std::to_string(update.retry_after_seconds));
    }
    responder_.respond(std::move(response));
  }
  if (update.rejected) {  // overload is no failure, and a line of its own each would add to it
    deps_.board.requests_rejected.fetch_add(1, std::memory_order_relaxed);
    return report(status, "rejected");
  }
  deps_.board.requests_failed.fetch_add(1, std::memory_order_relaxed);
  deps_.log.warning("request_failed", error, {{"request_id", plan_.request_id}});
  report(status, "failed");
}

void Generation::give_up(ClientLoss why) {
  if (over_) return;
  over_ = true;
  std::vector<RequestId> open;
  for (const Choice& c : choices_) {
    if (!c.ended) open.push_back(c.id);
  }
  deps_.cluster.cancel(std::move(open));
  switch (why) {
    case ClientLoss::kLeft:
      deps_.metrics.client_disconnects.add();
      deps_.board.requests_left.fetch_add(1, std::memory_order_relaxed);
      return report(499, "the client left");
    case ClientLoss::kDoesNotRead:
      deps_.metrics.slow_clients.add();
      deps_.board.requests_left.fetch_add(1, std::memory_order_relaxed);
      return report(499, "the client does not read");
    case ClientLoss::kCut:
      deps_.board.requests_failed.fetch_add(1, std::memory_order_relaxed);
      return report(503, "cut off by the router's end");
  }
}

void Generation::flush() {
  if (out_.empty()) return;
  std::string piece;
  piece.swap(out_);
  if (responder_.write(std::move(piece))) return;
  const bool left = responder_.disconnected();
  responder_.abort();
  give_up(left ? ClientLoss::kLeft : ClientLoss::kDoesNotRead);
}

void Generation::report(int status, std::string_view outcome) {
  const double seconds = to_seconds(deps_.clock.now() - plan_.received);
  const std::string_view route = route_name(plan_.head.endpoint);
  deps_.metrics.answered(route, status);
  deps_.metrics.request_seconds.with({route}).observe(seconds);
  deps_.board.requests.fetch_add(1, std::memory_order_relaxed);
  const Usage u = usage();
  if (status == 200) {
    deps_.metrics.e2e_seconds.observe(seconds);
    deps_.board.e2e.observe(seconds);
  }
  std::vector<uint64_t> ids;  // what nodes' logs call `request`, one a choice
  ids.reserve(choices_.size());
  for (const Choice& c : choices_) ids.push_back(c.id.value);
  deps_.log.info("request", {{"request_id", plan_.request_id},
                             {"id", plan_.head.id},
                             {"route", route},
                             {"status", status},
                             {"outcome", outcome},
                             {"stream", plan_.fields.stream},
                             {"choices", choices_.size()},
                             {"prompt_tokens", u.prompt_tokens},
                             {"cached_tokens", u.cached_tokens},
                             {"completion_tokens", u.completion_tokens},
                             {"ttft_seconds", ttft_},
                             {"seconds", seconds},
                             {"requests", ids}});
}

}  // namespace tandem::router

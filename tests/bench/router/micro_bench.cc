// What the router does per request and per token, alone: parsing, the scheduling decision,
// rendering.
#include <benchmark/benchmark.h>

#include <numeric>

#include "common/base/check.h"
#include "common/model/checkpoint.h"
#include "common/model/text.h"
#include "common/proto/control.pb.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "router/api/render.h"
#include "router/api/request.h"
#include "router/dispatch/block_hashes.h"
#include "router/dispatch/dispatcher.h"
#include "router/dispatch/prefix_affinity.h"
#include "router/stream/choice_stream.h"

namespace tandem::router {
namespace {

struct Quiet final : DispatchObserver, AnswerSink {
  void on_queue_wait(double) override {}
  void on_prefill_to_decode(double) override {}
  void on_transfer(double, const std::string&) override {}
  void on_event(int, std::string, std::string, uint64_t) override {}
  void on_update(AnswerUpdate) override {}
};

std::vector<TokenId> prompt(size_t tokens) {
  std::vector<TokenId> ids(tokens);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// range(0) nodes of each role, a prompt of range(1) tokens: submit to Reserve sent (queue, prefix
// match, policy, message), then cancelled. The message carries the prompt and is part of the
// decision's cost here.
void scheduling_decision(benchmark::State& state) {
  ManualClock clock;
  const PredictedFinishPolicy policy;
  auto quiet = std::make_shared<Quiet>();
  size_t sent = 0;
  Dispatcher dispatcher(
      {.clock = clock,
       .policy = policy,
       .observer = *quiet,
       .send = [&](NodeHandle, const control::ToNode& m) { sent += m.ByteSizeLong(); },
       .close = [](NodeHandle) {}},
      {});
  uint64_t handle = 1;
  for (int64_t i = 0; i < 2 * state.range(0); ++i) {
    control::Hello h;
    h.set_protocol_version(1);
    h.set_role(i % 2 == 0 ? control::ROLE_PREFILL : control::ROLE_DECODE);
    h.set_node_id("n" + std::to_string(i));
    h.set_generation(static_cast<uint64_t>(i) + 1);
    h.set_self_test_passed(true);
    h.set_max_context(8192);
    h.set_kv_blocks(100000);
    h.set_max_sequences(256);
    h.set_max_batch_tokens(8192);
    TANDEM_CHECK(dispatcher.on_node_connected(NodeHandle{handle++}, h).admitted(), "admitted");
  }
  const std::vector<TokenId> tokens = prompt(static_cast<size_t>(state.range(1)));
  uint64_t id = 1;
  for (auto _ : state) {
    std::vector<Submission> choices(1);
    choices[0].id = RequestId{id};
    choices[0].spec.prompt = tokens;
    choices[0].spec.block_hashes = hash_blocks(tokens);
    choices[0].spec.max_new_tokens = 100;
    dispatcher.submit(std::move(choices), quiet);
    dispatcher.cancel(RequestId{id++});
  }
  state.counters["bytes"] = static_cast<double>(sent) / static_cast<double>(state.iterations());
}
BENCHMARK(scheduling_decision)->Args({1, 64})->Args({2, 512})->Args({16, 512})->Args({32, 4096});

void policy_alone(benchmark::State& state) {
  const PredictedFinishPolicy policy;
  std::vector<NodeView> p(static_cast<size_t>(state.range(0)));
  for (NodeView& v : p) {
    v.usable = true;
    v.max_context = 8192;
    v.max_batch_tokens = 2048;
    v.free_blocks = v.total_blocks = 10000;
    v.max_sequences = 64;
  }
  RouteQuery q;
  q.prompt_tokens = 512;
  q.predicted_new_tokens = q.max_new_tokens = 100;
  q.local_prefill_below = 32;
  for (auto _ : state) benchmark::DoNotOptimize(policy.choose(q, p, p));
}
BENCHMARK(policy_alone)->Arg(2)->Arg(32);

void parse_chat(benchmark::State& state) {
  const std::string body =
      R"({"model":"M","stream":true,"max_tokens":200,"temperature":0.7,"messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":")" +
      std::string(400, 'x') + "\"}]}";
  const ApiLimits limits{.vocab = 50000, .context = 8192};
  for (auto _ : state) benchmark::DoNotOptimize(parse_chat_request(body, limits));
}
BENCHMARK(parse_chat);

void render_chunk(benchmark::State& state) {
  const ChunkRenderer chunks({Endpoint::kChat, "chatcmpl-0123456789abcdef01234567", 1700000000,
                              "chat-6m", "fp_0123456789"},
                             false);
  std::string out;
  for (auto _ : state) {
    out.clear();
    chunks.append_text(out, 0, " word", nullptr);
    benchmark::DoNotOptimize(out.data());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(render_chunk);

const text::TextModel& chat_model() {
  static const SteadyClock clock;
  static const text::TextModel model = [] {
    auto checkpoint = model::Checkpoint::open(std::string(TANDEM_MODELS) + "/chat-6m");
    return std::move(*model::load_text(**checkpoint, clock));
  }();
  return model;
}

// A chat of range(0) messages, as the parser hands it on.
text::ChatInput chat_input(int64_t messages) {
  text::ChatInput input;
  input.messages_json = "[";
  for (int64_t i = 0; i < messages; ++i) {
    if (i != 0) input.messages_json += ',';
    input.messages_json += i % 2 == 0 ? R"({"role":"user","content":"What is the time?"})"
                                      : R"({"role":"assistant","content":"It is noon, friend."})";
  }
  input.messages_json += ']';
  return input;
}

void render_chat(benchmark::State& state) {
  const text::ChatInput input = chat_input(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(chat_model().chat_template->render(input));
}
BENCHMARK(render_chat)->Arg(1)->Arg(21);

void tokenize_chat(benchmark::State& state) {
  const std::string text = *chat_model().chat_template->render(chat_input(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(chat_model().tokenizer->encode(text));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}
BENCHMARK(tokenize_chat)->Arg(1)->Arg(21);

// Token to SSE event: detokenize, range(0) stop strings, render.
void token_to_event(benchmark::State& state) {
  const auto& tokenizer = chat_model().tokenizer;
  const auto ids = tokenizer->encode(
      "The quick brown fox jumps over the lazy dog and then it rests for a while. ");
  StreamOptions options;
  for (int64_t i = 0; i < state.range(0); ++i)
    options.stop.push_back("\n\nUser " + std::to_string(i) + ":");
  ChoiceStream stream(tokenizer, options);
  const ChunkRenderer chunks({Endpoint::kChat, "chatcmpl-0123456789abcdef01234567", 1700000000,
                              "chat-6m", "fp_0123456789"},
                             false);
  std::string out;
  size_t i = 0;
  for (auto _ : state) {
    StreamDelta delta;
    stream.push({.id = (*ids)[i], .logprob = 0, .top = {}}, delta);
    i = (i + 1) % ids->size();
    out.clear();
    chunks.append_text(out, 0, delta.text, nullptr);
    benchmark::DoNotOptimize(out.data());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(token_to_event)->Arg(0)->Arg(4);

}  // namespace
}  // namespace tandem::router

#include "tools/bench/load_generator.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <future>
#include <memory>
#include <set>
#include <utility>

#include "common/net/async_http_client.h"
#include "common/net/io_thread.h"
#include "tools/bench/completion_stream.h"
#include "tools/bench/prompts.h"
#include "tools/client/http_fetch.h"

namespace tandem::bench {
namespace {

namespace json = boost::json;

// Ordinary English, tokenized by the server, gives the ids that prompts are made of.
constexpr std::string_view kPoolText =
    "The river had risen in the night and the ferry could not cross before noon. People waited "
    "under the "
    "trees, counting their baskets and telling each other what the water had carried past: a door, "
    "two "
    "chairs, a length of fence with the bells still on it. Nobody asked when the pilot would come, "
    "for he "
    "came when the current allowed it and not before. A boy sold apples, four for a coin, and the "
    "schoolmaster "
    "bought eight and gave them away again. By the afternoon the clouds moved east, the light "
    "turned yellow, "
    "and somebody on the far bank began to wave a white cloth from the roof of the mill.";

HttpHeaders request_headers(const LoadOptions& options) {
  HttpHeaders headers{{"Content-Type", "application/json"}};
  if (!options.api_key.empty()) headers.emplace_back("Authorization", "Bearer " + options.api_key);
  return headers;
}

Result<std::vector<TokenId>> token_pool(client::HttpFetcher& server, const std::string& model) {
  const json::object body = {
      {"model", model}, {"prompt", kPoolText}, {"add_special_tokens", false}};
  TANDEM_ASSIGN(const json::object reply, server.post_object("/tokenize", json::serialize(body)));
  std::set<TokenId> ids;
  if (const json::value* tokens = reply.if_contains("tokens"); tokens && tokens->is_array()) {
    for (const json::value& id : tokens->get_array()) {
      if (id.is_int64()) ids.insert(static_cast<TokenId>(id.get_int64()));
    }
  }
  if (ids.size() < 2)
    return fail(ErrorCode::kUnsupported, "/tokenize gave no token ids; this load needs them",
                "--url");
  return std::vector<TokenId>(ids.begin(), ids.end());
}

// What the server is asked before the load begins.
struct Prepared {
  std::string model;
  PromptMaker prompts;
};

Result<Prepared> prepare(const LoadOptions& options) {
  TANDEM_ASSIGN(auto server,
                client::HttpFetcher::create({.url = options.url,
                                             .api_key = options.api_key,
                                             .timeout = std::chrono::seconds(30),
                                             .verify_certificate = options.verify_certificate}));
  std::string model = options.model;
  if (model.empty()) {
    TANDEM_ASSIGN(model, server->first_model());
  }
  TANDEM_ASSIGN(std::vector<TokenId> pool, token_pool(*server, model));
  return Prepared{model, PromptMaker(std::move(pool), options.seed, options.length_scale)};
}

std::string completion_body(const std::string& model, const std::vector<TokenId>& prompt,
                            uint32_t max_tokens) {
  std::string ids;
  for (const TokenId id : prompt) {
    if (!ids.empty()) ids += ',';
    ids += std::to_string(id);
  }
  return fmt::format(
      R"({{"model":{},"prompt":[{}],"max_tokens":{},"temperature":0,"ignore_eos":true,"stream":true,)"
      R"("stream_options":{{"include_usage":true}}}})",
      json::serialize(json::value(model)), ids, max_tokens);
}

// The run itself. Everything after begin() happens on the loop's thread.
class Load {
 public:
  Load(const std::vector<TraceRequest>& load, const LoadOptions& options, const Clock& clock,
       IoThread& io, AsyncHttpClient& client, std::string model, PromptMaker prompts)
      : load_(load),
        options_(options),
        clock_(clock),
        io_(io),
        client_(client),
        model_(std::move(model)),
        prompts_(std::move(prompts)),
        observations_(load.size()) {}

  std::future<void> begin() {
    std::future<void> done = done_.get_future();
    io_.post([this] {
      start_ = clock_.now();
      last_end_ = start_;
      if (options_.progress) progress_ = io_.every(std::chrono::seconds(1), [this] { report(); });
      if (options_.stopped) {
        watch_ = io_.every(std::chrono::milliseconds(100), [this] {
          if (options_.stopped()) stop();
        });
      }
      pump();
    });
    return done;
  }

  // On the loop's thread.
  void end() {
    progress_.reset();
    watch_.reset();
    timer_.reset();
  }

  [[nodiscard]] Report report_of() const {
    std::vector<Observation> ended;
    for (const Observation& o : observations_) {
      if (o.completed || !o.error.empty()) ended.push_back(o);
    }
    Report report = summarize(ended, to_seconds(last_end_ - start_), options_.slo);
    report.seed = options_.seed;
    report.planned = load_.size();
    return report;
  }

 private:
  struct Open {
    size_t index = 0;
    TimePoint due;
    TimePoint last_text;
    int status = 0;
    bool text_seen = false;
    std::string error_body;
    CompletionStream stream;
  };

  void stop() {
    if (over_) return;
    over_ = true;
    done_.set_value();
  }

  void pump() {
    while (!over_ && next_ < load_.size()) {
      const TimePoint now = clock_.now();
      if (options_.concurrency) {
        if (open_ >= options_.concurrency) return;
        start_request(now);
        continue;
      }
      const TimePoint due = start_ + from_seconds(load_[next_].at_seconds);
      if (due > now) {
        timer_ = io_.after(due - now, [this] { pump(); });
        return;
      }
      start_request(due);
    }
  }

  void start_request(TimePoint due) {
    const size_t index = next_++;
    Observation& seen = observations_[index];
    seen.lateness = to_seconds(clock_.now() - due);
    if (open_ >= options_.max_open) {
      seen.error = "client limit";
      finish_one();
      return;
    }
    ++open_;
    auto open = std::make_shared<Open>();
    open->index = index;
    open->due = due;
    HttpCall request{
        "POST", "/v1/completions", request_headers(options_),
        completion_body(model_, prompts_.make(load_[index], index), load_[index].output_tokens)};
    client_.send(std::move(request),
                 {[open](int status, const HttpHeaders&) { open->status = status; },
                  [this, open](std::string_view bytes) { data(*open, bytes); },
                  [this, open](const Status& outcome) { closed(*open, outcome); }});
  }

  void data(Open& open, std::string_view bytes) {
    if (open.status != 200) {
      if (open.error_body.size() < 4096) open.error_body += bytes;
      return;
    }
    const size_t events = open.stream.feed(bytes);
    if (events == 0) return;
    const TimePoint now = clock_.now();
    Observation& seen = observations_[open.index];
    size_t gaps = events;
    if (!open.text_seen) {
      open.text_seen = true;
      seen.ttft = to_seconds(now - open.due);
      --gaps;
    } else {
      seen.gaps.push_back(to_seconds(now - open.last_text));
      --gaps;
    }
    // Events that came in one read have no gap that we could see.
    seen.gaps.insert(seen.gaps.end(), gaps, 0.0);
    open.last_text = now;
  }

  void closed(Open& open, const Status& outcome) {
    if (over_) return;  // its observation may be being read
    Observation& seen = observations_[open.index];
    last_end_ = clock_.now();
    seen.e2e = to_seconds(last_end_ - open.due);
    seen.prompt_tokens = open.stream.prompt_tokens();
    seen.output_tokens = open.stream.output_tokens();
    seen.cached_tokens = open.stream.cached_tokens();
    if (!outcome) {
      seen.error = outcome.error().detail;
    } else if (open.status != 200) {
      seen.error = fmt::format("http {}: {}", open.status, client::server_message(open.error_body));
    } else if (!open.stream.error().empty()) {
      seen.error = "error event: " + open.stream.error();
    } else if (!open.stream.done()) {
      seen.error = "stream ended without [DONE]";
    } else {
      seen.completed = true;
    }
    --open_;
    finish_one();
    if (options_.concurrency) pump();
  }

  void finish_one() {
    if (++finished_ == load_.size()) stop();
  }

  void report() {
    size_t failed = 0;
    for (const Observation& o : observations_) failed += o.error.empty() ? 0 : 1;
    options_.progress(fmt::format("{:6.0f} s  {} of {} sent, {} open, {} ended, {} failed",
                                  to_seconds(clock_.now() - start_), next_, load_.size(), open_,
                                  finished_, failed));
  }

  const std::vector<TraceRequest>& load_;
  const LoadOptions& options_;
  const Clock& clock_;
  IoThread& io_;
  AsyncHttpClient& client_;
  const std::string model_;
  const PromptMaker prompts_;
  std::vector<Observation> observations_;
  std::promise<void> done_;
  std::unique_ptr<IoThread::Timer> progress_;
  std::unique_ptr<IoThread::Timer> timer_;
  std::unique_ptr<IoThread::Timer> watch_;
  TimePoint start_;
  TimePoint last_end_;
  size_t next_ = 0;
  size_t open_ = 0;
  size_t finished_ = 0;
  bool over_ = false;  // every request has ended, or the caller wants no more
};

}  // namespace

Result<Report> run_load(const std::vector<TraceRequest>& load, const LoadOptions& options,
                        const Clock& clock) {
  if (load.empty()) return fail(ErrorCode::kInvalidArgument, "nothing to send");
  TANDEM_ASSIGN(const Prepared prepared, prepare(options));
  IoThread io("bench");
  AsyncHttpOptions http;
  http.silence_timeout = options.request_timeout;
  http.verify_certificate = options.verify_certificate;
  TANDEM_ASSIGN(auto client, AsyncHttpClient::create(io, options.url, http));
  io.start();
  Load run(load, options, clock, io, *client, prepared.model, prepared.prompts);
  run.begin().wait();
  io.stop();
  run.end();
  return run.report_of();
}

}  // namespace tandem::bench

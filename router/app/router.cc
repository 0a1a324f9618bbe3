#include "router/app/router.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/base/run_file.h"
#include "common/config/config.h"
#include "common/config/listen_points.h"
#include "common/config/units.h"
#include "common/model/checkpoint.h"
#include "common/model/text.h"
#include "common/net/gate.h"
#include "common/net/http_server.h"
#include "common/net/io_thread.h"
#include "common/obs/trace.h"
#include "common/text/tokenizer.h"
#include "router/app/sampling.h"
#include "router/cluster/cluster_link.h"
#include "router/cluster/router_metrics.h"
#include "router/http/api_server.h"
#include "router/status_page/status_board.h"

namespace tandem::router {

namespace {

// For the last of every answer, or the error in its place, to get through to its client.
constexpr Duration kFlush = std::chrono::seconds(3);

ApiLimits api_limits(const LimitsSettings& s, const SamplingDefaults& sampling) {
  ApiLimits limits;
  limits.default_max_tokens = s.default_max_tokens;
  limits.max_tokens = s.max_tokens;
  limits.max_n = s.max_n;
  limits.max_prompts = s.max_prompts;
  limits.max_stop = s.max_stop;
  limits.max_logprobs = s.max_logprobs;
  limits.sampling = sampling;
  return limits;
}

DispatchOptions dispatch_options(const RouterSettings& s) {
  DispatchOptions options;
  options.queue_capacity = s.admission.prefill_queue;
  options.queue_deadline = s.admission.deadline;
  options.max_retries = s.admission.max_retries;
  options.request_timeout = s.admission.request_timeout;
  options.decode_queue = s.admission.decode_queue;
  options.local_prefill_below = s.dispatch.local_prefill_below;
  options.prefix_affinity = s.dispatch.prefix_affinity;
  options.peer_timeout = s.control.peer_timeout;
  options.heartbeat_ms =
      static_cast<uint32_t>(s.control.heartbeat_interval / std::chrono::milliseconds(1));
  return options;
}

struct LoadedModel {
  ServedModel served;
  std::string tokenizer_hash;
  text::TextModel text;
  SamplingDefaults sampling;
};

// Config, metadata and tokenizer; weights stay on disk.
Result<LoadedModel> load_model(const ClusterConfig& cluster, const Clock& clock,
                               const Logger& log) {
  const ModelSettings& settings = cluster.model;
  model::CheckpointOptions options;
  if (settings.load_format == LoadFormat::kDummy) options.format = model::LoadFormat::kDummy;
  TANDEM_ASSIGN(const auto checkpoint, model::Checkpoint::open(settings.path, options));
  LoadedModel out;
  TANDEM_ASSIGN(out.text, model::load_text(*checkpoint, clock));
  for (const std::string& warning : out.text.warnings) log.warning("model", {{"message", warning}});
  const model::ModelConfig& config = checkpoint->config();
  out.served.id = served_model_id(settings);
  out.served.aliases = settings.aliases;
  out.served.fingerprint = checkpoint->fingerprint();
  out.served.eos = config.eos;
  out.served.vocab = config.vocab;
  out.served.context = config.max_positions;
  if (settings.max_context != 0)
    out.served.context = std::min(out.served.context, settings.max_context);
  out.tokenizer_hash = std::string(out.text.tokenizer->hash());
  TANDEM_ASSIGN(out.sampling, sampling_defaults(cluster.router.sampling, *checkpoint, log));
  return out;
}

}  // namespace

Router::Router(const ClusterConfig& config, const Clock& clock, Logger log)
    : config_(config),
      clock_(clock),
      log_(std::move(log)),
      metrics_(std::make_unique<RouterMetrics>(registry_)) {}

Router::~Router() {
  stop({});
  if (cluster_loop_) cluster_loop_->stop();  // a start that failed half way
}

Status Router::start(const std::string& run_dir) {
  StartupPhases phases(clock_, log_);
  phases.next("load_model");
  TANDEM_ASSIGN(LoadedModel model, load_model(config_, clock_, log_));
  phases.next("listen");
  TANDEM_ASSIGN(std::vector<std::string> keys, load_api_keys(config_.router.http));
  TANDEM_ASSIGN(std::string shared_key, load_shared_key(config_.router.control));
  board_ = std::make_unique<StatusBoard>(clock_, model.served.id,
                                         sampling_members_json(model.sampling), TANDEM_VERSION);
  DispatchOptions options = dispatch_options(config_.router);
  options.model_fingerprint = model.served.fingerprint;
  options.tokenizer_hash = model.tokenizer_hash;
  options.vocab = model.served.vocab;
  cluster_loop_ = std::make_unique<IoThread>("cluster");
  auto cluster =
      ClusterLink::create(config_.router.control, std::move(shared_key), std::move(options),
                          {.io = *cluster_loop_,
                           .clock = clock_,
                           .log = log_,
                           .registry = registry_,
                           .metrics = *metrics_,
                           .board = *board_});
  if (!cluster) return fail(in_section(cluster.error(), "router.control"));
  cluster_ = std::move(*cluster);
  api_ = std::make_unique<ApiServer>(
      ApiServer::Deps{.clock = clock_,
                      .log = log_,
                      .registry = registry_,
                      .metrics = *metrics_,
                      .board = *board_,
                      .cluster = *cluster_},
      model.served, api_limits(config_.router.limits, model.sampling),
      PromptBuilder(model.text.tokenizer, model.text.chat_template), ApiKeyGate(std::move(keys)));
  cluster_->start();
  auto http =
      HttpServer::create(config_.router.http,
                         [api = api_.get()](HttpRequest request, HttpResponder responder) {
                           api->handle(std::move(request), std::move(responder));
                         },
                         {.clock = clock_,
                          .log = log_,
                          .metrics = registry_,
                          .on_own_answer = [metrics = metrics_.get()](
                                               int status) { metrics->answered_by_server(status); },
                          .shared_loop = std::thread::hardware_concurrency() < kCoresForHttpThreads
                                             ? cluster_loop_.get()
                                             : nullptr});
  if (!http) return fail(in_section(http.error(), "router.http"));
  http_ = std::move(*http);
  cluster_loop_->start();
  TANDEM_TRY(publish(run_dir, model.served.id));
  phases.done();
  return {};
}

Status Router::publish(const std::string& run_dir, const std::string& model) const {
  const std::string http = format_host_port(config_.router.http.host, http_->port());
  const std::string control =
      format_host_port(config_.router.control.host, cluster_->control_port());
  if (!run_dir.empty()) {
    TANDEM_TRY(
        publish_endpoints(run_dir, "router", "router", {{"http", http}, {"control", control}}));
  }
  log_.info("listening", {{"http", http}, {"control", control}, {"model", model}});
  return {};
}

void Router::stop(Duration patience, const std::function<bool()>& hurry) {
  if (http_ == nullptr) return;
  log_.info("draining");
  const bool cluster_done = cluster_->drain(patience, hurry);
  const bool http_done = http_->drain(kFlush);
  http_->stop();
  cluster_loop_->stop();
  cluster_->stop();
  http_.reset();
  log_.info("stopped", {{"clean", cluster_done && http_done}});
}

uint16_t Router::http_port() const { return http_->port(); }
uint16_t Router::control_port() const { return cluster_->control_port(); }

}  // namespace tandem::router

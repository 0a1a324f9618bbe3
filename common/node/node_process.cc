#include "common/node/node_process.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "common/base/process_limits.h"
#include "common/base/run_file.h"
#include "common/config/config.h"
#include "common/config/listen_points.h"
#include "common/config/units.h"
#include "common/model/checkpoint.h"
#include "common/net/control_channel.h"
#include "common/net/http_router.h"
#include "common/net/http_server.h"
#include "common/net/io_thread.h"
#include "common/node/cpu_tail.h"
#include "common/node/device_thread.h"
#include "common/node/gpu_watch.h"
#include "common/node/loopback.h"
#include "common/node/message_log.h"
#include "common/node/node_engine.h"
#include "common/node/node_health.h"
#include "common/node/node_model.h"
#include "common/node/node_transport.h"
#include "common/node/startup.h"
#include "common/proto/versions.h"

namespace tandem::node {
namespace {

// How often deadlines and leases are looked at. Work itself does not wait for a tick.
constexpr Duration kTick = std::chrono::milliseconds(5);
constexpr Duration kSelfTestLimit = std::chrono::seconds(10);

}  // namespace

struct NodeProcess::State final : transport::TransportEvents {
  State(const NodeSpec& s, const Clock& c, const Logger& l, MetricsRegistry& m)
      : spec(s),
        clock(c),
        log(l),
        metrics(m),
        generation(random_generation()),
        startup(clock, log, metrics, spec.role_name),
        health(clock, m,
               {.role = s.role_name,
                .name = s.settings.name,
                .router = router_address(s.config, s.settings)}),
        refusals(m.counter("tandem_" + s.role_name + "_admissions_refused_total",
                           "Times the router refused this node")),
        sessions_lost(m.counter("tandem_" + s.role_name + "_router_sessions_lost_total",
                                "Connections to the router that broke after admission")) {}

  ~State() override {
    if (http) http->stop();
    io.stop();
    // Ends what runs there: afterwards nobody touches KV memory but the transport.
    if (tail) tail->stop();
    device.stop();
    client.reset();
    heartbeat_timer.reset();
    tick_timer.reset();
    scheduler.reset();
    transport.reset();
  }

  // ---- start, on main()'s thread
  Status open_model();
  Status open_endpoints();
  Status load_engine();
  Status open_kv();
  Status open_tail();
  void choose_transport();
  Status start_transport();
  Status self_test();
  Status start_scheduler();
  Status connect();

  // Returns when `work` has run on the control thread, which never blocks.
  void run_on_control(std::function<void()> work) {
    auto done = std::make_shared<std::promise<void>>();
    auto ended = done->get_future();
    io.post([done, work = std::move(work)] {
      work();
      done->set_value();
    });
    ended.wait();
  }

  [[nodiscard]] uint32_t tails() const { return model.layout.needs_tail() ? spec.tails : 0; }

  // ---- control thread
  Status dial();
  void tick();
  control::Hello make_hello() const;
  void admitted(const control::Welcome& welcome);
  void disconnected(const Error& reason);
  void send(const control::ToRouter& message);
  void send_heartbeat();
  void restart_session();

  // ---- any thread that hears of the device: what a lost one says is the last that is heard of it
  void deliver(StepResult result) {
    if (!result.outputs && result.outputs.error().code == ErrorCode::kDeviceLost)
      return device_lost(result.outputs.error());
    auto shared = std::make_shared<StepResult>(std::move(result));
    io.post([this, shared] { scheduler->on_step(std::move(*shared)); });
  }
  void deliver(MoveResult result) {
    if (!result.outcome && result.outcome.error().code == ErrorCode::kDeviceLost)
      return device_lost(result.outcome.error());
    auto shared = std::make_shared<MoveResult>(std::move(result));
    io.post([this, shared] { scheduler->on_moved(std::move(*shared)); });
  }
  void device_lost(const Error& error) {
    log.error("device_lost", error, {{"action", "ending the process"}});
    is_failed = true;
  }

  // The self-test fails the start instead.
  bool lost_in_transfer(TransferId id, const Error& error) {
    if (error.code != ErrorCode::kDeviceLost || id == kLoopbackTransfer) return false;
    device_lost(error);
    return true;
  }

  // ---- HTTP threads
  void serve();

  // ---- transport thread: post and return
  void on_received(TransferId id, std::string commit,
                   const transport::ReceiveStats& stats) override {
    io.post([this, id, commit = std::move(commit), stats] {
      if (id == kLoopbackTransfer) return loopback ? loopback->on_received(commit) : void();
      if (scheduler) scheduler->on_received(id, commit, stats);
    });
  }
  void on_receive_failed(TransferId id, Error error) override {
    if (lost_in_transfer(id, error)) return;
    io.post([this, id, error = std::move(error)] {
      if (id == kLoopbackTransfer) return loopback ? loopback->on_failed(error) : void();
      if (scheduler) scheduler->on_receive_failed(id, error);
    });
  }
  void on_sent(TransferId id, const transport::SendStats& stats) override {
    io.post([this, id, stats] {
      if (id == kLoopbackTransfer) return loopback ? loopback->on_sent() : void();
      if (scheduler) scheduler->on_sent(id, stats);
    });
  }
  void on_send_failed(TransferId id, Error error) override {
    if (lost_in_transfer(id, error)) return;
    io.post([this, id, error = std::move(error)] {
      if (id == kLoopbackTransfer) return loopback ? loopback->on_failed(error) : void();
      if (scheduler) scheduler->on_send_failed(id, error);
    });
  }

  void on_meet_failed(const std::string& name, const Error& error) override {
    log.warning("peer_not_met", error, {{"peer", name}});
  }

  const NodeSpec spec;
  const Clock& clock;
  const Logger log;
  MetricsRegistry& metrics;
  const Generation generation;
  Startup startup;
  NodeHealth health;
  Counter refusals, sessions_lost;

  NodeModel model;
  NodeEngine engine;  // its step function is the device thread's, its memory goes to open_kv()
  ControlOptions control_options;
  IoThread io{"tandem-control"};
  std::unique_ptr<KvStore> kv;
  ChosenTransport chosen_transport;
  std::unique_ptr<transport::TransportEvents> wrapped_events;  // spec.wrap_events
  std::unique_ptr<transport::Transport> transport;
  LoopbackTest* loopback = nullptr;      // control thread; during the self-test
  std::shared_ptr<Scheduler> scheduler;  // control thread, from start_scheduler() on
  DeviceThread device{clock, [this](StepResult result) { deliver(std::move(result)); }};
  std::unique_ptr<CpuTail> tail;  // null: this node has none
  HttpRouter routes;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<ControlClient> client;
  std::unique_ptr<GpuWatch> gpu_watch;  // null on CPU
  std::unique_ptr<IoThread::Timer> tick_timer;
  std::unique_ptr<IoThread::Timer> heartbeat_timer;

  std::atomic<bool> is_idle{true};
  std::atomic<bool> is_failed{false};
};

Status NodeProcess::State::open_model() {
  TANDEM_ASSIGN(model, open_node_model(spec.config, spec.settings, clock));
  log.info("model_opened", {{"model", model.id},
                            {"config", model.checkpoint->config().describe()},
                            {"files", model.checkpoint->summary().describe()},
                            {"weights", to_string(model.weights)}});
  for (const auto& warning : model.checkpoint->warnings()) {
    log.warning("model_warning", {{"text", warning}});
  }
  return {};
}

Status NodeProcess::State::open_endpoints() {
  io.start();
  serve();
  HttpSettings settings;
  settings.host = spec.settings.metrics.host;
  settings.port = spec.settings.metrics.port;
  settings.threads = 1;
  auto opened = HttpServer::create(settings,
                                   [this](HttpRequest request, HttpResponder responder) {
                                     routes.handle(std::move(request), std::move(responder));
                                   },
                                   {.clock = clock, .log = log, .metrics = metrics});
  if (!opened) {
    return fail(in_section(opened.error(), metrics_section(spec.config, spec.settings)));
  }
  http = std::move(*opened);
  const std::string address = format_host_port(settings.host, http->port());
  log.info("listening", {{"metrics", address}});
  if (spec.run_dir.empty()) return {};
  return publish_endpoints(spec.run_dir, spec.role_name, spec.settings.name,
                           {{"metrics", address}});
}

// Before anything is loaded: what it takes of the card is not the pool's.
void NodeProcess::State::choose_transport() {
  const TransportPlace place =
      transport_place(spec.config, spec.settings, nvml_readings(spec.config.gpu.libraries));
  chosen_transport = node::choose_transport(spec.settings.transport, place);
  const bool on_card = chosen_transport.kind == TransportChoice::kUcx &&
                       ucx_on_card(spec.settings.transport, model.device);
  model.later = transport_memory(chosen_transport.kind, model.device, on_card,
                                 transport_peers(spec.config, spec.role == control::ROLE_PREFILL));
}

Status NodeProcess::State::load_engine() {
  choose_transport();
  TANDEM_TRY(device.start([this]() -> Result<StepFunction> {
    TANDEM_ASSIGN(engine,
                  create_node_engine(spec.config, spec.settings, spec.cache_dir, tails(), model));
    StepFunction step = std::exchange(engine.pooled.step, {});  // lives and ends on this thread
    return spec.wrap_step ? spec.wrap_step(std::move(step)) : step;
  }));
  model.checkpoint->release_pages();
  if (const auto choice = parse_device(spec.settings.device); choice && choice->cuda) {
    gpu_watch = watch_device(choice->index, spec.config.gpu.libraries,
                             {.clock = clock, .log = log, .metrics = metrics});
  }
  log.info("engine_loaded", {{"engine", engine.name},
                             {"device", model.device.name()},
                             {"stored_bytes", model.checkpoint->summary().stored_bytes},
                             {"weight_bytes", engine.weight_bytes}});
  return {};
}

Status NodeProcess::State::open_kv() {
  const uint64_t bytes = engine.pooled.memory->bytes();
  TANDEM_ASSIGN(
      kv,
      KvStore::create(
          {.pool = {.layout = model.layout, .blocks = model.blocks, .tails = tails(), .memory = {}},
           .prefix_cache = spec.config.kv.prefix_cache},
          std::move(engine.pooled.memory)));
  log.info("kv_pool", {{"layout", model.layout.describe()},
                       {"device", model.device.name()},
                       {"blocks", model.blocks},
                       {"bytes", bytes},
                       {"context", model.max_context}});
  return {};
}

Status NodeProcess::State::open_tail() {
  TANDEM_ASSIGN(tail,
                CpuTail::create({.config = spec.config,
                                 .settings = spec.settings,
                                 .model = model,
                                 .tails = spec.tails,
                                 .threads = tail_threads(spec.config, spec.settings, usable_cpus()),
                                 .device = kv->memory(),
                                 .clock = clock,
                                 .log = log,
                                 .on_step = [this](StepResult r) { deliver(std::move(r)); },
                                 .on_moved = [this](MoveResult r) { deliver(std::move(r)); }}));
  model.checkpoint->release_pages();
  return {};
}

Status NodeProcess::State::start_transport() {
  if (spec.wrap_events) wrapped_events = spec.wrap_events(*this);
  transport::TransportEvents& events = wrapped_events ? *wrapped_events : *this;
  TANDEM_ASSIGN(transport,
                open_transport(
                    chosen_transport, spec.settings.transport,
                    model.device.cuda ? std::optional(model.device.index) : std::nullopt,
                    spec.config.gpu.libraries,
                    {.self = generation, .clock = clock, .events = events, .memory = &kv->memory()},
                    [this](const std::string& text) {
                      log.warning("transport_warning", {{"detail", text}});
                    }));
  metrics
      .gauges("tandem_" + spec.role_name + "_transport_choice_info",
              "1 for the transport in use and why it was chosen",
              {Label{"transport", {}}, Label{"reason", {}}})
      .with({transport->name(), label(chosen_transport.reason)})
      .set(1);
  if (!chosen_transport.warning.empty()) {
    log.warning("transport_link_degraded", {{"detail", chosen_transport.warning}});
  }
  log.info("transport", {{"transport", transport->name()},
                         {"detail", transport->detail()},
                         {"card_bytes", cuda::bytes_of(model.later)},
                         {"reason", chosen_transport.text}});
  return {};
}

Status NodeProcess::State::self_test() {
  LoopbackTest test(*kv, *transport, generation);
  run_on_control([&] { loopback = &test; });
  Status outcome = test.run(kSelfTestLimit);
  run_on_control([&] { loopback = nullptr; });
  TANDEM_TRY(outcome);
  health.passed_self_test();
  return {};
}

Status NodeProcess::State::start_scheduler() {
  const TaskLimits limits{.vocab = model.checkpoint->config().vocab,
                          .max_context = model.max_context};
  std::shared_ptr<Scheduler> made =
      spec.make_scheduler({.clock = clock,
                           .kv = *kv,
                           .transport = *transport,
                           .executor = device,
                           .cpu_tail = tail.get(),
                           .metrics = metrics,
                           .limits = limits,
                           .send = [this](const control::ToRouter& m) {
                             log_message(log, m);
                             send(m);
                           }});
  io.post([this, made = std::move(made)] {
    scheduler = made;
    tick_timer = io.every(kTick, [this] { tick(); });
  });
  return {};
}

Status NodeProcess::State::connect() {
  TANDEM_ASSIGN(control_options.shared_key, load_shared_key(spec.config.router.control));
  control_options.handshake_timeout = spec.config.router.control.handshake_timeout;
  control_options.peer_timeout = spec.config.router.control.peer_timeout;
  Status outcome;
  run_on_control([&] { outcome = dial(); });
  return outcome;
}

Status NodeProcess::State::dial() {
  TANDEM_ASSIGN(client,
                ControlClient::create(
                    router_address(spec.config, spec.settings), generation, control_options,
                    {.make_hello = [this] { return make_hello(); },
                     .on_admitted = [this](const control::Welcome& w) { admitted(w); },
                     .on_unreachable =
                         [this](const std::string& why) {
                           health.registration(Registration::kUnreachable, why);
                         },
                     .on_refused =
                         [this](const ControlClient::Refusal& refusal) {
                           refusals.add();
                           health.registration(Registration::kRefused, refusal.reason,
                                               refusal.lasting);
                           log.warning("router_refused_this_node", {{"reason", refusal.reason}});
                         },
                     .on_message = [this](control::ToNode&& m) { scheduler->on_message(m); },
                     .on_disconnected = [this](const Error& reason) { disconnected(reason); }},
                    {.io = io, .clock = clock, .log = log, .metrics = metrics}));
  return {};
}

void NodeProcess::State::tick() {
  scheduler->tick();
  is_idle.store(scheduler->idle(), std::memory_order_relaxed);
  health.ticked();
}

control::Hello NodeProcess::State::make_hello() const {
  const model::ModelConfig& m = model.checkpoint->config();
  control::Hello hello;
  hello.set_role(spec.role);
  hello.set_node_id(spec.settings.name);
  auto& c = *hello.mutable_compatibility();
  c.set_model_fingerprint(model.checkpoint->fingerprint());
  c.set_tokenizer_hash(model.tokenizer_hash);
  c.set_kv_format(std::string(kv::to_string(model.layout.format)));
  c.set_kv_block_tokens(kv::kBlockTokens);
  c.set_kv_layers(model.layout.layers);
  c.set_kv_heads(model.layout.kv_heads);
  c.set_kv_head_dim(model.layout.head_dim);
  c.set_kv_codec_version(proto::kKvCodecVersion);
  c.set_dtype(std::string(to_string(model.weights)));
  c.set_transport_protocol_version(proto::kKvFrameVersion);
  std::optional<cuda::CudaVersions> cuda;
  if (const auto found = cuda::cuda_versions(); model.device.cuda && found) cuda = *found;
  for (const auto& [library, version] :
       library_versions(transport->name(), transport->detail(), cuda)) {
    (*c.mutable_library_versions())[library] = version;
  }
  hello.set_transport(std::string(transport->name()));
  hello.set_transport_detail(transport->detail());
  hello.set_transport_reason(chosen_transport.text);
  hello.set_transport_address(transport->address());
  hello.set_model_id(model.id);
  hello.set_vocab_size(m.vocab);
  hello.set_max_context(model.max_context);
  hello.set_kv_blocks(model.blocks);
  hello.set_kv_block_bytes(model.layout.block_bytes());
  hello.set_max_sequences(spec.settings.max_sequences);
  hello.set_max_batch_tokens(spec.settings.max_batch_tokens);
  hello.set_engine(engine.name);
  hello.set_build_version(spec.version);
  hello.set_self_test_passed(health.self_test_passed());
  return hello;
}

void NodeProcess::State::admitted(const control::Welcome& welcome) {
  health.registration(Registration::kRegistered);
  log.info("admitted_by_router", {{"router_generation", welcome.router_generation()},
                                  {"heartbeat_ms", welcome.heartbeat_ms()},
                                  {"seconds_since_start", startup.total_seconds()}});
  send_heartbeat();
  const auto period = std::chrono::milliseconds(std::max(welcome.heartbeat_ms(), 10U));
  heartbeat_timer = io.every(period, [this] { send_heartbeat(); });
}

void NodeProcess::State::disconnected(const Error& reason) {
  health.registration(Registration::kNotYet, reason.detail);
  sessions_lost.add();
  heartbeat_timer.reset();
  log.warning("router_lost", reason, {});
  scheduler->on_disconnected();
}

void NodeProcess::State::send_heartbeat() {
  control::ToRouter message;
  *message.mutable_heartbeat() = scheduler->heartbeat();
  message.mutable_heartbeat()->set_transport_detail(transport->detail());
  send(message);
}

void NodeProcess::State::send(const control::ToRouter& message) {
  if (!client || !client->admitted() || client->send(message)) return;
  // A lost message would leave the router waiting for it. It rather loses the connection: both
  // sides then know that what was open is gone.
  io.post([this] { restart_session(); });
}

void NodeProcess::State::restart_session() {
  if (!client || !client->admitted()) return;
  log.error("router_too_slow", {{"action", "closing the session: its queue is full"}});
  client.reset();
  disconnected(make_error(ErrorCode::kQueueFull, "the router does not take messages"));
  if (auto status = dial(); !status) log.error("router_dial", status.error());
}

void NodeProcess::State::serve() {
  routes.exact("GET", "/metrics", [this](const HttpRequest&, const HttpResponder& responder) {
    responder.respond({.status = 200,
                       .content_type = std::string(kMetricsContentType),
                       .headers = {},
                       .body = metrics.exposition()});
  });
  health.serve(routes);
}

NodeProcess::NodeProcess(const NodeSpec& spec, const Clock& clock, const Logger& log,
                         MetricsRegistry& metrics)
    : state_(std::make_unique<State>(spec, clock, log, metrics)) {}

NodeProcess::~NodeProcess() = default;

Status NodeProcess::start() {
  State& s = *state_;
  // The endpoints come early, so that health and start-up metrics can be asked while weights load.
  TANDEM_TRY(s.startup.phase("open_model", [&] { return s.open_model(); }));
  TANDEM_TRY(s.startup.phase("endpoints", [&] { return s.open_endpoints(); }));
  TANDEM_TRY(s.startup.phase("load_weights", [&] { return s.load_engine(); }));
  TANDEM_TRY(s.startup.phase("kv_pool", [&] { return s.open_kv(); }));
  if (s.spec.cpu_tail) TANDEM_TRY(s.startup.phase("cpu_tail", [&] { return s.open_tail(); }));
  TANDEM_TRY(s.startup.phase("transport", [&] { return s.start_transport(); }));
  TANDEM_TRY(s.startup.phase("kv_self_test", [&] { return s.self_test(); }));
  TANDEM_TRY(s.start_scheduler());
  TANDEM_TRY(s.startup.phase("dial_router", [&] { return s.connect(); }));
  s.log.info("started", {{"seconds", s.startup.total_seconds()}});
  return {};
}

void NodeProcess::drain() {
  state_->health.draining();
  state_->is_idle = false;  // until a tick has looked
  state_->io.post([s = state_.get()] {
    if (!s->scheduler) return;
    s->scheduler->drain();
    s->send_heartbeat();
  });
}

bool NodeProcess::idle() const { return state_->is_idle; }

bool NodeProcess::failed() const { return state_->is_failed; }

}  // namespace tandem::node

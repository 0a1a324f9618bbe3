#include "router/cluster/cluster_link.h"

#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/net/control_channel.h"
#include "common/net/io_thread.h"
#include "common/obs/metrics.h"
#include "common/proto/control.pb.h"
#include "router/cluster/router_metrics.h"
#include "router/dispatch/dispatcher.h"
#include "router/status_page/status_board.h"

namespace tandem::router {

namespace {

constexpr Duration kTick = std::chrono::milliseconds(5);
constexpr Duration kPublish = std::chrono::milliseconds(100);
constexpr Duration kSample = std::chrono::seconds(1);
constexpr Duration kDead = std::chrono::seconds(10);
constexpr Duration kDrainPoll = std::chrono::milliseconds(20);
constexpr Duration kCutLimit = std::chrono::seconds(1);  // for a cluster thread that is stuck

}  // namespace

struct ClusterLink::Impl final : DispatchObserver {
  Impl(DispatchOptions options, Deps d) : deps(d), io(d.io), dispatch_options(std::move(options)) {}

  // Everything below runs on the cluster thread unless it says otherwise.
  Status open(const ControlSettings& control, std::string shared_key);
  void publish();

  void on_queue_wait(double seconds) override { deps.metrics.queue_wait_seconds.observe(seconds); }
  void on_prefill_to_decode(double seconds) override {
    deps.metrics.prefill_to_decode_seconds.observe(seconds);
    deps.board.prefill_to_decode.observe(seconds);
  }
  void on_transfer(double seconds, const std::string& transport) override {
    deps.metrics.transfer_seconds.with({transport}).observe(seconds);
  }
  void on_event(int level, std::string message, std::string node_id, uint64_t request) override {
    deps.log.log(level == 0 ? LogLevel::kInfo : LogLevel::kWarning, "cluster",
                 {{"message", message}, {"node", node_id}, {"request", request}});
  }

  // Runs `work` on the cluster thread: now when this is it, else later.
  template <typename Work>
  void run(Work work) {
    if (io.on_thread()) {
      work();
    } else {
      io.post(std::move(work));
    }
  }

  // Runs `question` on the cluster thread and waits for its answer, or until `give_up` holds, which
  // is asked every kDrainPoll: the thread may be stuck. From another thread.
  template <typename Question>
  auto ask(Question question, const std::function<bool()>& give_up)
      -> std::optional<decltype(question())> {
    const auto answer = std::make_shared<std::promise<decltype(question())>>();
    std::future<decltype(question())> future = answer->get_future();
    io.post([answer, question] { answer->set_value(question()); });
    while (future.wait_for(kDrainPoll) != std::future_status::ready) {
      if (give_up()) return std::nullopt;
    }
    return future.get();
  }

  Deps deps;
  IoThread& io;
  DispatchOptions dispatch_options;
  PredictedFinishPolicy policy;
  std::unique_ptr<Dispatcher> dispatcher;
  std::unique_ptr<ControlServer> server;
  std::unique_ptr<IoThread::Timer> tick_timer, publish_timer, sample_timer;
  std::atomic<uint64_t> next_id{1};
  std::atomic<int64_t> last_publish_ns{0};

  mutable std::mutex mutex;  // guards published
  std::shared_ptr<const ClusterSnapshot> published = std::make_shared<ClusterSnapshot>();
  bool running = false;
};

Status ClusterLink::Impl::open(const ControlSettings& control, std::string shared_key) {
  const Generation generation = random_generation();
  dispatch_options.generation = generation.value;
  next_id = (generation.value << 32) + 1;  // no id of an earlier start comes back
  dispatcher = std::make_unique<Dispatcher>(
      Dispatcher::Deps{
          .clock = deps.clock,
          .policy = policy,
          .observer = *this,
          .send =
              [this](NodeHandle node, const control::ToNode& message) {
                if (server->send(SessionId{node.value}, message)) return;
                // A full queue is a node that does not read: it is lost. (A session that has just
                // closed is reported anyway.)
                server->close(SessionId{node.value}, "its queue of messages is full");
              },
          .close =
              [this](NodeHandle node) {
                server->close(SessionId{node.value}, "the router gave the node up");
              },
      },
      dispatch_options);
  ControlServer::Callbacks callbacks{
      .on_hello =
          [this](SessionId session, const control::Hello& hello, std::string_view) {
            control::Welcome welcome =
                dispatcher->on_node_connected(NodeHandle{session.value}, hello);
            publish();
            return welcome;
          },
      .on_message =
          [this](SessionId session, control::ToRouter&& message) {
            dispatcher->on_message(NodeHandle{session.value}, message);
          },
      .on_closed =
          [this](SessionId session, const Error& reason) {
            deps.log.info("node_disconnected", {{"reason", reason.detail}});
            dispatcher->on_node_disconnected(NodeHandle{session.value});
            publish();
          },
  };
  ControlOptions options;
  options.shared_key = std::move(shared_key);
  options.handshake_timeout = control.handshake_timeout;
  // Whether a node lives is the dispatcher's to say, by its heartbeats, and it fences those that do
  // not. A connection's own limit comes after that: it is for whoever is no node yet.
  options.peer_timeout = control.peer_timeout + control.peer_timeout / 2;
  TANDEM_ASSIGN(server,
                ControlServer::create(
                    control.host, control.port, generation, options, std::move(callbacks),
                    {.io = io, .clock = deps.clock, .log = deps.log, .metrics = deps.registry}));
  return {};
}

void ClusterLink::Impl::publish() {
  std::shared_ptr<const ClusterSnapshot> snapshot = dispatcher->snapshot();
  last_publish_ns.store(deps.clock.now().since_start.count());
  deps.metrics.publish(*snapshot);
  std::lock_guard lock(mutex);
  published = std::move(snapshot);
}

ClusterLink::ClusterLink(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ClusterLink::~ClusterLink() { stop(); }

Result<std::unique_ptr<ClusterLink>> ClusterLink::create(const ControlSettings& control,
                                                         std::string shared_key,
                                                         DispatchOptions options, Deps deps) {
  auto impl = std::make_unique<Impl>(std::move(options), deps);
  TANDEM_TRY(impl->open(control, std::move(shared_key)));
  return std::unique_ptr<ClusterLink>(new ClusterLink(std::move(impl)));
}

void ClusterLink::start() {
  Impl& i = *impl_;
  i.publish();
  i.tick_timer = i.io.every(kTick, [&i] { i.dispatcher->tick(); });
  i.publish_timer = i.io.every(kPublish, [&i] { i.publish(); });
  i.sample_timer = i.io.every(kSample, [&i] { i.deps.board.sample(i.dispatcher->snapshot()); });
  i.running = true;
}

uint16_t ClusterLink::control_port() const { return impl_->server->port(); }

RequestId ClusterLink::new_id() { return RequestId{impl_->next_id.fetch_add(1)}; }

void ClusterLink::submit(std::vector<Submission> choices, std::shared_ptr<AnswerSink> sink) {
  if (impl_->io.on_thread()) {
    impl_->dispatcher->submit(std::move(choices), std::move(sink));
    return;
  }
  // Functions need copyable captures.
  auto shared = std::make_shared<std::vector<Submission>>(std::move(choices));
  impl_->io.post([this, shared, sink = std::move(sink)]() mutable {
    impl_->dispatcher->submit(std::move(*shared), std::move(sink));
  });
}

void ClusterLink::cancel(std::vector<RequestId> ids) {
  impl_->run([this, ids = std::move(ids)] {
    for (RequestId id : ids) impl_->dispatcher->cancel(id);
  });
}

void ClusterLink::finish_early(RequestId id) {
  impl_->run([this, id] { impl_->dispatcher->finish_early(id); });
}

std::shared_ptr<const ClusterSnapshot> ClusterLink::snapshot() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->published;
}

bool ClusterLink::live() const {
  return impl_->deps.clock.now().since_start.count() - impl_->last_publish_ns.load() <
         std::chrono::nanoseconds(kDead).count();
}

bool ClusterLink::drain(Duration timeout, const std::function<bool()>& hurry) {
  if (!impl_->running) return true;
  const TimePoint end = impl_->deps.clock.now() + timeout;
  impl_->io.post([this] { impl_->dispatcher->drain(); });
  const auto enough = [&] { return impl_->deps.clock.now() >= end || (hurry && hurry()); };
  while (!enough()) {
    // Asks the cluster thread itself: a request on its way in is counted, too.
    const auto open = impl_->ask([this] { return impl_->dispatcher->open_requests(); }, enough);
    if (open == size_t{0}) return true;
    std::this_thread::sleep_for(kDrainPoll);
  }
  const TimePoint last = impl_->deps.clock.now() + kCutLimit;
  const auto none = impl_->ask(
      [this] {
        const bool finished = impl_->dispatcher->open_requests() == 0;
        impl_->dispatcher->cut();
        return finished;
      },
      [&] { return impl_->deps.clock.now() >= last; });
  return none.value_or(false);
}

void ClusterLink::stop() {
  if (impl_ == nullptr || !impl_->running) return;
  impl_->running = false;
  impl_->tick_timer.reset();
  impl_->publish_timer.reset();
  impl_->sample_timer.reset();
  impl_->server.reset();
}

}  // namespace tandem::router

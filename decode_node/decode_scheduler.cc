#include "decode_node/decode_scheduler.h"

#include <algorithm>
#include <utility>

#include "decode_node/decode_state.h"

namespace tandem::decode {
namespace {

// Fenced writers whose late reservations are recognised; far more than can come and go meanwhile.
constexpr size_t kRememberedWriters = 4096;

constexpr Duration kTransportGrace = std::chrono::milliseconds(200);

}  // namespace

DecodeScheduler::State::State(const Deps& d, const DecodeOptions& o)
    : node::RoleState(d.send),
      deps(d),
      options(o),
      metrics(deps.metrics),
      reservations(size_t{o.max_sequences} + o.queue_capacity),
      fenced(kRememberedWriters) {
  lanes.push_back({.at = deps.device, .open_step = 0, .stepping = {}});
  if (deps.tail) lanes.push_back({.at = deps.tail->lane, .open_step = 0, .stepping = {}});
  metrics.transport(deps.transport);
  metrics.budget_share(step_budget.share());
}

Sequence* DecodeScheduler::State::find(RequestId request) const {
  const auto found = std::ranges::find_if(
      sequences, [&](const auto& s) { return !s->dead && s->task.id == request; });
  return found == sequences.end() ? nullptr : found->get();
}

Sequence* DecodeScheduler::State::find(TransferId transfer) const {
  const auto found = reserved.find(transfer);
  return found == reserved.end() ? nullptr : found->second;
}

Status DecodeScheduler::State::check_new(RequestId request, TransferId transfer) const {
  if (draining) return tandem::fail(ErrorCode::kUnavailable, "this decode node is draining");
  if (find(request) != nullptr || has_ended(request, transfer)) {
    return tandem::fail(
        ErrorCode::kInvalidArgument,
        "request " + std::to_string(request.value) + " is already known here; cancel it first",
        "request_id");
  }
  const size_t capacity = size_t{options.max_sequences} + options.queue_capacity;
  const auto open = std::ranges::count_if(sequences, [](const auto& s) { return !s->dead; });
  if (static_cast<size_t>(open) >= capacity) {
    return tandem::fail(
        ErrorCode::kQueueFull,
        "this decode node holds " + std::to_string(capacity) + " requests, its limit");
  }
  return {};
}

Status DecodeScheduler::State::open_receive(const Sequence& s) {
  const kv::BlockTable& table = reservations.find(s.transfer)->blocks;
  const auto h = node::handover(deps.device.kv.layout(), s.length(), s.prompt_cached);
  const engine::KvPages pages = deps.device.kv.pages();
  transport::ReceivePlan plan;
  plan.id = s.transfer;
  plan.sender = s.writer;
  plan.layout = pages.layout;
  plan.pages = h.pages;
  std::vector<BlockId> blocks(table.ids().begin() + h.first_block, table.ids().end());
  plan.destination = [pages, blocks = std::move(blocks)](uint32_t layer, uint32_t page) {
    return pages.page(layer, blocks[page]);
  };
  if (h.tail_rows > 0) {
    plan.tail_rows = h.tail_rows;
    plan.tail_destination = [pages, slot = table.tail.slot()](uint32_t layer) {
      return pages.open_page(layer, slot);
    };
  }
  // The lease is ended here, by the sweep; the transport only has to notice when that fails to
  // happen.
  plan.deadline = s.lease_end - s.reserved_at + kTransportGrace;
  return deps.transport.open_receive(std::move(plan));
}

Result<Sequence*> DecodeScheduler::State::try_reserve(const control::Reserve& m) {
  const RequestId request{m.task().request_id()};
  const TransferId transfer{m.transfer_id()};
  if (transfer.value == 0) {
    return tandem::fail(ErrorCode::kInvalidArgument, "transfer_id is 0", "transfer_id");
  }
  TANDEM_TRY(check_new(request, transfer));
  if (reserved.contains(transfer)) {
    return tandem::fail(ErrorCode::kInvalidArgument,
                        "transfer " + std::to_string(transfer.value) + " is already open",
                        "transfer_id");
  }
  // The router names only nodes that it has admitted, and what it says arrives in order: one that
  // was gone, frozen or out of reach, has come back as the same process.
  if (fenced.remove({m.prefill_generation(), 0})) {
    deps.transport.readmit(Generation{m.prefill_generation()});
  }
  TANDEM_ASSIGN(node::Task task, node::parse_task(m.task(), options.limits));
  if (task.new_tokens_left == 0) {
    return tandem::fail(ErrorCode::kInvalidArgument,
                        "a task without new tokens needs no decode node", "max_new_tokens");
  }
  TANDEM_TRY(check_capacity(task));
  auto s = std::make_unique<Sequence>();
  TANDEM_ASSIGN(auto blocks, deps.device.kv.acquire(task.tokens, true));
  s->task = std::move(task);
  s->phase = Phase::kReserved;
  s->transfer = transfer;
  s->writer = Generation{m.prefill_generation()};
  s->session = session;
  s->arrival = next_arrival++;
  s->prompt_cached = blocks.reused_tokens;
  s->reserved_at = deps.clock.now();
  const Duration lease =
      m.lease_ms() == 0 ? options.default_lease : Duration(std::chrono::milliseconds(m.lease_ms()));
  s->lease_end = s->reserved_at + std::min(lease, options.max_lease);
  TANDEM_TRY(reservations.open({.id = transfer,
                                .request = request,
                                .writer = s->writer,
                                .deadline = s->lease_end,
                                .blocks = std::move(blocks.table)}));
  if (auto status = open_receive(*s); !status) {
    end_reservation(transfer);
    return tandem::fail(std::move(status).error());
  }
  reserved.emplace(transfer, s.get());
  sequences.push_back(std::move(s));
  return sequences.back().get();
}

void DecodeScheduler::State::reserve(const control::Reserve& m) {
  Sequence* open = find(TransferId{m.transfer_id()});
  if (open != nullptr && open->session == session && open->task.id.value == m.task().request_id()) {
    metrics.duplicate();
    answer_reserve(m, open);
    return;
  }
  const auto outcome = try_reserve(m);
  if (outcome) {
    metrics.reserved();
  } else {
    metrics.refused(error_traits(outcome.error().code).label);
  }
  answer_reserve(m, outcome);
}

void DecodeScheduler::State::answer_reserve(const control::Reserve& m,
                                            const Result<Sequence*>& outcome) {
  control::ToRouter message;
  auto& reply = *message.mutable_reserved();
  reply.set_transfer_id(m.transfer_id());
  reply.set_request_id(m.task().request_id());
  reply.set_granted(outcome.has_value());
  if (outcome) {
    reply.set_cached_tokens((*outcome)->prompt_cached);
    reply.set_blocks(static_cast<uint32_t>(held_blocks(**outcome)));
  } else {
    reply.set_error(outcome.error().detail);
    reply.set_error_code(std::string(error_traits(outcome.error().code).label));
  }
  send(std::move(message));
}

void DecodeScheduler::State::generate(const control::Generate& m) {
  const RequestId request{m.task().request_id()};
  if (find(request) != nullptr || has_ended(request, TransferId{})) {
    metrics.duplicate();
    return;
  }
  const auto accept = [&]() -> Status {
    TANDEM_TRY(check_new(request, TransferId{}));
    TANDEM_ASSIGN(node::Task task, node::parse_task(m.task(), options.limits));
    TANDEM_TRY(check_capacity(task));
    auto s = std::make_unique<Sequence>();
    s->task = std::move(task);
    s->session = session;
    s->arrival = next_arrival++;
    s->reserved_at = deps.clock.now();
    sequences.push_back(std::move(s));
    return {};
  };
  if (auto status = accept(); !status) {
    metrics.refused(error_traits(status.error().code).label);
    report_failure(request, TransferId{}, status.error());
  }
}

void DecodeScheduler::State::cancel(const control::Cancel& m) {
  for (auto& s : sequences) {
    if (s->dead || s->task.id.value != m.request_id()) continue;
    if (m.transfer_id() != 0 && s->transfer.value != m.transfer_id()) continue;
    fail(*s, make_error(ErrorCode::kCancelled, m.reason()), Report::kNo);
  }
}

void DecodeScheduler::State::peer_gone(const control::PeerGone& m) {
  const Generation gone{m.generation()};
  fenced.add({gone.value, 0});
  metrics.generation_fenced();
  deps.transport.fence(gone);  // from here on it writes nothing
  for (const TransferId id : reservations.fence(gone)) {
    Sequence& s = *reserved.at(id);
    fail(s, make_error(ErrorCode::kUnavailable, "prefill node " + m.node_id() + " is gone"),
         Report::kYes);
  }
}

Result<control::Commit> DecodeScheduler::State::check_commit(const Sequence& s,
                                                             const std::string& bytes) const {
  control::Commit commit;
  if (!commit.ParseFromString(bytes)) {
    return tandem::fail(ErrorCode::kCorruptData, "the commit frame is not a Commit message");
  }
  if (commit.request_id() != s.task.id.value) {
    return tandem::fail(ErrorCode::kMismatch,
                        "the commit is for request " + std::to_string(commit.request_id()) +
                            ", the blocks are reserved for " + std::to_string(s.task.id.value),
                        "request_id");
  }
  if (commit.tokens() != s.length()) {
    return tandem::fail(ErrorCode::kMismatch,
                        "the commit covers " + std::to_string(commit.tokens()) +
                            " tokens, the prompt has " + std::to_string(s.length()),
                        "tokens");
  }
  if (commit.has_first() && (commit.first().id() < 0 ||
                             static_cast<uint32_t>(commit.first().id()) >= options.limits.vocab)) {
    return tandem::fail(
        ErrorCode::kCorruptData,
        "the first token " + std::to_string(commit.first().id()) + " is outside of the vocabulary",
        "first");
  }
  return commit;
}

void DecodeScheduler::State::received(TransferId id, const std::string& bytes,
                                      const transport::ReceiveStats& stats) {
  Sequence* s = find(id);
  if (s == nullptr) return;  // cancelled or expired while the event was under way
  auto commit = check_commit(*s, bytes);
  if (!commit) {
    metrics.commit_rejected();
    return fail(*s, commit.error(), Report::kYes);
  }
  reserved.erase(id);
  deps.transport.close_receive(id);
  if (auto lease = reservations.complete(id)) s->kv = std::move(lease->blocks);
  s->phase = Phase::kWaiting;
  wire_bytes += stats.wire_bytes;
  s->computed = s->length();
  publish(*s);
  const Duration took = deps.clock.now() - s->reserved_at;
  if (!commit->has_first()) {  // a stop token: the answer ended before it began
    s->ok = true;
    return retire(*s, "ok");
  }
  metrics.admitted(stats, took);
  const auto drawn = node::append_drawn(s->task, commit->first().id(), options.limits.max_context);
  s->drawn = true;
  if (drawn.finish != control::FINISH_NONE) {
    // Prefill draws the same conclusion and sends no token then; one that did not is of another
    // mind.
    return fail(*s, make_error(ErrorCode::kMismatch, "prefill handed over a finished answer"),
                Report::kYes);
  }
  make_ready(*s);
  report_admitted(*s);
}

void DecodeScheduler::State::receive_failed(TransferId id, const Error& error) {
  Sequence* s = find(id);
  if (s == nullptr) return;
  if (error.code == ErrorCode::kDeadlineExceeded) metrics.lease_expired();
  // Never the request's own fault, whatever the sender ended it for: it may go another way. Of a
  // client that left the router tells by itself.
  const bool its_own = !error_traits(error.code).retryable;
  fail(*s, its_own ? make_error(ErrorCode::kTransport, error.detail) : error, Report::kYes);
}

void DecodeScheduler::State::fail(Sequence& s, const Error& error, Report report) {
  if (s.dead) return;
  if (report == Report::kYes) report_failure(s.task.id, s.transfer, error);
  retire(s, error_traits(error.code).label);
}

void DecodeScheduler::State::retire(Sequence& s, std::string_view outcome) {
  if (s.phase == Phase::kReserved && reserved.erase(s.transfer) > 0) end_reservation(s.transfer);
  if (s.move) s.move->cancelled->store(true, std::memory_order_relaxed);
  if (s.drawn) metrics.queue_wait(s.waited);
  s.dead = true;
  metrics.ended(outcome);
}

void DecodeScheduler::State::end_reservation(TransferId id) {
  reservations.abandon(id);
  deps.transport.close_receive(id);  // after this nobody writes into the blocks
  reservations.quiesced(id);
}

void DecodeScheduler::State::report_admitted(const Sequence& s) {
  control::ToRouter message;
  auto& admitted = *message.mutable_admitted();
  admitted.set_request_id(s.task.id.value);
  admitted.set_transfer_id(s.transfer.value);
  admitted.set_transfer_seconds(to_seconds(deps.clock.now() - s.reserved_at));
  send(std::move(message));
}

void DecodeScheduler::State::sweep() {
  for (const TransferId id : reservations.sweep(deps.clock.now())) {
    Sequence& s = *reserved.at(id);
    metrics.lease_expired();
    fail(s,
         make_error(ErrorCode::kDeadlineExceeded,
                    "the KV did not arrive within the lease of " +
                        std::to_string(to_seconds(s.lease_end - s.reserved_at)) + " s"),
         Report::kYes);
  }
}

void DecodeScheduler::State::drop_ended() {
  std::erase_if(sequences, [this](const auto& s) {
    if (!s->dead || s->in_step || s->move) return false;
    remember_ended(s->task.id, s->transfer, s->session, s->ok);
    return true;
  });
}

void DecodeScheduler::State::drop_everything(const Error& why) {
  for (auto& s : sequences) fail(*s, why, Report::kNo);
}

DecodeScheduler::DecodeScheduler(const Deps& deps, const DecodeOptions& options)
    : state_(std::make_unique<State>(deps, options)) {}

DecodeScheduler::~DecodeScheduler() {
  for (const auto& [id, sequence] : state_->reserved) state_->deps.transport.close_receive(id);
}

void DecodeScheduler::on_message(const control::ToNode& message) { state_->on_message(message); }

void DecodeScheduler::on_received(TransferId id, const std::string& commit,
                                  const transport::ReceiveStats& stats) {
  state_->received(id, commit, stats);
  state_->settle();
}

void DecodeScheduler::on_receive_failed(TransferId id, const Error& error) {
  state_->receive_failed(id, error);
  state_->settle();
}

void DecodeScheduler::on_step(node::StepResult result) {
  state_->finish_step(std::move(result));
  state_->settle();
}

void DecodeScheduler::on_moved(node::MoveResult result) {
  state_->finish_move(std::move(result));
  state_->settle();
}

void DecodeScheduler::on_disconnected() { state_->on_disconnected(); }

void DecodeScheduler::tick() { state_->tick(); }

void DecodeScheduler::drain() { state_->draining = true; }

bool DecodeScheduler::idle() const { return state_->sequences.empty(); }

}  // namespace tandem::decode

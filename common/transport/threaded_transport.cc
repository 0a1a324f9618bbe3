#include "common/transport/threaded_transport.h"

#include <utility>

#include "common/base/patient_lock.h"

namespace tandem::transport {

using proto::KvFrameKind;

ThreadedTransport::ThreadedTransport(const TransportDeps& deps, std::shared_ptr<ReceiveSide> side,
                                     size_t frame_bytes)
    : clock_(deps.clock),
      side_(side ? std::move(side) : std::make_shared<ReceiveSide>(deps)),
      sends_(deps, counters_),
      limits_(deps.limits),
      frame_bytes_(frame_bytes),
      events_(deps.events) {}

Status ThreadedTransport::start_thread() {
  TANDEM_ASSIGN(wake_, WakeFd::create());
  std::promise<Status> started;
  std::future<Status> result = started.get_future();
  thread_ = std::jthread([this, &started](const std::stop_token& stop) { run(stop, started); });
  return result.get();
}

void ThreadedTransport::stop_thread() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  wake_.wake();
  thread_.join();
}

void ThreadedTransport::run(const std::stop_token& stop, std::promise<Status>& started) {
  Status status = set_up();
  const bool good = status.has_value();
  started.set_value(std::move(status));
  if (good) loop(stop);
  tear_down();
}

std::string ThreadedTransport::links() const {
  std::lock_guard lock(mutex_);
  return links_;
}

void ThreadedTransport::set_links(std::string text) {
  std::lock_guard lock(mutex_);
  links_ = std::move(text);
}

Status ThreadedTransport::open_receive(ReceivePlan plan) {
  TANDEM_TRY(receives_.open(std::move(plan)));
  wake_.wake();  // the thread may be in its long nap: the deadline is to be swept from now on
  return {};
}

void ThreadedTransport::fence(Generation sender) {
  receives_.shut_out(sender);
  push(Fence{sender});
}

void ThreadedTransport::meet(const std::string& name, const std::string& receiver) {
  if (const Status known = check_address(receiver); !known) {
    return events_.on_meet_failed(name, known.error());
  }
  push(Meet{name, receiver});
}

Status ThreadedTransport::open_send(const SendSpec& spec) {
  TANDEM_TRY(check_address(spec.address));
  TANDEM_TRY(sends_.open(spec));
  push(Connect{spec.id});
  return {};
}

Status ThreadedTransport::post_pages(TransferId id, uint32_t layer, uint32_t first_page,
                                     std::span<const std::span<const std::byte>> pages) {
  if (pages.empty()) return {};
  TANDEM_TRY(checked(id, sends_.post_pages(id, layer, first_page, pages)));
  const auto post_frame = [&](uint32_t first, auto part) {
    return post({id, KvFrameKind::kData, layer, first, {part.begin(), part.end()}, {}});
  };
  return for_each_frame(first_page, pages, post_frame, frame_bytes_);
}

Status ThreadedTransport::post_tail(TransferId id, uint32_t layer,
                                    std::span<const std::byte> page) {
  TANDEM_TRY(checked(id, sends_.post_tail(id, layer, page)));
  return post({id, KvFrameKind::kTail, layer, 0, {page}, {}});
}

Status ThreadedTransport::post_commit(TransferId id, std::string commit) {
  TANDEM_TRY(checked(id, sends_.post_commit(id, commit.size())));
  return post({id, KvFrameKind::kCommit, 0, 0, {}, std::move(commit)});
}

void ThreadedTransport::cancel_send(TransferId id, std::string reason) {
  push(End{id, make_error(ErrorCode::kCancelled, std::move(reason)), KvFrameKind::kCancel});
}

void ThreadedTransport::push(Command command) {
  bool first = false;
  {
    PatientLock lock(mutex_);
    first = inbox_.empty();
    inbox_.push_back(std::move(command));
  }
  if (first) wake_.wake();  // whoever filled the inbox before has woken the thread
}

Status ThreadedTransport::checked(TransferId id, Status status) {
  if (!status) push(End{id, status.error(), KvFrameKind::kError});
  return status;
}

Status ThreadedTransport::post(KvPost work) {
  const TransferId id = work.id;
  bool taken = false;
  bool first = false;
  {
    PatientLock lock(mutex_);
    taken = queued_posts_ < limits_.max_queued_frames;
    if (taken) {
      ++queued_posts_;
      first = inbox_.empty();
      inbox_.emplace_back(std::move(work));
    }
  }
  if (first) wake_.wake();
  if (taken) return {};
  return checked(id,
                 fail(ErrorCode::kQueueFull, "all " + std::to_string(limits_.max_queued_frames) +
                                                 " places of the send queue are taken"));
}

bool ThreadedTransport::drain_inbox() {
  std::deque<Command> work;
  {
    PatientLock lock(mutex_);
    work.swap(inbox_);
  }
  for (Command& command : work) {
    std::visit([this](auto&& c) { handle(std::move(c)); }, std::move(command));
  }
  return !work.empty();
}

void ThreadedTransport::handle(Connect&& c) {
  const auto route = sends_.route(c.id);
  if (!route) return;
  if (Status reached = connect(route->address); !reached) {
    (void)sends_.end(c.id, std::move(reached).error());
  }
}

// Until the connection stands, its end is told by the receiver's name.
void ThreadedTransport::handle(Meet&& m) {
  if (const Status reached = connect(m.address); !reached) {
    return events_.on_meet_failed(m.name, reached.error());
  }
  if (!has_stood(m.address)) introduced_[m.address] = std::move(m.name);
}

void ThreadedTransport::cannot_be_met(const std::string& address, const Error& why) {
  const auto introduced = introduced_.extract(address);
  if (introduced) events_.on_meet_failed(introduced.mapped(), why);
}

void ThreadedTransport::handle(KvPost&& p) {
  const auto route = sends_.route(p.id);
  if (!route) return forget_posts(1);
  send_post(std::move(p), route->address);
}

void ThreadedTransport::end_send(TransferId id, const Error& error, KvFrameKind kind) {
  if (const auto route = sends_.end(id, error)) tell(*route, kind, error);
}

void ThreadedTransport::sweep_transfers(TimePoint now) {
  receives_.sweep(now);
  for (const SendTable::Route& route : sends_.sweep(now)) {
    tell(route, KvFrameKind::kError,
         make_error(ErrorCode::kDeadlineExceeded, "the sender's deadline passed"));
  }
}

void ThreadedTransport::forget_posts(size_t count) {
  if (count == 0) return;
  PatientLock lock(mutex_);
  queued_posts_ -= count;
}

}  // namespace tandem::transport

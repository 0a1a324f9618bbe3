#include "common/engine/cuda/bench/transfer_bench.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <sstream>

#include "common/base/hex.h"
#include "common/cuda/device_info.h"
#include "common/engine/cuda/bench/transfer_end.h"
#include "common/engine/cuda/bench/transfer_peers.h"
#include "common/transport/nccl_peer.h"

namespace tandem::bench {
namespace {

constexpr Generation kSender{1};
constexpr Generation kReceiver{2};
constexpr int kRepeats = 5;
// Pushes in both ways begin together, this long after they were asked for.
constexpr Duration kUntilStart = std::chrono::microseconds(150);

enum class Way : uint8_t { kOne, kBoth };

// Rates of the peers by message size, bytes a second each way. 0: not measured.
struct Peers {
  std::map<size_t, double> copy[2];
  std::map<size_t, double> nccl[2];
  std::map<size_t, double> ucx;
  std::string nccl_missing;
  std::string ucx_missing;
};

struct Pair {
  std::unique_ptr<LineProcess> child;
  std::unique_ptr<TransferEnd> end;
  std::string address;  // of the child's transport
  uint64_t last = 0;
};

std::string words_of(const char* verb, TransferId id, TransferEnd::Shape shape) {
  return std::string(verb) + " " + std::to_string(id.value) + " " + std::to_string(shape.messages) +
         " " + std::to_string(shape.pages);
}

Status heard(LineProcess& child, std::string_view wanted) {
  TANDEM_ASSIGN(const std::string answer, child.line());
  if (answer == wanted) return {};
  return fail(ErrorCode::kUnavailable, "the other end said: " + answer);
}

Result<double> push_one_way(Pair& pair, TransferEnd::Shape shape) {
  const TransferId id{++pair.last};
  pair.child->say(words_of("expect", id, shape));
  TANDEM_TRY(heard(*pair.child, "open"));
  TANDEM_ASSIGN(const TransferEnd::Span span, pair.end->push(id, shape, pair.address));
  return span.seconds();
}

std::string text_of(TransferEnd::Span span) {
  return std::to_string(span.first_post.since_start.count()) + " " +
         std::to_string(span.last_acknowledgement.since_start.count());
}

Result<TransferEnd::Span> parse_span(const std::string& text) {
  std::istringstream words(text);
  Duration::rep first = 0;
  Duration::rep last = 0;
  if (words >> first >> last) return TransferEnd::Span{{Duration(first)}, {Duration(last)}};
  return fail(ErrorCode::kUnavailable, "the other end said: " + text);
}

// Seconds from the first post at either end to the last acknowledgement at either end.
Result<double> push_both_ways(Pair& pair, TransferEnd::Shape shape) {
  const TransferId there{++pair.last};
  const TransferId back{++pair.last};
  pair.child->say(words_of("expect", there, shape));
  TANDEM_TRY(heard(*pair.child, "open"));
  TANDEM_TRY(pair.end->expect(back, shape));
  const TimePoint start = SteadyClock().now() + kUntilStart;
  pair.child->say(words_of("push", back, shape) + " " + std::to_string(start.since_start.count()));
  TANDEM_ASSIGN(const TransferEnd::Span here, pair.end->push(there, shape, pair.address, start));
  TANDEM_ASSIGN(const std::string answer, pair.child->line());
  TANDEM_ASSIGN(const TransferEnd::Span other, parse_span(answer));
  return to_seconds(std::max(here.last_acknowledgement, other.last_acknowledgement) -
                    std::min(here.first_post, other.first_post));
}

Result<double> median_push(Pair& pair, TransferEnd::Shape shape, Way way) {
  std::vector<double> times;
  for (int i = 0; i <= kRepeats; ++i) {
    TANDEM_ASSIGN(const double seconds,
                  way == Way::kOne ? push_one_way(pair, shape) : push_both_ways(pair, shape));
    if (i > 0) times.push_back(seconds);
  }
  std::ranges::sort(times);
  return times[kRepeats / 2];
}

std::vector<std::string> child_words(const TransferBenchOptions& options,
                                     const TransferPlace& place, std::vector<std::string> program) {
  program.insert(program.end(),
                 {place.transport, std::to_string(place.device), std::to_string(place.largest_mib),
                  place.ucx_tls.empty() ? "-" : place.ucx_tls});
  program.insert(program.end(), options.libraries.begin(), options.libraries.end());
  return program;
}

Result<Pair> connect(const TransferBenchOptions& options, const std::string& name,
                     const std::vector<std::string>& program) {
  const TransferPlace here{name, options.from, options.largest_mib, options.ucx_tls};
  const TransferPlace there{name, options.to, options.largest_mib, options.ucx_tls};
  Pair pair;
  TANDEM_ASSIGN(pair.child, LineProcess::start(child_words(options, there, program)));
  TANDEM_ASSIGN(pair.end, TransferEnd::open(here, options.libraries, kSender, kReceiver));
  TANDEM_ASSIGN(const std::string address, pair.child->line());
  TANDEM_ASSIGN(pair.address, from_hex(address));
  pair.child->say("address " + to_hex(pair.end->address()));
  TANDEM_TRY(heard(*pair.child, "known"));
  return pair;
}

// Where the other end's output would be read, NCCL's rates come from rank 0, which is this process.
Status measure_nccl(const TransferBenchOptions& options, const std::vector<std::string>& program,
                    const std::vector<size_t>& sizes, Peers& peers) {
  if (options.from == options.to) {
    peers.nccl_missing = "joins no two processes on one GPU";
    return {};
  }
  transport::NcclPeerTask task{.id = {},
                               .rank = 0,
                               .device = options.from,
                               .sizes = sizes,
                               .most_bytes = pool_bytes(options.largest_mib)};
  auto id = transport::nccl_peer_id(options.libraries);
  if (!id) {
    peers.nccl_missing = id.error().detail;
    return {};
  }
  task.id = *id;
  std::vector<std::string> words =
      child_words(options, {"plain-nccl", options.to, options.largest_mib, {}}, program);
  TANDEM_ASSIGN(const auto child, LineProcess::start(std::move(words)));
  child->say(to_hex(task.id));
  TANDEM_ASSIGN(const transport::NcclPeerRates rates,
                transport::measure_nccl_peer(task, options.libraries));
  for (size_t i = 0; i < sizes.size(); ++i) {
    peers.nccl[0][sizes[i]] = rates.one_way[i];
    peers.nccl[1][sizes[i]] = rates.both_ways[i];
  }
  return {};
}

std::vector<size_t> sizes_up_to(uint32_t largest_mib) {
  std::vector<size_t> sizes;
  for (size_t s = kTransferPage; s <= size_t{largest_mib} << 20; s *= 4) sizes.push_back(s);
  return sizes;
}

bool names(const TransferBenchOptions& options, const char* transport) {
  return std::ranges::count(options.transports, transport) > 0;
}

Result<Peers> measure_peers(const TransferBenchOptions& options,
                            const std::vector<std::string>& program,
                            const std::vector<size_t>& sizes) {
  Peers peers;
  const size_t pool = pool_bytes(options.largest_mib);
  for (const size_t size : sizes) {
    const size_t total = std::min(pool, 128 * size);
    for (const bool both : {false, true}) {
      if (both && options.from < 0) continue;
      TANDEM_ASSIGN(peers.copy[both][size],
                    plain_copy(options.from, options.to, size, total, both));
    }
    if (!names(options, "ucx") || options.perftest.empty() || !peers.ucx_missing.empty()) continue;
    const auto messages = static_cast<uint32_t>(std::clamp<size_t>(pool / size, 8, 128));
    const auto rate =
        ucx_perftest(options.perftest, options.from >= 0, size, messages, peers.ucx_missing);
    if (rate) peers.ucx[size] = *rate;
  }
  if (names(options, "nccl")) TANDEM_TRY(measure_nccl(options, program, sizes, peers));
  return peers;
}

void report_peers(const TransferBenchOptions& options, const Peers& peers, const RowSink& sink) {
  const auto row = [&](const std::string& what, size_t size, double rate) {
    DeviceRow r;
    r.what = what;
    r.shape = std::to_string(size >> 10) + " KiB";
    r.rate = rate * 1e-9;
    r.unit = "GB/s";
    sink(r);
  };
  const std::string copy = options.from < 0             ? "host copy"
                           : options.from == options.to ? "copy on card"
                                                        : "peer copy";
  for (const auto& [size, rate] : peers.copy[0]) row(copy, size, rate);
  for (const auto& [size, rate] : peers.copy[1]) row(copy + ", both ways", size, rate);
  for (const auto& [size, rate] : peers.nccl[0]) row("plain NCCL", size, rate);
  for (const auto& [size, rate] : peers.nccl[1]) row("plain NCCL, both ways", size, rate);
  for (const auto& [size, rate] : peers.ucx) row("ucx_perftest", size, rate);
  const auto note = [&](const char* what, const std::string& why) {
    DeviceRow r;
    r.what = what;
    r.note = why;
    if (!why.empty()) sink(r);
  };
  note("plain NCCL", peers.nccl_missing);
  note("ucx_perftest", peers.ucx_missing);
}

// A push against what its transport could do at best; against a plain copy where that is unknown.
DeviceRow push_row(const TransferBenchOptions& options, const Peers& peers, const std::string& name,
                   TransferEnd::Shape shape, Way way, double seconds) {
  const size_t size = shape.pages * kTransferPage;
  const bool both = way == Way::kBoth;
  const auto rate_of = [&](const std::map<size_t, double>& rates) {
    const auto it = rates.find(size);
    return it == rates.end() ? 0.0 : it->second * 1e-9;
  };
  DeviceRow row;
  row.what = "KV push " + name + (both ? ", both ways" : "");
  row.shape = std::to_string(shape.messages) + " x " + std::to_string(size >> 10) + " KiB";
  row.seconds = seconds;
  row.rate = shape.bytes() / seconds * 1e-9;
  row.unit = "GB/s";
  if (name == "nccl") {
    row.ceiling = rate_of(peers.nccl[both]);
    row.against = "plain NCCL";
  } else if (name == "ucx" && !both) {
    row.ceiling = rate_of(peers.ucx);
    row.against = "ucx_perftest";
  }
  if (row.ceiling == 0) {
    row.ceiling = rate_of(peers.copy[both]);
    row.against = options.from == options.to ? "copy" : "peer copy";
  }
  row.ratio = row.ceiling > 0 ? row.rate / row.ceiling : 0;
  // The target is for two cards; two processes on one take turns.
  if (options.from != options.to && size >= size_t{1} << 20) row.target = 0.95;
  return row;
}

}  // namespace

Status serve_transfers(const TransferPlace& place, const std::vector<std::string>& libraries) {
  std::string line;
  if (place.transport == "plain-nccl") {
    std::getline(std::cin, line);
    transport::NcclPeerTask task{.id = {},
                                 .rank = 1,
                                 .device = place.device,
                                 .sizes = sizes_up_to(place.largest_mib),
                                 .most_bytes = pool_bytes(place.largest_mib)};
    TANDEM_ASSIGN(task.id, from_hex(line));
    TANDEM_ASSIGN([[maybe_unused]] const transport::NcclPeerRates rates,
                  transport::measure_nccl_peer(task, libraries));
    return {};
  }
  TANDEM_ASSIGN(const auto end, TransferEnd::open(place, libraries, kReceiver, kSender));
  std::cout << to_hex(end->address()) << std::endl;
  std::string peer;
  const auto answer = [](const Status& status, const std::string& good) {
    std::cout << (status ? good : status.error().to_string()) << std::endl;
  };
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "address") {
      std::string hex;
      words >> hex;
      TANDEM_ASSIGN(peer, from_hex(hex));
      answer({}, "known");
      continue;
    }
    uint64_t id = 0;
    TransferEnd::Shape shape;
    words >> id >> shape.messages >> shape.pages;
    if (verb == "expect") {
      answer(end->expect(TransferId{id}, shape), "open");
    } else {
      Duration::rep start = 0;
      words >> start;
      const auto pushed = end->push(TransferId{id}, shape, peer, {Duration(start)});
      answer(pushed ? Status() : fail(pushed.error()), pushed ? text_of(*pushed) : "");
    }
  }
  return {};
}

Result<Ceilings> bench_transfers(const TransferBenchOptions& options,
                                 const std::vector<std::string>& program, const RowSink& sink) {
  Ceilings ceilings;
  if (options.from >= 0) {
    TANDEM_ASSIGN(const auto versions, cuda::cuda_versions());
    ceilings.driver = cuda::version_text(versions.driver);
  } else {
    ceilings.driver = "none";
  }
  const size_t pool = pool_bytes(options.largest_mib);
  const std::vector<size_t> sizes = sizes_up_to(options.largest_mib);
  TANDEM_ASSIGN(const Peers peers, measure_peers(options, program, sizes));
  report_peers(options, peers, sink);
  for (const std::string& name : options.transports) {
    TANDEM_ASSIGN(auto pair, connect(options, name, program));
    for (const Way way : {Way::kOne, Way::kBoth}) {
      for (const size_t size : sizes) {
        const TransferEnd::Shape shape{
            .messages = static_cast<uint32_t>(std::clamp<size_t>(pool / size, 1, 128)),
            .pages = static_cast<uint32_t>(size / kTransferPage)};
        TANDEM_ASSIGN(const double seconds, median_push(pair, shape, way));
        sink(push_row(options, peers, name, shape, way, seconds));
      }
    }
    ceilings.device += (ceilings.device.empty() ? "" : "; ") + pair.end->detail();
  }
  return ceilings;
}

}  // namespace tandem::bench

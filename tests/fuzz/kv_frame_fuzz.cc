// KV frames from an untrusted peer: the header parser, the reason texts, addresses, the messages of
// direct transports, and the receive table behind them. Input: one mode byte, then frames as `u16
// payload length | 72-byte header | payload`. In modes with bit 0 the header is repaired (magic,
// version, checksums, generations), so that mutations reach the checks behind the checksum.
#include <xxhash.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "common/base/check.h"
#include "common/proto/kv_frame.h"
#include "common/transport/direct/wire_format.h"
#include "common/transport/receive_table.h"
#include "common/transport/send_table.h"
#include "common/transport/ucx/address.h"

namespace {

using namespace tandem;             // NOLINT(google-build-using-namespace): one program, one scope
using namespace tandem::transport;  // NOLINT(google-build-using-namespace)

constexpr kv::KvLayout kLayout{2, 1, 2, kv::KvFormat::kInt4};
constexpr uint32_t kPages = 3;
constexpr uint32_t kTailRows = 5;
constexpr TransferId kTransfer{7};
constexpr Generation kSelf{1};
constexpr Generation kPeer{2};
constexpr std::byte kGuard{0x5a};

class CountEnds final : public TransportEvents {
 public:
  void on_received(TransferId, std::string, const ReceiveStats&) override { ++ends; }
  void on_receive_failed(TransferId, Error) override { ++ends; }
  void on_sent(TransferId, const SendStats&) override { ++send_ends; }
  void on_send_failed(TransferId, Error) override { ++send_ends; }
  int ends = 0;
  int send_ends = 0;
};

// Pages with guard bytes between them.
struct Arena {
  static constexpr size_t kGap = 32;
  std::vector<std::byte> bytes;
  size_t page_bytes;
  explicit Arena(size_t page, size_t count)
      : bytes((page + kGap) * count + kGap, kGuard), page_bytes(page) {}
  std::span<std::byte> page(size_t i) {
    return std::span(bytes).subspan(kGap + i * (page_bytes + kGap), page_bytes);
  }
  void check() const {
    for (size_t at = 0; at < bytes.size(); at += page_bytes + kGap) {
      for (size_t i = 0; i < kGap; ++i) {
        TANDEM_CHECK(bytes[at + i] == kGuard, "a frame wrote outside its page");
      }
    }
  }
};

void repair(std::byte* header, std::span<const std::byte> payload) {
  const auto put = [&](size_t at, auto value) { std::memcpy(header + at, &value, sizeof(value)); };
  put(0, uint32_t{0x46564B54});
  put(4, uint16_t{2});
  put(8, kTransfer.value);
  put(16, kPeer.value);
  put(24, kSelf.value);
  put(32, geometry_hash(kLayout));
  put(52, static_cast<uint32_t>(payload.size()));
  put(56, proto::kv_payload_checksum(kTransfer, payload));
  put(64, XXH3_64bits(header, 64));
}

void feed(std::span<const std::byte> input, bool fix) {
  ManualClock clock;
  CountEnds events;
  AtomicCounters counters;
  const TransportDeps deps{.self = kSelf, .clock = clock, .events = events, .limits = {}};
  ReceiveTable receives(deps, counters);
  SendTable sends(deps, counters);
  Arena pages(kLayout.page_bytes(), size_t{kPages} * kLayout.layers);
  Arena tails(kLayout.tail_layout().page_bytes(), kLayout.layers);
  ReceivePlan plan{.id = kTransfer,
                   .sender = kPeer,
                   .layout = kLayout,
                   .pages = kPages,
                   .deadline = std::chrono::seconds(1)};
  plan.destination = [&](uint32_t layer, uint32_t i) { return pages.page(layer * kPages + i); };
  plan.tail_rows = kTailRows;
  plan.tail_destination = [&](uint32_t layer) { return tails.page(layer); };
  TANDEM_CHECK(receives.open(plan).has_value(), "the plan is good");
  const Status opened = sends.open({.id = kTransfer,
                                    .receiver = kPeer,
                                    .address = "peer",
                                    .layout = kLayout,
                                    .pages = 0,
                                    .tail_rows = 0,
                                    .deadline = std::chrono::seconds(1)});
  TANDEM_CHECK(opened.has_value(), "the spec is good");

  while (input.size() > 2 + proto::kKvHeaderBytes) {
    uint16_t length = 0;
    std::memcpy(&length, input.data(), 2);
    input = input.subspan(2);
    std::vector<std::byte> header(input.begin(), input.begin() + proto::kKvHeaderBytes);
    input = input.subspan(proto::kKvHeaderBytes);
    const auto payload = input.first(std::min<size_t>(length, input.size()));
    input = input.subspan(payload.size());
    if (fix) repair(header.data(), payload);
    const auto parsed = proto::parse_kv_header(header);
    if (!parsed) continue;
    const auto encoded = proto::encode_kv_header(*parsed);
    TANDEM_CHECK(std::memcmp(encoded.data(), header.data(), header.size()) == 0,
                 "a header that parses is one that was encoded");
    if (parsed->kind == proto::KvFrameKind::kAck || parsed->kind == proto::KvFrameKind::kReject) {
      sends.deliver(*parsed, payload);
    } else if (const auto answer = receives.deliver(*parsed, payload)) {
      TANDEM_CHECK(proto::parse_kv_header(answer->frame().header).has_value(),
                   "answers are frames");
    }
    pages.check();
    tails.check();
  }
  clock.advance(std::chrono::seconds(2));
  receives.sweep(clock.now());
  (void)sends.sweep(clock.now());
  TANDEM_CHECK(events.ends == 1 && events.send_ends == 1, "every transfer ends exactly once");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span input(reinterpret_cast<const std::byte*>(data), size);
  (void)proto::parse_kv_header(input);
  (void)proto::parse_kv_reason(input);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)parse_ucx_address(text);
  (void)parse_direct_address(text);
  (void)parse_hello(text);
  (void)parse_go(text);
  (void)parse_sums(input);
  if (const auto offer = parse_offer(input)) {
    TANDEM_CHECK(encode_offer(*offer) == text, "an offer that parses is one that was encoded");
  }
  for (std::string_view left = text;;) {  // a stream of messages, as a socket gives it
    const auto parsed = parse_message(left);
    if (!parsed || parsed->taken == 0) break;
    TANDEM_CHECK(
        encode_message(parsed->message.kind, parsed->message.body) == left.substr(0, parsed->taken),
        "a message that parses is one that was encoded");
    left.remove_prefix(parsed->taken);
  }
  if (size > 0) feed(input.subspan(1), (data[0] & 1U) != 0);
  return 0;
}

#include "common/node/loopback.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/kv/codec.h"

namespace tandem::node {
namespace {

constexpr const char* kCommitText = "kv loopback self-test";

// A value in [-2, 2] that depends on every coordinate.
float sample(uint32_t layer, uint32_t head, kv::KvSide side, uint32_t token, uint32_t channel) {
  uint32_t h = layer * 0x9e3779b9U + head * 0x85ebca6bU + token * 0xc2b2ae35U +
               channel * 0x27d4eb2fU + (side == kv::KvSide::kV ? 0x165667b1U : 0U);
  h ^= h >> 15;
  h *= 0x2c1b3c6dU;
  h ^= h >> 12;
  return static_cast<float>(h % 4001) / 1000.0F - 2.0F;
}

template <typename Visit>
void for_each_section(const kv::KvLayout& layout, Visit&& visit) {
  for (uint32_t head = 0; head < layout.kv_heads; ++head) {
    for (const auto side : {kv::KvSide::kK, kv::KvSide::kV}) {
      visit(head, side, kv::section_offset(layout, head, side));
    }
  }
}

std::vector<std::byte> encoded_page(const kv::KvLayout& layout, uint32_t layer) {
  std::vector<std::byte> page(layout.page_bytes());
  std::vector<float> rows(size_t{kv::kBlockTokens} * layout.head_dim);
  for_each_section(layout, [&](uint32_t head, kv::KvSide side, size_t offset) {
    for (uint32_t token = 0; token < kv::kBlockTokens; ++token) {
      for (uint32_t c = 0; c < layout.head_dim; ++c) {
        rows[size_t{token} * layout.head_dim + c] = sample(layer, head, side, token, c);
      }
    }
    kv::encode_section(layout, side, rows.data(), layout.head_dim, page.data() + offset);
  });
  return page;
}

Status write(kv::PageMemory& memory, std::span<std::byte> page, std::vector<std::byte> bytes) {
  const kv::PageMemory::Piece piece{page.data(), bytes.data(), page.size()};
  return memory.from_host({&piece, 1});
}

Result<std::vector<std::byte>> read(kv::PageMemory& memory, std::span<std::byte> page) {
  std::vector<std::byte> bytes(page.size());
  const kv::PageMemory::Piece piece{page.data(), bytes.data(), page.size()};
  TANDEM_TRY(memory.to_host({&piece, 1}));
  return bytes;
}

// Root mean square error over root mean square value: under 1 % for 8 bits, under 6 % for 4.
double page_error(const kv::KvLayout& layout, uint32_t layer, std::span<const std::byte> page) {
  std::vector<float> row(layout.head_dim);
  double error = 0;
  double power = 0;
  for_each_section(layout, [&](uint32_t head, kv::KvSide side, size_t offset) {
    for (uint32_t token = 0; token < kv::kBlockTokens; ++token) {
      kv::decode_row(layout, side, page.data() + offset, token, row.data());
      for (uint32_t c = 0; c < layout.head_dim; ++c) {
        const double x = sample(layer, head, side, token, c);
        error += (row[c] - x) * (row[c] - x);
        power += x * x;
      }
    }
  });
  return std::sqrt(error / power);
}

constexpr double kMostError = 0.10;

}  // namespace

LoopbackTest::LoopbackTest(KvStore& kv, transport::Transport& transport, Generation self)
    : kv_(kv), transport_(transport), self_(self) {}

void LoopbackTest::settle(Status outcome) {
  if (std::exchange(settled_, true)) return;
  outcome_.set_value(std::move(outcome));
}

void LoopbackTest::on_received(const std::string& commit) {
  if (commit != kCommitText) {
    return settle(fail(ErrorCode::kCorruptData, "the commit came back changed"));
  }
  received_ = true;
  if (sent_) settle({});
}

void LoopbackTest::on_sent() {
  sent_ = true;
  if (received_) settle({});
}

void LoopbackTest::on_failed(Error error) { settle(fail(std::move(error))); }

Status LoopbackTest::send(const kv::BlockTable& from, const kv::BlockTable& to, Duration limit) {
  const engine::KvPages pages = kv_.pages();
  const bool tail = pages.layout.needs_tail();
  transport::ReceivePlan plan;
  plan.id = kLoopbackTransfer;
  plan.sender = self_;
  plan.layout = pages.layout;
  plan.pages = 1;
  plan.destination = [pages, block = to.ids()[0]](uint32_t layer, uint32_t) {
    return pages.page(layer, block);
  };
  if (tail) {
    plan.tail_rows = kv::kBlockTokens;
    plan.tail_destination = [pages, slot = to.tail.slot()](uint32_t layer) {
      return pages.open_page(layer, slot);
    };
  }
  plan.deadline = limit;
  TANDEM_TRY(transport_.open_receive(std::move(plan)));
  TANDEM_TRY(transport_.open_send({.id = kLoopbackTransfer,
                                   .receiver = self_,
                                   .address = transport_.address(),
                                   .layout = pages.layout,
                                   .pages = 1,
                                   .tail_rows = tail ? kv::kBlockTokens : 0,
                                   .deadline = limit}));
  for (uint32_t layer = 0; layer < pages.layout.layers; ++layer) {
    const std::span<const std::byte> page = pages.page(layer, from.ids()[0]);
    TANDEM_TRY(transport_.post_pages(kLoopbackTransfer, layer, 0, {&page, 1}));
    if (tail) {
      TANDEM_TRY(
          transport_.post_tail(kLoopbackTransfer, layer, pages.open_page(layer, from.tail.slot())));
    }
  }
  return transport_.post_commit(kLoopbackTransfer, kCommitText);
}

Status LoopbackTest::compare(const kv::BlockTable& from, const kv::BlockTable& to) const {
  const engine::KvPages pages = kv_.pages();
  const auto check = [this](const kv::KvLayout& layout, uint32_t layer, std::span<std::byte> sent,
                            std::span<std::byte> received) -> Status {
    const std::string where = "layer " + std::to_string(layer) + " of " + layout.describe();
    TANDEM_ASSIGN(const auto a, read(kv_.memory(), sent));
    TANDEM_ASSIGN(const auto b, read(kv_.memory(), received));
    if (!std::ranges::equal(a, b)) {
      return fail(ErrorCode::kCorruptData, "bytes changed on the way: " + where);
    }
    const double error = page_error(layout, layer, b);
    if (error <= kMostError) return {};
    return fail(ErrorCode::kCorruptData,
                "decoded values are off by " + std::to_string(error) + " of their size: " + where);
  };
  for (uint32_t layer = 0; layer < pages.layout.layers; ++layer) {
    TANDEM_TRY(check(pages.layout, layer, pages.page(layer, from.ids()[0]),
                     pages.page(layer, to.ids()[0])));
    if (!pages.layout.needs_tail()) continue;
    TANDEM_TRY(check(pages.layout.tail_layout(), layer, pages.open_page(layer, from.tail.slot()),
                     pages.open_page(layer, to.tail.slot())));
  }
  return {};
}

Status LoopbackTest::run(Duration limit) {
  const std::vector<TokenId> tokens(kv::kBlockTokens, 0);
  TANDEM_ASSIGN(auto from, kv_.acquire(tokens, false));
  TANDEM_ASSIGN(auto to, kv_.acquire(tokens, false));
  const engine::KvPages pages = kv_.pages();
  for (uint32_t layer = 0; layer < pages.layout.layers; ++layer) {
    TANDEM_TRY(write(kv_.memory(), pages.page(layer, from.table.ids()[0]),
                     encoded_page(pages.layout, layer)));
    if (pages.layout.needs_tail()) {
      TANDEM_TRY(write(kv_.memory(), pages.open_page(layer, from.table.tail.slot()),
                       encoded_page(pages.layout.tail_layout(), layer)));
    }
  }
  auto outcome = outcome_.get_future();
  Status status = send(from.table, to.table, limit);
  if (status) {
    // Twice the transport's own deadline: its event is what ends the wait.
    status = outcome.wait_for(2 * limit) == std::future_status::ready
                 ? outcome.get()
                 : fail(ErrorCode::kDeadlineExceeded, "the transport gave no event at all");
  }
  if (!status) transport_.cancel_send(kLoopbackTransfer, "self-test failed");
  transport_.close_receive(kLoopbackTransfer);
  if (status) status = compare(from.table, to.table);
  if (status) return {};
  return fail(status.error().code, "KV loopback self-test over " +
                                       std::string(transport_.detail()) + ": " +
                                       status.error().detail);
}

}  // namespace tandem::node

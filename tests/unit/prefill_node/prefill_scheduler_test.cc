#include "prefill_node/prefill_scheduler.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/node/handover.h"
#include "tests/sim/sim_nodes.h"

namespace tandem::prefill {
namespace {

using sim::LedgerRequest;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A decode node's memory and nothing else: holds what was pushed.
class Landing final : public transport::TransportEvents {
 public:
  Landing(sim::SimNetwork& network, uint64_t generation, uint64_t writer,
          const kv::KvLayout& layout)
      : transport(network, "landing#" + std::to_string(generation), Generation{generation}),
        writer_(writer),
        layout_(layout) {
    transport.events = this;
  }

  void expect(uint64_t id, size_t tokens, uint32_t cached, Duration deadline = seconds(10)) {
    const auto h = node::handover(layout_, tokens, cached);
    pages[id].assign(size_t{layout_.layers} * h.pages * layout_.page_bytes(), std::byte{0xee});
    transport::ReceivePlan plan{.id = TransferId{id},
                                .sender = Generation{writer_},
                                .layout = layout_,
                                .destination = {},
                                .pages = h.pages,
                                .tail_destination = {},
                                .tail_rows = h.tail_rows,
                                .deadline = deadline};
    const size_t bytes = layout_.page_bytes();
    plan.destination = [this, id, count = h.pages, bytes](uint32_t layer, uint32_t page) {
      return std::span(pages[id]).subspan((size_t{layer} * count + page) * bytes, bytes);
    };
    if (h.tail_rows > 0) {
      const size_t tail_bytes = layout_.tail_layout().page_bytes();
      tails[id].assign(layout_.layers * tail_bytes, std::byte{0xee});
      plan.tail_destination = [this, id, tail_bytes](uint32_t layer) {
        return std::span(tails[id]).subspan(layer * tail_bytes, tail_bytes);
      };
    }
    ASSERT_TRUE(transport.open_receive(std::move(plan)));
  }

  // The token that position `i` after the cached ones left in `layer`.
  [[nodiscard]] TokenId token_at(uint64_t id, uint32_t layer, size_t i) const {
    const auto& p = pages.at(id);
    const size_t per_layer = p.size() / layout_.layers / layout_.page_bytes();
    const bool in_tail = i / 16 >= per_layer;
    const std::byte* page = in_tail
                                ? tails.at(id).data() + layer * layout_.tail_layout().page_bytes()
                                : p.data() + (layer * per_layer + i / 16) * layout_.page_bytes();
    TokenId token = 0;
    std::memcpy(&token, page + (i % 16) * 8, sizeof token);
    return token;
  }

  void on_received(TransferId id, std::string commit, const transport::ReceiveStats&) override {
    control::Commit m;
    ASSERT_TRUE(m.ParseFromString(commit));
    commits[id.value] = m;
  }
  void on_receive_failed(TransferId id, Error error) override {
    failed.emplace(id.value, std::move(error));
  }
  void on_sent(TransferId, const transport::SendStats&) override {}
  void on_send_failed(TransferId, Error) override {}

  sim::SimTransport transport;
  std::map<uint64_t, std::vector<std::byte>> pages, tails;
  std::map<uint64_t, control::Commit> commits;
  std::map<uint64_t, Error> failed;

 private:
  uint64_t writer_;
  kv::KvLayout layout_;
};

class PrefillSchedulerTest : public ::testing::Test {
 protected:
  void start(sim::NodeOptions options = {}) {
    options_ = options;
    landing_.reset();
    node_ = std::make_unique<sim::SimPrefill>(world_, network_, "prefill-0", 50, options);
    node_->to_router = [this](control::ToRouter m) { messages_.push_back(std::move(m)); };
    landing_ = std::make_unique<Landing>(network_, 9, 50, node_->kv().layout());
  }

  control::ToNode prefill_message(uint64_t id, const LedgerRequest& r, uint64_t transfer = 0,
                                  uint32_t cached = 0, uint32_t deadline_ms = 5000) {
    control::ToNode m;
    auto& p = *m.mutable_prefill();
    p.set_transfer_id(transfer);
    *p.mutable_task() = sim::make_task(id, r);
    p.set_decode_node("decode-0");
    p.set_decode_generation(9);
    p.set_decode_transport("inproc");
    p.set_decode_address("landing#9");
    p.set_cached_tokens(cached);
    p.set_deadline_ms(deadline_ms);
    return m;
  }
  void hand_over(uint64_t id, const LedgerRequest& r, uint32_t cached = 0) {
    landing_->expect(id, r.prompt.size(), cached);
    node_->receive(prefill_message(id, r, id, cached));
  }
  LedgerRequest request(size_t prompt, uint32_t max_new = 20) {
    return {.prompt = sim::random_prompt(world_, prompt),
            .max_new_tokens = max_new,
            .min_new_tokens = 0,
            .stop_tokens = {},
            .seed = world_.draw()};
  }
  TokenId first_token(const LedgerRequest& r) const {
    return sim::ledger_token(r.prompt, r.seed, sim::kVocab);
  }
  [[nodiscard]] bool run_idle(Duration limit = seconds(60)) {
    return world_.run_until([&] { return node_->idle(); }, limit);
  }
  const control::PrefillDone* done(uint64_t id) const {
    for (const auto& m : messages_) {
      if (m.prefill_done().request_id() == id && m.has_prefill_done()) return &m.prefill_done();
    }
    return nullptr;
  }
  const control::TransferDone* transfer_done(uint64_t id) const {
    for (const auto& m : messages_) {
      if (m.has_transfer_done() && m.transfer_done().transfer_id() == id) return &m.transfer_done();
    }
    return nullptr;
  }
  std::vector<control::Failed> failures() const {
    std::vector<control::Failed> f;
    for (const auto& m : messages_) {
      if (m.has_failed()) f.push_back(m.failed());
    }
    return f;
  }
  void expect_landed(uint64_t id, const LedgerRequest& r, uint32_t cached = 0) {
    ASSERT_TRUE(landing_->commits.contains(id));
    EXPECT_EQ(landing_->commits[id].request_id(), id);
    EXPECT_EQ(landing_->commits[id].tokens(), r.prompt.size());
    for (uint32_t layer = 0; layer < options_.layers; ++layer) {
      for (size_t i = cached; i < r.prompt.size(); ++i) {
        ASSERT_EQ(landing_->token_at(id, layer, i - cached), r.prompt[i]) << i;
      }
    }
  }
  void expect_nothing_held() {
    EXPECT_EQ(node_->kv().usage().used, 0U);
    EXPECT_EQ(node_->engine().mismatches(), 0U);
    EXPECT_EQ(node_->wire().open_sends(), 0U);
  }

  sim::World world_{2};
  sim::SimNetwork network_{world_};
  sim::NodeOptions options_;
  std::unique_ptr<sim::SimPrefill> node_;
  std::unique_ptr<Landing> landing_;
  std::vector<control::ToRouter> messages_;
};

TEST_F(PrefillSchedulerTest, PushesEveryPageOfEveryLayerAndCommitsWithTheFirstToken) {
  for (const auto format : {kv::KvFormat::kBf16, kv::KvFormat::kK8V4, kv::KvFormat::kInt4}) {
    for (const size_t length : {1, 15, 16, 17, 32, 100}) {
      SCOPED_TRACE(std::string(kv::to_string(format)) + " " + std::to_string(length));
      messages_.clear();
      start({.format = format});
      const auto r = request(length);
      hand_over(1, r);
      ASSERT_TRUE(run_idle());
      expect_landed(1, r);
      ASSERT_NE(done(1), nullptr);
      EXPECT_EQ(done(1)->first().id(), first_token(r));
      EXPECT_EQ(done(1)->finish(), control::FINISH_NONE);
      EXPECT_EQ(landing_->commits[1].first().id(), first_token(r));
      ASSERT_NE(transfer_done(1), nullptr);
      EXPECT_GT(transfer_done(1)->raw_bytes(), 0U);
      EXPECT_EQ(transfer_done(1)->transport(), "inproc");
      EXPECT_FALSE(transfer_done(1)->transport_detail().empty());
      expect_nothing_held();
    }
  }
}

TEST_F(PrefillSchedulerTest, WhatDecodeHasIsNotSent) {
  start();
  const auto r = request(100);
  hand_over(1, r, 64);
  ASSERT_TRUE(run_idle());
  expect_landed(1, r, 64);
  EXPECT_EQ(landing_->transport.pages_written, 3U * 3U);  // blocks 4, 5, 6 of 3 layers
}

TEST_F(PrefillSchedulerTest, KnownPrefixIsNotComputedAgainButIsSent) {
  start();
  const auto r = request(100);
  hand_over(1, r);
  ASSERT_TRUE(run_idle());
  auto longer = r;
  for (int i = 0; i < 30; ++i) longer.prompt.push_back(i);
  hand_over(2, longer);
  ASSERT_TRUE(run_idle());
  expect_landed(2, longer);
  EXPECT_EQ(done(2)->cached_tokens(), 96U);
  EXPECT_EQ(done(2)->first().id(), first_token(longer));
  expect_nothing_held();
}

TEST_F(PrefillSchedulerTest, PacksSeveralPromptsIntoOneStepAndCutsLongOnes) {
  sim::NodeOptions options;
  options.blocks = 200;
  options.max_context = 2048;
  options.prefill.max_batch_tokens = 256;
  options.prefill.chunk_tokens = 128;
  start(options);
  std::vector<std::vector<size_t>> steps;
  node_->engine().fault = [&](auto sequences) -> std::optional<Error> {
    auto& rows = steps.emplace_back();
    for (const auto& s : sequences) rows.push_back(s.tokens.size());
    return std::nullopt;
  };
  const auto first = request(10);
  const auto big = request(1000);
  const auto small = request(30);
  hand_over(1, first);  // runs alone, since nothing else is there yet
  hand_over(2, big);
  hand_over(3, small);
  ASSERT_TRUE(run_idle());
  ASSERT_GE(steps.size(), 2U);
  EXPECT_EQ(steps[0], (std::vector<size_t>{10}));
  EXPECT_EQ(steps[1], (std::vector<size_t>{128, 30}));
  expect_landed(2, big);
  expect_landed(3, small);
  EXPECT_EQ(done(2)->first().id(), first_token(big));
  expect_nothing_held();
}

TEST_F(PrefillSchedulerTest, EarlyLayersAndChunksTravelWhileLaterOnesAreComputed) {
  sim::NodeOptions options;
  options.blocks = 200;
  options.max_context = 2048;
  options.prefill.max_batch_tokens = 128;
  start(options);
  const auto r = request(1000);
  hand_over(1, r);
  ASSERT_TRUE(world_.run_until([&] { return done(1) != nullptr; }, seconds(10)));
  // Eight chunks; when the last one ends, those before it have long arrived.
  EXPECT_GE(landing_->transport.pages_written, 3U * 7U * 8U);
  ASSERT_TRUE(run_idle());
  const auto& t = *transfer_done(1);
  EXPECT_LT(t.exposed_seconds(), 0.001);
  EXPECT_GT(t.seconds(), 10 * t.exposed_seconds());
}

TEST_F(PrefillSchedulerTest, ASinglePromptTokenBudgetNeedsNoHandOver) {
  start();
  const auto one = request(20, 1);
  node_->receive(prefill_message(1, one));
  auto none = request(20, 0);
  node_->receive(prefill_message(2, none));
  ASSERT_TRUE(run_idle());
  EXPECT_EQ(done(1)->first().id(), first_token(one));
  EXPECT_EQ(done(1)->finish(), control::FINISH_LENGTH);
  EXPECT_FALSE(done(2)->has_first());
  EXPECT_EQ(done(2)->finish(), control::FINISH_LENGTH);
}

TEST_F(PrefillSchedulerTest, AStopTokenDrawnFirstCommitsWithoutAToken) {
  start();
  auto r = request(20);
  r.stop_tokens = {first_token(r)};
  hand_over(1, r);
  ASSERT_TRUE(run_idle());
  EXPECT_FALSE(done(1)->has_first());
  EXPECT_EQ(done(1)->finish(), control::FINISH_STOP);
  ASSERT_TRUE(landing_->commits.contains(1));
  EXPECT_FALSE(landing_->commits[1].has_first());
}

TEST_F(PrefillSchedulerTest, ScoresEveryPromptTokenAfterTheFirstAcrossChunks) {
  sim::NodeOptions options;
  options.prefill.max_batch_tokens = 32;
  start(options);
  const auto r = request(100, 0);
  node_->receive(prefill_message(7, r));  // fills the prefix index
  ASSERT_TRUE(run_idle());
  auto m = prefill_message(1, r);
  m.mutable_prefill()->mutable_task()->set_prompt_logprobs(2);
  node_->receive(m);
  ASSERT_TRUE(run_idle());
  ASSERT_EQ(done(1)->prompt_scores_size(), 99);
  for (int i = 0; i < 99; ++i) {
    EXPECT_EQ(done(1)->prompt_scores(i).id(), r.prompt[static_cast<size_t>(i) + 1]);
    const auto before = std::span(r.prompt).first(static_cast<size_t>(i) + 1);
    EXPECT_EQ(done(1)->prompt_scores(i).logprob(),
              -static_cast<float>(sim::ledger_token(before, 0, 1000)));
  }
  EXPECT_EQ(done(1)->cached_tokens(), 0U);
}

TEST_F(PrefillSchedulerTest, TheQueueIsBoundedAndFirstInFirstOut) {
  sim::NodeOptions options;
  options.prefill.queue_capacity = 3;
  options.prefill.max_sequences = 1;
  start(options);
  for (uint64_t id = 1; id <= 6; ++id) node_->receive(prefill_message(id, request(40)));
  ASSERT_EQ(failures().size(), 2U);  // one computes, three wait
  EXPECT_EQ(failures()[0].request_id(), 5U);
  EXPECT_EQ(failures()[0].code(), "queue_full");
  EXPECT_TRUE(failures()[0].retryable());
  ASSERT_TRUE(run_idle());
  std::vector<uint64_t> order;
  for (const auto& m : messages_) {
    if (m.has_prefill_done()) order.push_back(m.prefill_done().request_id());
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST_F(PrefillSchedulerTest, DeadlinesAreSweptInEveryPhaseByTheTickAlone) {
  sim::NodeOptions options;
  options.blocks = 300;
  options.max_context = 4096;
  options.prefill.max_batch_tokens = 64;
  options.prefill.max_sequences = 1;
  start(options);
  landing_->expect(1, 2000, 0);
  node_->receive(prefill_message(1, request(2000), 1, 0, 40));  // computing when it expires
  node_->receive(prefill_message(2, request(20), 0, 0, 30));    // still queued when it expires
  world_.run_for(milliseconds(100));
  ASSERT_EQ(failures().size(), 2U);
  EXPECT_NE(failures()[0].detail().find("in the queue"), std::string::npos);
  EXPECT_NE(failures()[1].detail().find("while computing"), std::string::npos);
  EXPECT_EQ(failures()[1].code(), "deadline_exceeded");
  EXPECT_TRUE(landing_->failed.contains(1));  // told, not left waiting for its own lease
  EXPECT_TRUE(node_->idle());

  network_.faults.lose = 1;  // computed, but the pages never arrive
  landing_->expect(3, 20, 0);
  node_->receive(prefill_message(3, request(20), 3, 0, 200));
  world_.run_for(milliseconds(300));
  ASSERT_NE(done(3), nullptr);
  ASSERT_EQ(failures().size(), 3U);
  EXPECT_EQ(failures()[2].transfer_id(), 3U);
  expect_nothing_held();
}

TEST_F(PrefillSchedulerTest, CancelFreesInEveryPhaseAndTellsTheReceiver) {
  sim::NodeOptions options;
  options.blocks = 300;
  options.max_context = 4096;
  options.prefill.max_batch_tokens = 256;
  options.prefill.max_sequences = 1;
  start(options);
  hand_over(1, request(2000));
  hand_over(2, request(20));
  world_.run_for(milliseconds(20));
  const auto cancel = [&](uint64_t id) {
    control::ToNode m;
    m.mutable_cancel()->set_request_id(id);
    m.mutable_cancel()->set_reason("client left");
    node_->receive(m);
  };
  cancel(2);  // queued
  cancel(1);  // in the middle of a chunk
  const uint64_t steps = node_->engine().steps();
  ASSERT_TRUE(run_idle(milliseconds(100)));
  EXPECT_LE(node_->engine().steps(), steps + 1);  // the running chunk and no other
  EXPECT_EQ(landing_->failed.at(1).detail, "client left");
  EXPECT_FALSE(
      landing_->failed.contains(2));  // nothing had been opened: its lease is the router's to end

  network_.faults.min_delay = network_.faults.max_delay = milliseconds(50);
  hand_over(3, request(20));
  ASSERT_TRUE(world_.run_until([&] { return done(3) != nullptr; }, seconds(1)));
  EXPECT_GT(node_->kv().usage().used, 0U);
  cancel(3);  // being sent
  world_.run_for(seconds(1));
  EXPECT_TRUE(landing_->failed.contains(3));
  EXPECT_TRUE(failures().empty());
  expect_nothing_held();
}

TEST_F(PrefillSchedulerTest, BlocksStayPinnedUntilTheTransportHasLetGo) {
  start({.blocks = 8, .prefix_cache = false});
  network_.faults.min_delay = network_.faults.max_delay = milliseconds(80);
  const auto first = request(100);  // 7 of the 8 blocks
  hand_over(1, first);
  const auto second = request(100);
  hand_over(2, second);
  ASSERT_TRUE(world_.run_until([&] { return done(1) != nullptr; }, seconds(1)));
  world_.run_for(milliseconds(40));
  EXPECT_EQ(done(2),
            nullptr);  // computed, but its pages are still being read: nobody may have them
  ASSERT_TRUE(run_idle());
  expect_landed(1, first);
  expect_landed(2, second);
}

TEST_F(PrefillSchedulerTest, AFailedPostFailsThatPromptAndTellsBothSides) {
  start();
  network_.faults.refuse_post = 1;
  hand_over(1, request(40));
  world_.run_for(milliseconds(200));
  network_.faults.refuse_post = 0;
  ASSERT_EQ(failures().size(), 1U);
  EXPECT_EQ(failures()[0].detail(), "could not post");
  EXPECT_TRUE(failures()[0].retryable());
  EXPECT_EQ(landing_->failed.at(1).detail, "could not post");
  EXPECT_EQ(done(1), nullptr);
  expect_nothing_held();
}

TEST_F(PrefillSchedulerTest, OnePromptThatFailsTheEngineDoesNotFailItsCompany) {
  start();
  const auto good = request(40);
  const auto bad = request(41);
  node_->engine().fault_layers = 2;  // after the pages of two layers were posted
  node_->engine().fault = [&](auto sequences) -> std::optional<Error> {
    for (const auto& s : sequences) {
      if (s.history.tokens.size() == 41) return make_error(ErrorCode::kInternal, "poisoned");
    }
    return std::nullopt;
  };
  node_->receive(prefill_message(3, request(8)));  // both others join the second step
  hand_over(1, good);
  hand_over(2, bad);
  ASSERT_TRUE(run_idle());
  expect_landed(1, good);
  ASSERT_EQ(failures().size(), 1U);
  EXPECT_EQ(failures()[0].request_id(), 2U);
  EXPECT_EQ(landing_->transport.counters().frames_rejected_replayed, 0U);
  expect_nothing_held();
}

TEST_F(PrefillSchedulerTest, ARepeatedPrefillIsDoneOnce) {
  start();
  const auto r = request(40);
  hand_over(1, r);
  node_->receive(prefill_message(1, r, 1));
  ASSERT_TRUE(run_idle());
  node_->receive(prefill_message(1, r, 1));
  ASSERT_TRUE(run_idle());
  size_t dones = 0;
  for (const auto& m : messages_) dones += m.has_prefill_done() ? 1 : 0;
  EXPECT_EQ(dones, 1U);
  EXPECT_TRUE(failures().empty());
}

TEST_F(PrefillSchedulerTest, ConnectsToADecodeNodeAsSoonAsItIsThere) {
  start();
  control::ToNode here;
  here.mutable_peer_here()->set_node_id("decode-0");
  here.mutable_peer_here()->set_transport("inproc");
  here.mutable_peer_here()->set_transport_address("landing#9");
  node_->receive(here);
  EXPECT_EQ(node_->wire().met, std::vector<std::string>{"decode-0 landing#9"});
}

TEST_F(PrefillSchedulerTest, AGoneDecodeNodeFailsOnlyItsOwnTransfers) {
  start();
  hand_over(1, request(100));
  auto other = request(40);
  node_->receive(prefill_message(2, other));
  world_.run_for(milliseconds(1));
  control::ToNode gone;
  gone.mutable_peer_gone()->set_node_id("decode-0");
  gone.mutable_peer_gone()->set_generation(9);
  node_->receive(gone);
  ASSERT_TRUE(run_idle());
  ASSERT_EQ(failures().size(), 1U);
  EXPECT_EQ(failures()[0].request_id(), 1U);
  EXPECT_EQ(done(2)->first().id(), first_token(other));
  expect_nothing_held();
}

TEST_F(PrefillSchedulerTest, RefusesWhatIsWrongInPlainWords) {
  start({.blocks = 4});
  node_->receive(prefill_message(1, request(100)));
  auto m = prefill_message(2, request(20), 2);
  m.mutable_prefill()->set_decode_transport("ucx");
  node_->receive(m);
  m = prefill_message(3, request(40), 3, 17);
  node_->receive(m);
  m = prefill_message(4, request(32), 4, 32);  // would leave nothing to compute
  node_->receive(m);
  m = prefill_message(5, request(32), 5);
  m.mutable_prefill()->set_decode_address("");
  node_->receive(m);
  world_.run_for(milliseconds(50));
  ASSERT_EQ(failures().size(), 5U);
  EXPECT_EQ(failures()[0].code(), "payload_too_large");
  EXPECT_EQ(failures()[1].code(), "mismatch");
  EXPECT_EQ(failures()[2].code(), "invalid_argument");
  EXPECT_EQ(failures()[3].code(), "invalid_argument");
  EXPECT_TRUE(node_->idle());
}

TEST_F(PrefillSchedulerTest, DrainFinishesWhatItHasAndALostRouterDropsIt) {
  start();
  const auto r = request(40);
  hand_over(1, r);
  control::ToNode drain;
  drain.mutable_drain();
  node_->receive(drain);
  node_->receive(prefill_message(2, request(10)));
  EXPECT_EQ(failures().at(0).code(), "unavailable");
  ASSERT_TRUE(run_idle());
  expect_landed(1, r);

  start();
  messages_.clear();
  hand_over(1, request(300));
  hand_over(2, request(300));
  world_.run_for(milliseconds(2));
  node_->disconnect();
  ASSERT_TRUE(run_idle(seconds(1)));
  EXPECT_TRUE(messages_.empty());
  expect_nothing_held();
}

}  // namespace
}  // namespace tandem::prefill

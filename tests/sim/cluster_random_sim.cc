// Random schedules of everything that can happen, against invariants. The seed is printed with
// every failure; TANDEM_SIM_SEED=N runs that one schedule alone.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/sim/cluster.h"

namespace tandem::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kSchedules = 30;

ClusterOptions random_options(uint64_t seed) {
  std::mt19937_64 random(seed ^ 0x5eed);
  const auto pick = [&](uint64_t low, uint64_t high) { return low + random() % (high - low + 1); };
  constexpr kv::KvFormat kFormats[] = {kv::KvFormat::kBf16, kv::KvFormat::kInt8,
                                       kv::KvFormat::kK8V4, kv::KvFormat::kInt4};
  ClusterOptions o;
  o.seed = seed;
  o.prefills = static_cast<int>(pick(0, 2));
  o.decodes = static_cast<int>(pick(1, 2));
  o.real_inproc = pick(0, 3) == 0;
  o.prefill.format = o.decode.format = kFormats[pick(0, 3)];
  o.prefill.layers = o.decode.layers = static_cast<uint32_t>(pick(1, 3));
  o.prefill.blocks = static_cast<uint32_t>(pick(24, 80));
  o.decode.blocks = static_cast<uint32_t>(pick(24, 80));
  o.prefill.max_context = o.decode.max_context = 384;
  o.prefill.tails = o.decode.tails = static_cast<uint32_t>(pick(6, 32));
  o.prefill.prefix_cache = pick(0, 3) != 0;
  o.decode.prefix_cache = pick(0, 3) != 0;
  if (pick(0, 1) == 0) {  // half of them with a CPU tail
    o.decode.tail_blocks = static_cast<uint32_t>(pick(4, 60));
    o.decode.tail_slowdown = static_cast<int>(pick(1, 8));
    o.decode.move_batch = milliseconds(pick(0, 3));
    const uint64_t bytes = o.decode.kv_layout().block_bytes();
    const uint64_t below = pick(0, o.decode.blocks - 1);
    o.decode.decode.cpu_tail = {.after_tokens = static_cast<uint32_t>(pick(0, 40)),
                                .free_below = below * bytes,
                                .return_above = pick(below, o.decode.blocks) * bytes};
  }
  o.prefill.prefill.max_batch_tokens = static_cast<uint32_t>(pick(16, 300));
  o.prefill.prefill.chunk_tokens = static_cast<uint32_t>(pick(16, 300));
  o.prefill.prefill.max_sequences = static_cast<uint32_t>(pick(1, 8));
  o.decode.decode.max_sequences = static_cast<uint32_t>(pick(1, 10));
  o.decode.decode.queue_capacity = static_cast<uint32_t>(pick(2, 40));
  o.decode.decode.chunk_tokens = static_cast<uint32_t>(pick(16, 128));
  o.decode.decode.max_batch_tokens = static_cast<uint32_t>(pick(32, 300));
  o.decode.decode.queue_ageing = milliseconds(pick(20, 1000));
  o.dispatch.queue_capacity = static_cast<uint32_t>(pick(8, 256));
  o.decode.decode.max_lease = milliseconds(pick(30, 3000));
  o.dispatch.max_retries = static_cast<uint32_t>(pick(0, 5));
  o.dispatch.local_prefill_below = static_cast<uint32_t>(pick(1, 64));
  o.dispatch.stall_timeout = seconds(10);
  o.dispatch.request_timeout = seconds(60);
  o.dispatch.peer_timeout = seconds(2);
  return o;
}

class Schedule {
 public:
  explicit Schedule(uint64_t seed) : options_(random_options(seed)), cluster_(options_) {
    for (int i = 0; i < options_.prefills; ++i) names_.push_back("prefill-" + std::to_string(i));
    for (int i = 0; i < options_.decodes; ++i) names_.push_back("decode-" + std::to_string(i));
  }

  void run() {
    const int steps = static_cast<int>(world().draw(30, 90));
    for (int i = 0; i < steps; ++i) {
      act();
      world().run_for(world().draw(Duration{0}, milliseconds(60)));
    }
    calm_down();
    ASSERT_TRUE(world().run_until([&] { return cluster_.open() == 0; }, seconds(200)))
        << cluster_.open() << " requests never end";
    cluster_.expect_all_answers_right();
    cluster_.expect_nothing_leaked();
  }

 private:
  World& world() { return cluster_.world; }

  void act() {
    const uint64_t what = world().draw(0, 99);
    if (what < 55) {
      submit();
    } else if (what < 70) {
      if (!ids_.empty()) cluster_.cancel(ids_[world().draw(0, ids_.size() - 1)]);
    } else if (what < 80) {
      crash_or_start();
    } else if (what < 90) {
      make_trouble();
    } else if (what < 94) {
      const auto& name = names_[world().draw(0, names_.size() - 1)];
      if (down_.contains(name)) return;
      cluster_.hold_link(name, true);
      world().run_for(world().draw(Duration{0}, milliseconds(300)));
      cluster_.hold_link(name, false);
    } else if (what < 95) {
      cluster_.restart_router();
    } else {
      engine_fault();
    }
  }

  void submit() {
    LedgerRequest r;
    // Half of the prompts share a beginning, so that blocks are shared, evicted and found again.
    if (!shared_.empty() && world().chance(0.5)) r.prompt = shared_;
    // And some are the next turn of a chat: an earlier prompt and its answer.
    if (!ids_.empty() && world().chance(0.25)) {
      const auto& earlier = cluster_.answer(ids_[world().draw(0, ids_.size() - 1)]);
      r.prompt = earlier.request.prompt;
      r.prompt.insert(r.prompt.end(), earlier.tokens.begin(), earlier.tokens.end());
    }
    const auto tail = random_prompt(world(), world().draw(1, 200));
    r.prompt.insert(r.prompt.end(), tail.begin(), tail.end());
    if (r.prompt.size() > 380) r.prompt.resize(380);
    if (world().chance(0.1)) shared_ = random_prompt(world(), world().draw(16, 100));
    r.max_new_tokens = static_cast<uint32_t>(world().draw(1, 80));
    r.seed = world().draw();
    for (uint64_t i = world().draw(0, 2); i > 0; --i) {
      r.stop_tokens.push_back(static_cast<TokenId>(world().draw(0, kVocab - 1)));
    }
    r.min_new_tokens = world().chance(0.2) ? static_cast<uint32_t>(world().draw(0, 20)) : 0;
    ids_.push_back(cluster_.submit(r));
  }

  void crash_or_start() {
    const auto& name = names_[world().draw(0, names_.size() - 1)];
    if (down_.erase(name) > 0) {
      cluster_.start(name);
    } else {
      cluster_.crash(name);
      down_.insert(name);
    }
  }

  void make_trouble() {
    if (options_.real_inproc) {
      cluster_.hub.set_fault_hook(
          transport::random_faults({.seed = world().draw(),
                                    .drop = world().chance(0.3) ? 0.02 : 0,
                                    .duplicate = world().chance(0.5) ? 0.2 : 0,
                                    .corrupt = world().chance(0.3) ? 0.02 : 0,
                                    .delay = world().chance(0.5) ? 0.5 : 0,
                                    .max_delay = world().draw(Duration{1}, milliseconds(40))}));
      return;
    }
    LinkFaults f;
    f.max_delay = f.min_delay + world().draw(Duration{0}, milliseconds(40));
    f.duplicate = world().chance(0.5) ? 0.2 : 0;
    f.lose = world().chance(0.3) ? 0.02 : 0;
    f.corrupt = world().chance(0.3) ? 0.02 : 0;
    f.refuse_post = world().chance(0.3) ? 0.05 : 0;
    cluster_.network.faults = f;
  }

  void engine_fault() {
    const auto& name = names_[world().draw(0, names_.size() - 1)];
    if (down_.contains(name)) return;
    auto& engine = cluster_.node(name).engine();
    engine.fault_layers = static_cast<uint32_t>(world().draw(0, options_.decode.layers - 1));
    auto left = std::make_shared<int>(static_cast<int>(world().draw(1, 3)));
    engine.fault = [left](auto) -> std::optional<Error> {
      if (--*left < 0) return std::nullopt;
      return make_error(ErrorCode::kInternal, "a fault of the device");
    };
  }

  void calm_down() {
    cluster_.network.faults = {};
    if (options_.real_inproc) cluster_.hub.set_fault_hook({});
    for (const auto& name : down_) cluster_.start(name);
    down_.clear();
  }

  ClusterOptions options_;
  Cluster cluster_;
  std::vector<std::string> names_;
  std::set<std::string> down_;
  std::vector<uint64_t> ids_;
  std::vector<TokenId> shared_;
};

TEST(ClusterRandomSim, EveryRequestEndsOnceWithTheRightTokensAndNothingLeaks) {
  const char* fixed = std::getenv("TANDEM_SIM_SEED");
  const uint64_t base =
      fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : std::random_device{}();
  for (int i = 0; i < (fixed != nullptr ? 1 : kSchedules); ++i) {
    const uint64_t seed = base + static_cast<uint64_t>(i);
    SCOPED_TRACE("TANDEM_SIM_SEED=" + std::to_string(seed));
    Schedule(seed).run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tandem::sim

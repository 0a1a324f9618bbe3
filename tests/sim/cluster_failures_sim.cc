// What broke in comparable systems, by the behaviour that is protected.
#include <gtest/gtest.h>

#include <string>

#include "common/proto/versions.h"
#include "tests/sim/cluster.h"

namespace tandem::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

ClusterOptions small_cluster() {
  ClusterOptions options;
  // The router asks for as long as a slow machine may need; the node grants less here.
  options.decode.decode.max_lease = milliseconds(400);
  options.dispatch.local_prefill_below = 0;  // hand over whatever there is
  return options;
}

double metric(const std::string& exposition, const std::string& name) {
  const size_t at = exposition.find("\n" + name + " ");
  if (at == std::string::npos) return -1;
  return std::stod(exposition.substr(at + name.size() + 2));
}

class ClusterFailures : public ::testing::Test {
 protected:
  void make(const ClusterOptions& options) { cluster_ = std::make_unique<Cluster>(options); }
  [[nodiscard]] bool all_ended(Duration limit = seconds(120)) {
    return world().run_until([&] { return cluster_->open() == 0; }, limit);
  }
  World& world() { return cluster_->world; }
  SimNode& prefill() { return cluster_->node("prefill-0"); }
  SimNode& decode() { return cluster_->node("decode-0"); }
  void expect_clean() {
    cluster_->expect_nothing_leaked();
    cluster_->expect_all_answers_right();
  }
  std::unique_ptr<Cluster> cluster_;
};

// vllm 46283
TEST_F(ClusterFailures, DecodeTakesItsBlocksBackWhenPrefillStaysSilent) {
  make(small_cluster());
  // The decode node cannot count on being told either.
  cluster_->swallow_to_node = [](const std::string& node, const control::ToNode& m) {
    return m.has_prefill() || (node == "decode-0" && m.has_cancel());
  };
  const auto id = cluster_->submit_random(100, 5);
  world().run_for(milliseconds(200));
  EXPECT_EQ(decode().heartbeat().reservations(), 1U);
  cluster_->swallow_to_node = [](const std::string&, const control::ToNode&) { return true; };
  world().run_for(milliseconds(300));
  EXPECT_EQ(decode().heartbeat().reservations(), 0U);
  EXPECT_EQ(decode().kv().usage().used, 0U);
  cluster_->swallow_to_node = nullptr;
  ASSERT_TRUE(all_ended());
  EXPECT_TRUE(cluster_->answer(id).finish.has_value());
  expect_clean();
}

// vllm 41269
TEST_F(ClusterFailures, PrefillLetsGoWhenDecodeNoLongerWantsTheBlocks) {
  auto options = small_cluster();
  options.prefill.max_context = options.decode.max_context = 2048;
  options.prefill.blocks = options.decode.blocks = 160;
  options.prefill.prefill.max_batch_tokens = 128;
  make(options);
  cluster_->swallow_to_node = [](const std::string& node, const control::ToNode& m) {
    return node == "prefill-0" && m.has_cancel();
  };
  const auto id = cluster_->submit_random(2000, 5);
  world().run_for(milliseconds(30));  // chunks are on their way
  EXPECT_GT(prefill().kv().usage().used, 0U);
  cluster_->cancel(id);
  world().run_for(milliseconds(100));  // well below the lease
  EXPECT_TRUE(prefill().idle());
  EXPECT_TRUE(decode().idle());
  expect_clean();
}

// vllm 29906, dynamo 7489
TEST_F(ClusterFailures, AbortFreesWheneverItComes) {
  make(small_cluster());
  for (int at = 0; at < 30'000; at += 173) {  // from before the reservation to after the last token
    const auto id = cluster_->submit_random(90, 6);
    world().run_for(microseconds(at));
    cluster_->cancel(id);
  }
  world().run_for(seconds(1));
  EXPECT_EQ(metric(cluster_->metrics("decode-0"), "tandem_decode_leases_expired_total"), 0);
  const auto id = cluster_->submit_random(90, 6);
  ASSERT_TRUE(all_ended(seconds(1)));
  EXPECT_TRUE(cluster_->answer(id).finish.has_value());
  expect_clean();
}

// dynamo 7489
TEST_F(ClusterFailures, CancelDuringATransferDoesNotHangThePrefillNode) {
  make(small_cluster());
  cluster_->network.faults.min_delay = milliseconds(50);
  cluster_->network.faults.max_delay = milliseconds(100);
  for (int i = 0; i < 5; ++i) {
    const auto id = cluster_->submit_random(100, 5);
    world().run_for(milliseconds(20));
    cluster_->cancel(id);
  }
  world().run_for(milliseconds(200));
  EXPECT_TRUE(prefill().idle());
  EXPECT_TRUE(decode().idle());
  cluster_->network.faults = {};
  cluster_->submit_random(100, 5);
  ASSERT_TRUE(all_ended(seconds(1)));
  expect_clean();
}

// dynamo 13691
TEST_F(ClusterFailures, CancelledPromptsDoNotHoldUpTheNextOne) {
  auto options = small_cluster();
  options.prefill.max_context = options.decode.max_context = 4096;
  options.prefill.blocks = options.decode.blocks = 2600;
  options.prefill.prefill.max_batch_tokens = 256;
  make(options);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(cluster_->submit_random(4000, 50));
  world().run_for(milliseconds(100));
  for (const auto id : ids) cluster_->cancel(id);
  const TimePoint from = world().now();
  cluster_->submit_random(50, 2);
  ASSERT_TRUE(all_ended());
  // Ten prompts would take 2.3 s; what is left of the running chunk takes 15 ms.
  EXPECT_LT(world().now() - from, milliseconds(60));
  expect_clean();
}

// lmdeploy 4967
TEST_F(ClusterFailures, EveryMessageMayComeTwice) {
  make(small_cluster());
  cluster_->swallow_to_node = [&](const std::string& node, const control::ToNode& m) {
    cluster_->node(node).receive(m);  // at once, and once more in its own time
    return false;
  };
  for (int i = 0; i < 8; ++i) {
    const auto id = cluster_->submit_random(world().draw(20, 200), 8);
    world().run_for(milliseconds(9));
    if (i % 4 == 3) cluster_->cancel(id);
  }
  ASSERT_TRUE(all_ended());
  expect_clean();
}

// TensorRT-LLM 12313
TEST_F(ClusterFailures, AFullPoolOfDeadLeasesClearsWithoutNewWork) {
  auto options = small_cluster();
  options.decode.blocks = 30;
  make(options);
  cluster_->swallow_to_node = [](const std::string&, const control::ToNode& m) {
    return m.has_prefill() || m.has_cancel() || m.has_generate();
  };
  for (int i = 0; i < 4; ++i) cluster_->submit_random(100, 1000);
  world().run_for(milliseconds(300));
  EXPECT_GE(decode().kv().usage().used, 14U);
  for (auto& [id, a] : cluster_->answers()) cluster_->cancel(id);  // unheard by the node
  world().run_for(seconds(1));                                     // nothing but ticks
  EXPECT_EQ(decode().kv().usage().used, 0U);
  EXPECT_GE(metric(cluster_->metrics("decode-0"), "tandem_decode_leases_expired_total"), 2);
  cluster_->swallow_to_node = nullptr;
  cluster_->submit_random(100, 10);
  ASSERT_TRUE(all_ended(seconds(10)));
  expect_clean();
}

// TensorRT-LLM 12542
TEST_F(ClusterFailures, BlocksThatAreBeingSentAreNotEvicted) {
  auto options = small_cluster();
  options.decode.decode.max_lease = seconds(20);
  options.prefill.blocks = 12;  // room for one prompt and a bit
  make(options);
  cluster_->network.faults.min_delay = milliseconds(5);
  cluster_->network.faults.max_delay = milliseconds(60);
  for (int i = 0; i < 6; ++i) cluster_->submit_random(150, 4);
  ASSERT_TRUE(all_ended());
  for (const auto& [id, a] : cluster_->answers()) EXPECT_TRUE(a.finish.has_value());
  expect_clean();
}

// vllm 50754
TEST_F(ClusterFailures, APushThatCannotBePostedFailsOverAtOnce) {
  auto options = small_cluster();
  options.decode.decode.max_lease = seconds(30);
  make(options);
  cluster_->network.faults.refuse_post = 1;
  const auto id = cluster_->submit_random(100, 5);
  world().run_for(milliseconds(60));
  cluster_->network.faults.refuse_post = 0;
  ASSERT_TRUE(all_ended(seconds(5)));  // long before the lease
  EXPECT_TRUE(cluster_->answer(id).finish.has_value());
  EXPECT_GE(cluster_->dispatcher().counters().retries, 1U);
  expect_clean();
}

// vllm 49238, sglang 12779
TEST_F(ClusterFailures, APrefillNodeThatRestartsIsTheOnlyOneThatSuffers) {
  make(small_cluster());
  const auto running = cluster_->submit_random(40, 200);
  world().run_for(milliseconds(60));
  ASSERT_FALSE(cluster_->answer(running).tokens.empty());
  const auto caught = cluster_->submit_random(300, 5);
  world().run_for(milliseconds(4));
  cluster_->crash("prefill-0");
  world().run_for(milliseconds(50));
  cluster_->start("prefill-0");
  cluster_->submit_random(100, 5);
  ASSERT_TRUE(all_ended());
  EXPECT_TRUE(cluster_->answer(running).finish.has_value());
  EXPECT_TRUE(cluster_->answer(caught).finish.has_value());
  EXPECT_EQ(metric(cluster_->metrics("decode-0"), "tandem_decode_generations_fenced_total"), 1);
  expect_clean();
}

// vllm 21570, sglang 35360
TEST_F(ClusterFailures, LateWritesNeverReachTheNextRequest) {
  auto options = small_cluster();
  options.decode.decode.max_lease = milliseconds(60);
  options.dispatch.max_retries = 20;
  options.decode.blocks = 24;  // blocks are handed on at once
  options.decode.prefix_cache = options.prefill.prefix_cache = false;
  make(options);
  // Frames straggle in up to long after the lease, many of them twice.
  cluster_->network.faults.min_delay = milliseconds(1);
  cluster_->network.faults.max_delay = milliseconds(120);
  cluster_->network.faults.duplicate = 0.3;
  for (int i = 0; i < 30; ++i) {
    cluster_->submit_random(world().draw(20, 150), 20);
    world().run_for(milliseconds(40));
  }
  ASSERT_TRUE(all_ended());
  cluster_->network.faults = {};
  EXPECT_GT(decode().wire().counters().frames_rejected_unknown, 0U);
  expect_clean();
}

// vllm 42895
TEST_F(ClusterFailures, AnotherBlockSizeIsRefusedAtTheHandshake) {
  make(small_cluster());
  control::Hello hello;
  hello.set_protocol_version(proto::kControlVersion);
  hello.set_role(control::ROLE_PREFILL);
  hello.set_node_id("prefill-9");
  hello.set_generation(77);
  hello.set_vocab_size(kVocab);
  hello.set_transport("inproc");
  hello.set_self_test_passed(true);
  hello.set_max_context(512);
  hello.set_kv_blocks(64);
  hello.set_kv_block_bytes(1);
  hello.set_max_sequences(8);
  hello.set_max_batch_tokens(512);
  auto& c = *hello.mutable_compatibility();
  c.set_model_fingerprint("ledger");
  c.set_tokenizer_hash("none");
  c.set_kv_format("bf16");
  c.set_kv_block_tokens(32);
  c.set_kv_layers(3);
  c.set_kv_heads(1);
  c.set_kv_head_dim(64);
  c.set_kv_codec_version(1);
  c.set_dtype("bfloat16");
  c.set_transport_protocol_version(proto::kKvFrameVersion);
  const auto welcome = cluster_->dispatcher().on_node_connected(router::NodeHandle{9999}, hello);
  EXPECT_FALSE(welcome.admitted());
  EXPECT_NE(welcome.reason().find("block size"), std::string::npos) << welcome.reason();
  EXPECT_NE(welcome.reason().find("32"), std::string::npos);
}

// vllm 32340
TEST_F(ClusterFailures, ExpiredLeasesAreAMetric) {
  make(small_cluster());
  EXPECT_EQ(metric(cluster_->metrics("decode-0"), "tandem_decode_leases_expired_total"), 0);
  cluster_->network.faults.lose = 1;
  cluster_->submit_random(100, 5);
  world().run_for(milliseconds(700));
  cluster_->network.faults = {};
  EXPECT_GE(metric(cluster_->metrics("decode-0"), "tandem_decode_leases_expired_total"), 1);
  ASSERT_TRUE(all_ended());
  expect_clean();
}

// vllm 27815 (admission) and the collapse it prevents
TEST_F(ClusterFailures, AFullDecodePoolQueuesInsteadOfPrefillingOverAndOver) {
  auto options = small_cluster();
  options.dispatch.queue_deadline = seconds(60);
  options.decode.decode.max_lease = seconds(10);
  options.decode.blocks = 40;
  make(options);
  uint64_t prompt_tokens = 0;
  for (int i = 0; i < 24; ++i) {
    cluster_->submit_random(100, 60);
    prompt_tokens += 100;
  }
  ASSERT_TRUE(all_ended());
  for (const auto& [id, a] : cluster_->answers()) EXPECT_TRUE(a.finish.has_value()) << id;
  const double again = metric(cluster_->metrics("decode-0"), "tandem_decode_prefill_tokens_total");
  EXPECT_LT(again, 0.3 * static_cast<double>(prompt_tokens));
  expect_clean();
}

// sglang 29627
TEST_F(ClusterFailures, ReservationsHoldThePromptAndGrowLater) {
  auto options = small_cluster();
  options.decode.blocks = 128;
  options.decode.max_context = options.prefill.max_context = 1024;
  make(options);
  cluster_->submit_random(96, 900);
  ASSERT_TRUE(world().run_until([&] { return decode().heartbeat().running() == 1; }, seconds(2)));
  EXPECT_LE(decode().kv().usage().used, 8U);
  ASSERT_TRUE(all_ended());
  expect_clean();
}

TEST_F(ClusterFailures, ADyingDecodeNodeIsAPauseAndNothingElse) {
  auto options = small_cluster();
  options.decodes = 2;
  options.prefills = 2;
  make(options);
  for (int i = 0; i < 8; ++i) cluster_->submit_random(world().draw(10, 120), 60);
  for (int round = 0; round < 2; ++round) {
    world().run_for(milliseconds(70));
    cluster_->crash("decode-" + std::to_string(round));
    world().run_for(milliseconds(50));
    cluster_->start("decode-" + std::to_string(round));
    world().run_for(milliseconds(100));
  }
  ASSERT_TRUE(all_ended());
  for (const auto& [id, a] : cluster_->answers()) {
    EXPECT_TRUE(a.finish.has_value()) << id << ": " << (a.error ? a.error->detail : "");
    EXPECT_LT(a.longest_pause, seconds(3));
  }
  EXPECT_GT(cluster_->dispatcher().counters().resumes, 0U);
  expect_clean();
}

TEST_F(ClusterFailures, ARestartedRouterFindsEmptyNodes) {
  make(small_cluster());
  for (int i = 0; i < 6; ++i) cluster_->submit_random(100, 400);
  world().run_for(milliseconds(50));
  cluster_->restart_router();
  world().run_for(milliseconds(200));
  EXPECT_TRUE(cluster_->all_idle());
  cluster_->submit_random(100, 5);
  ASSERT_TRUE(all_ended(seconds(5)));
  expect_clean();
}

}  // namespace
}  // namespace tandem::sim

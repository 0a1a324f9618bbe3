// The pure parts of dispatch: models, index, breaker, handshake comparison, policies.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <numeric>
#include <vector>

#include "common/proto/control.pb.h"
#include "common/proto/versions.h"
#include "router/dispatch/block_hashes.h"
#include "router/dispatch/breaker.h"
#include "router/dispatch/compatibility.h"
#include "router/dispatch/prefix_affinity.h"
#include "router/dispatch/route_policy.h"
#include "router/dispatch/time_model.h"

namespace tandem::router {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Sample {
  double l, n, t;
};
// numpy.random.default_rng(7): t = 3e-5 L + 0.021 N + noise(0.01).
constexpr Sample kSamples[] = {
    Sample{1890, 190, 4.04558}, {1256, 92, 1.97078},  {1373, 339, 7.16083}, {1796, 70, 1.51163},
    {1163, 344, 7.25965},       {1554, 248, 5.26821}, {1669, 52, 1.12660},  {462, 25, 0.54745},
    {126, 182, 3.82697},        {611, 21, 0.45292},   {581, 63, 1.36043},   {1749, 209, 4.44909},
    {1826, 388, 8.19079},       {26, 190, 3.99153},   {1007, 324, 6.83998}, {1645, 367, 7.75446},
    {276, 330, 6.94511},        {1597, 254, 5.38124}, {252, 181, 3.81523},  {944, 209, 4.43171},
    {1635, 112, 2.39429},       {617, 202, 4.26254},  {693, 156, 3.29216},  {568, 105, 2.22331},
    {1443, 397, 8.36842},       {521, 12, 0.26184},   {1981, 46, 1.02347},  {899, 83, 1.77896},
    {964, 387, 8.16737},        {1017, 279, 5.87627}, {1171, 353, 7.44018}, {1114, 86, 1.84589},
    {1026, 290, 6.10086},       {1991, 152, 3.24710}, {1618, 199, 4.22657}, {1588, 9, 0.24921},
    {1405, 250, 5.29904},       {1250, 333, 7.02723}, {692, 268, 5.64507},  {1978, 68, 1.48484}};

TEST(DecodeTimeModel, AgreesWithWeightedLeastSquares) {
  DecodeTimeModel model;
  EXPECT_GT(model.predict(100, 100), 0);  // a sane prior before any answer
  for (const Sample& s : kSamples) model.observe(s.l, s.n, s.t);
  // numpy.linalg.solve(X'WX, X'Wt), W = diag(0.995^age), over the samples above.
  EXPECT_NEAR(model.a(), 2.91380106e-05, 2e-7);
  EXPECT_NEAR(model.b(), 2.10007343e-02, 2e-6);
  EXPECT_NEAR(model.predict(1000, 200), 0.029138 + 4.200147, 1e-3);
}

TEST(DecodeTimeModel, OneAnswerCorrectsThePriorAndNonsenseIsIgnored) {
  DecodeTimeModel model;
  model.observe(100, 50, 50 * 0.2);
  EXPECT_NEAR(model.predict(100, 50), 10, 0.2);
  const double before = model.predict(100, 50);
  model.observe(100, 0, 5);
  model.observe(100, 5, -1);
  model.observe(100, 5, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(model.predict(100, 50), before);
}

TEST(DecodeTimeModel, FollowsANodeThatBecomesSlower) {
  DecodeTimeModel model;
  for (int round = 0; round < 25; ++round) {
    for (const Sample& s : kSamples) model.observe(s.l, s.n, 0.01 * s.n);
  }
  for (int round = 0; round < 25; ++round) {
    for (const Sample& s : kSamples) model.observe(s.l, s.n, 0.03 * s.n);
  }
  EXPECT_NEAR(model.predict(1000, 100), 3, 0.1);
}

TEST(DecodeTimeModel, SurvivesAMillionEqualAnswers) {
  DecodeTimeModel model;  // no excitation in one direction: the covariance must not blow up
  for (int i = 0; i < 1'000'000; ++i) model.observe(100, 100, 2.0);
  EXPECT_NEAR(model.predict(100, 100), 2, 1e-3);
  for (int i = 0; i < 50; ++i) model.observe(2000, 10, 0.5);
  EXPECT_NEAR(model.predict(2000, 10), 0.5, 0.1);
}

TEST(OutputLengthModel, ExpectsWhatLongerAnswersStillHadToCome) {
  OutputLengthModel model;
  EXPECT_EQ(model.predict(0, 50), 50U);
  EXPECT_EQ(model.predict(0, 4000), 128U);
  for (uint32_t n : {10, 20, 30, 100, 100, 100, 100, 140}) model.observe(n);
  EXPECT_EQ(model.predict(0, 4000), 75U);   // mean of all eight
  EXPECT_EQ(model.predict(50, 4000), 58U);  // (4 * 50 + 90) / 5
  EXPECT_EQ(model.predict(50, 7), 7U);
  EXPECT_EQ(model.predict(0, 0), 0U);
}

TEST(BlockHashes, CoverThePrefixNotTheBlock) {
  std::vector<TokenId> tokens(64);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::vector<uint64_t> a = hash_blocks(tokens);
  ASSERT_EQ(a.size(), 4U);
  tokens[0] = 99;
  const std::vector<uint64_t> b = hash_blocks(tokens);
  for (size_t i = 0; i < 4; ++i) EXPECT_NE(a[i], b[i]);
  tokens[0] = 0;
  tokens[63] = 99;
  const std::vector<uint64_t> c = hash_blocks(tokens);
  EXPECT_EQ(c[2], a[2]);
  EXPECT_NE(c[3], a[3]);
  EXPECT_TRUE(hash_blocks(std::span(tokens).first(15)).empty());
}

TEST(PrefixAffinity, CountsLeadingBlocksPerNode) {
  PrefixAffinity index(100);
  const std::vector<uint64_t> long_prompt{1, 2, 3, 4};
  const std::vector<uint64_t> fork{1, 2, 30};
  index.insert(long_prompt, 0);
  index.insert(fork, 5);
  EXPECT_EQ(index.match(long_prompt)[0], 4U);
  EXPECT_EQ(index.match(long_prompt)[5], 2U);
  EXPECT_EQ(index.match(long_prompt)[1], 0U);
  const std::vector<uint64_t> longer{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(index.match(longer)[0], 4U);
  EXPECT_EQ(index.match({})[0], 0U);
  index.forget(0);
  EXPECT_EQ(index.match(long_prompt)[0], 0U);
  EXPECT_EQ(index.match(long_prompt)[5], 2U);
  EXPECT_EQ(index.size(), 3U);
}

TEST(PrefixAffinity, StaysWithinItsBoundAndKeepsFirstBlocksLongest) {
  PrefixAffinity index(8);
  for (uint64_t p = 0; p < 100; ++p) {
    const std::vector<uint64_t> prompt{p * 10, p * 10 + 1, p * 10 + 2};
    index.insert(prompt, p % 64);
    EXPECT_LE(index.size(), 8U);
  }
  const std::vector<uint64_t> last{990, 991, 992};
  EXPECT_EQ(index.match(last)[99 % 64], 3U);
}

TEST(Breaker, ClientErrorsAndFullNodesNeverOpenIt) {  // failures.md 22
  Breaker breaker;
  TimePoint now;
  for (int i = 0; i < 100; ++i) {
    breaker.record(classify("invalid_argument"), now);
    breaker.record(classify("unsupported"), now);
    breaker.record(classify("queue_full"), now);
    breaker.record(classify("resource_exhausted"), now);
    breaker.record(classify("cancelled"), now);
  }
  EXPECT_TRUE(breaker.allows(now));
  EXPECT_EQ(classify("transport"), Outcome::kFailure);
  EXPECT_EQ(classify("internal"), Outcome::kFailure);
  EXPECT_EQ(classify("words from a newer node"), Outcome::kFailure);
}

TEST(Breaker, OpensProbesAndCloses) {
  Breaker breaker;
  TimePoint now;
  EXPECT_FALSE(breaker.record(Outcome::kFailure, now));
  EXPECT_FALSE(breaker.record(Outcome::kFailure, now));
  breaker.record(Outcome::kSuccess, now);  // only consecutive failures count
  EXPECT_FALSE(breaker.record(Outcome::kFailure, now));
  EXPECT_FALSE(breaker.record(Outcome::kFailure, now));
  EXPECT_TRUE(breaker.record(Outcome::kFailure, now));
  EXPECT_FALSE(breaker.allows(now));
  EXPECT_EQ(breaker.state(now), BreakerState::kOpen);
  now = now + seconds(1);
  ASSERT_TRUE(breaker.allows(now));
  breaker.on_dispatch(now);
  EXPECT_FALSE(breaker.allows(now));  // one probe at a time
  EXPECT_TRUE(breaker.record(Outcome::kFailure, now));
  now = now + seconds(1);
  EXPECT_FALSE(breaker.allows(now));  // the pause has doubled
  now = now + seconds(1);
  breaker.on_dispatch(now);
  breaker.record(Outcome::kBackpressure, now);  // it answers: healthy
  EXPECT_EQ(breaker.state(now), BreakerState::kClosed);
}

TEST(Breaker, AProbeThatNeverReturnsDoesNotShutTheNodeOutForEver) {  // failures.md 12
  Breaker breaker;
  TimePoint now;
  for (int i = 0; i < 3; ++i) breaker.record(Outcome::kFailure, now);
  now = now + seconds(2);
  breaker.on_dispatch(now);
  EXPECT_FALSE(breaker.allows(now + seconds(30)));
  EXPECT_TRUE(breaker.allows(now + seconds(61)));
}

control::Hello hello() {
  control::Hello h;
  h.set_node_id("decode-0");
  h.set_transport("ucx");
  h.set_vocab_size(100);
  control::Compatibility& c = *h.mutable_compatibility();
  c.set_model_fingerprint("aa");
  c.set_tokenizer_hash("bb");
  c.set_kv_format("int8");
  c.set_kv_block_tokens(16);
  c.set_kv_layers(4);
  c.set_kv_heads(2);
  c.set_kv_head_dim(64);
  c.set_dtype("bf16");
  (*c.mutable_library_versions())["ucx"] = "1.13.1";
  return h;
}

TEST(Compatibility, EveryFieldIsComparedAndNamed) {  // failures.md 17
  EXPECT_EQ(difference(hello(), hello(), "x"), "");
  auto changed = [](auto change) {
    control::Hello h = hello();
    h.set_node_id("prefill-0");
    change(h, *h.mutable_compatibility());
    return difference(h, hello(), "decode-0");
  };
  using C = control::Compatibility;
  using H = control::Hello;
  EXPECT_EQ(changed([](H&, C& c) { c.set_kv_block_tokens(32); }),
            "the KV block size is 32 on prefill-0 but 16 on decode-0 (give both nodes the same kv "
            "section)");
  for (const std::string& text : {
           changed([](H&, C&c) { c.set_model_fingerprint("x"); }),
           changed([](H&, C&c) { c.set_tokenizer_hash("x"); }),
           changed([](H&, C&c) { c.set_kv_format("bf16"); }),
           changed([](H&, C&c) { c.set_kv_layers(5); }),
           changed([](H&, C&c) { c.set_kv_heads(1); }),
           changed([](H&, C&c) { c.set_kv_head_dim(1); }),
           changed([](H&, C&c) { c.set_kv_codec_version(9); }),
           changed([](H&, C&c) { c.set_dtype("float32"); }),
           changed([](H&, C&c) { c.set_transport_protocol_version(2); }),
           changed([](H&, C&c) { c.add_draft_models("d"); }),
           changed([](H&, C&c) { (*c.mutable_library_versions())["ucx"] = "1.16"; }),
           changed([](H&h, C&) { h.set_transport("inproc"); }),
           changed([](H&h, C&) { h.set_vocab_size(101); }),
       }) {
    EXPECT_NE(text.find("prefill-0"), text.npos) << text;
    EXPECT_NE(text.find("decode-0"), text.npos) << text;
  }
  EXPECT_EQ(changed([](H&, C& c) { (*c.mutable_library_versions())["cuda"] = "13"; }), "");
  const std::string frames =
      changed([](H&, C& c) { c.set_transport_protocol_version(proto::kKvFrameVersion - 1); });
  EXPECT_NE(frames.find("the transport protocol is " + std::to_string(proto::kKvFrameVersion - 1)),
            frames.npos)
      << frames;
}

TEST(Compatibility, OtherVersionsOfCudaAndNcclAreNamedOnBothSides) {
  const auto gpu_node = [](const char* name, const char* driver, const char* nccl) {
    control::Hello h = hello();
    h.set_node_id(name);
    auto& versions = *h.mutable_compatibility()->mutable_library_versions();
    versions["cuda_driver"] = driver;
    versions["cuda_runtime"] = "13.0";
    versions["nccl"] = nccl;
    return h;
  };
  const control::Hello decode = gpu_node("decode-0", "13.0", "2.28.9");
  EXPECT_EQ(difference(gpu_node("prefill-0", "13.0", "2.28.9"), decode, "decode-0"), "");
  EXPECT_EQ(difference(gpu_node("prefill-0", "13.1", "2.27.3"), decode, "decode-0"),
            "the version of cuda_driver is 13.1 on prefill-0 but 13.0 on decode-0 (install the "
            "same version); the version of nccl is 2.27.3 on prefill-0 but 2.28.9 on decode-0 "
            "(install the same version)");
}

NodeView prefill_view() {
  NodeView v;
  v.usable = true;
  v.max_context = 8192;
  v.max_batch_tokens = 2048;
  v.prefill_rate = 1000;
  return v;
}
NodeView decode_view() {
  NodeView v;
  v.usable = true;
  v.max_context = 8192;
  v.free_blocks = v.total_blocks = 1000;
  v.max_sequences = 8;
  v.decode_b = 0.02;
  return v;
}
RouteQuery query(uint32_t prompt) {
  RouteQuery q;
  q.prompt_tokens = prompt;
  q.predicted_new_tokens = 100;
  q.max_new_tokens = 100;
  q.decode_queue = 16;
  q.local_prefill_below = 32;
  return q;
}

TEST(PredictedFinish, HandsOverLongPromptsAndKeepsShortOnes) {
  const PredictedFinishPolicy policy;
  const std::vector<NodeView> p{prefill_view()};
  std::vector<NodeView> d{decode_view()};
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kRemote);
  EXPECT_EQ(policy.choose(query(31), p, d).kind, RouteKind::kLocalShort);
  EXPECT_EQ(policy.choose(query(32), p, d).kind, RouteKind::kRemote);
  d[0].cached_tokens = 480;
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kLocalShort);
}

TEST(PredictedFinish, PrefersTheNodeThatFinishesFirst) {
  const PredictedFinishPolicy policy;
  std::vector<NodeView> p{prefill_view(), prefill_view()};
  std::vector<NodeView> d{decode_view(), decode_view()};
  p[0].open_prefill_tokens = 1000;
  d[0].open_requests = 8;
  Route route = policy.choose(query(500), p, d);
  EXPECT_EQ(route.prefill, 1U);
  EXPECT_EQ(route.decode, 1U);
  p[1].prefill_rate = 100;  // slower than the other's backlog
  EXPECT_EQ(policy.choose(query(500), p, d).prefill, 0U);
  p[1].cached_tokens = 496;  // but it has the prefix
  EXPECT_EQ(policy.choose(query(500), p, d).prefill, 1U);
  d[1].decode_b = 0.2;
  EXPECT_EQ(policy.choose(query(500), p, d).decode, 0U);
}

TEST(PredictedFinish, BusyPrefillNodesMeanWaitingOrLocalWorkWhicheverIsSooner) {
  const PredictedFinishPolicy policy;
  std::vector<NodeView> p{prefill_view()};
  std::vector<NodeView> d{decode_view()};
  p[0].open_prefill_tokens = 2048;
  d[0].prefill_rate = 200;
  d[0].rate_learnt = true;
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kWait);  // 5 s here, 2.5 s there
  d[0].prefill_rate = 1000;
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kLocalSooner);
  d[0].open_prefill_tokens = 2500;
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kWait);
}

TEST(PredictedFinish, AnIdleDecodeNodeTakesAPromptThatWouldWaitLonger) {
  const PredictedFinishPolicy policy;
  std::vector<NodeView> p{prefill_view()};
  std::vector<NodeView> d{decode_view(), decode_view()};
  // Never prefilled: taken for as quick as the prefill node. 0.5 s, and a fifth more as a margin.
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kRemote);
  p[0].open_prefill_tokens = 95;
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kRemote);
  p[0].open_prefill_tokens = 105;
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kLocalSooner);
  // It goes where it begins soonest, even if answers are drawn a little slower there.
  d[0].open_prefill_tokens = 600;
  d[1].decode_b = 0.021;
  const Route route = policy.choose(query(500), p, d);
  EXPECT_EQ(route.kind, RouteKind::kLocalSooner);
  EXPECT_EQ(route.decode, 1U);
  // What it says of itself is of short prompts; what else it does slows it down.
  d[1].prefill_rate = 800;
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kLocalSooner);
  d[1].rate_learnt = true;
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kRemote);
  RouteQuery never = query(500);
  never.local_prefill_below = 0;
  p[0].open_prefill_tokens = 2000;
  EXPECT_EQ(policy.choose(never, p, d).kind, RouteKind::kRemote);
}

TEST(PredictedFinish, PromptsThatWaitOnADecodeNodeCount) {
  const PredictedFinishPolicy policy;
  const std::vector<NodeView> p{prefill_view()};
  std::vector<NodeView> d{decode_view(), decode_view()};
  d[0].prefill_rate = d[1].prefill_rate = 1000;
  d[0].open_prefill_tokens = 1000;
  d[1].open_requests = 1;
  EXPECT_EQ(policy.choose(query(500), p, d).decode, 1U);   // handed over
  EXPECT_EQ(policy.choose(query(500), {}, d).decode, 1U);  // prefilled there
  d[1].decode_b = 0.06;                                    // 2 s and 1 s of prompts, against 6 s
  EXPECT_EQ(policy.choose(query(500), p, d).decode, 0U);
  d[1].decode_b = 0.05;  // 5 s, but the first token comes a second sooner
  EXPECT_EQ(policy.choose(query(500), {}, d).decode, 1U);
}

TEST(PredictedFinish, ANodeThatIsNotLearntIsTriedOnceAndWithinWhatItSays) {
  const PredictedFinishPolicy policy;
  std::vector<NodeView> p{prefill_view()};
  std::vector<NodeView> d{decode_view()};
  p[0].prefill_rate = 50000;
  p[0].open_prefill_tokens = 20000;
  d[0].prefill_rate = 300;  // and it is true
  EXPECT_EQ(policy.choose(query(4000), p, d).kind, RouteKind::kWait);
  d[0].prefill_rate = 9000;
  EXPECT_EQ(policy.choose(query(4000), p, d).kind, RouteKind::kLocalSooner);
  d[0].open_prefill_tokens = 4000;  // the first trial
  EXPECT_EQ(policy.choose(query(4000), p, d).kind, RouteKind::kWait);
  // A node that takes nothing is no measure.
  d[0].open_prefill_tokens = 0;
  d[0].prefill_rate = 0;
  p[0].prefill_rate = 1000;
  p[0].open_prefill_tokens = 100;
  p.push_back(prefill_view());
  p[1].usable = false;
  p[1].prefill_rate = 1e9;
  EXPECT_EQ(policy.choose(query(4000), p, d).kind, RouteKind::kRemote);
}

TEST(PredictedFinish, AFullNodeThatIsDoneSoonerIsWaitedFor) {
  const PredictedFinishPolicy policy;
  std::vector<NodeView> p{prefill_view(), prefill_view()};
  std::vector<NodeView> d{decode_view()};
  p[0].prefill_rate = 3000;  // done in 1 s, but full
  p[0].open_prefill_tokens = 2500;
  p[1].prefill_rate = 250;  // 2 s
  d[0].prefill_rate = 424;  // 1.18 s
  d[0].rate_learnt = true;
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kWait);
  p[1].prefill_rate = 450;  // 1.1 s
  const Route route = policy.choose(query(500), p, d);
  EXPECT_EQ(route.kind, RouteKind::kRemote);
  EXPECT_EQ(route.prefill, 1U);
}

TEST(PredictedFinish, NodesMayReportAnything) {
  const PredictedFinishPolicy policy;
  std::vector<NodeView> p{prefill_view()};
  std::vector<NodeView> d{decode_view(), decode_view()};
  for (const double nonsense : {std::numeric_limits<double>::quiet_NaN(), 1e-320, 1e308, -1.0,
                                std::numeric_limits<double>::infinity()}) {
    p[0].prefill_rate = nonsense;
    d[0].prefill_rate = d[0].step_slope = d[0].decode_b = nonsense;
    d[0].open_requests = 1;
    for (const uint64_t open : {0, 500}) {
      p[0].open_prefill_tokens = d[0].open_prefill_tokens = open;
      (void)policy.choose(query(500), p, d);
      EXPECT_EQ(policy.choose(query(500), {}, d).kind, RouteKind::kLocalOnly);
    }
    std::vector<NodeView> alone{d[0]};
    EXPECT_EQ(policy.choose(query(500), {}, alone).kind, RouteKind::kLocalOnly);
  }
}

TEST(PrefillPace, IsOfTheLastPromptsAndWeighsLongOnesMore) {
  PrefillPaceModel pace;
  EXPECT_EQ(pace.per_second(), 0);
  EXPECT_FALSE(pace.observe(100, 0));  // nothing to learn from
  EXPECT_FALSE(pace.observe(63, 1));
  EXPECT_FALSE(pace.observe(100, -1));
  EXPECT_EQ(pace.observations(), 0U);
  EXPECT_TRUE(pace.observe(1000, 0.1));
  EXPECT_DOUBLE_EQ(pace.per_second(), 10000);
  pace.observe(100, 0.01);
  EXPECT_DOUBLE_EQ(pace.per_second(), 1000 / 0.1);  // 0.9 of the old, and the new
  pace.observe(640, 0.91);
  EXPECT_DOUBLE_EQ(pace.per_second(), 1540.0);
  for (int i = 0; i < 60; ++i) pace.observe(100, 0.1);
  EXPECT_NEAR(pace.per_second(), 1000, 20);
}

TEST(PredictedFinish, BothLegsOrNeither) {  // failures.md 12
  const PredictedFinishPolicy policy;
  std::vector<NodeView> p{prefill_view()};
  std::vector<NodeView> d{decode_view()};
  d[0].usable = false;
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kWait);
  d[0] = decode_view();
  d[0].free_blocks = 37;  // 500 + 100 tokens need 38
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kWait);
  d[0].free_blocks = 38;
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kRemote);
  p[0].usable = false;  // a broken prefill node alone stops nobody
  EXPECT_EQ(policy.choose(query(500), p, d).kind, RouteKind::kLocalOnly);
  EXPECT_EQ(policy.choose(query(500), {}, d).kind, RouteKind::kLocalOnly);
  EXPECT_EQ(policy.choose(query(500), p, {}).kind, RouteKind::kWait);
  d[0].open_requests = 24;
  EXPECT_EQ(policy.choose(query(500), {}, d).kind, RouteKind::kWait);
}

TEST(PredictedFinish, PastTheDeadlineTheDecodeNodePrefills) {
  const PredictedFinishPolicy policy;
  std::vector<NodeView> p{prefill_view()};
  std::vector<NodeView> d{decode_view()};
  RouteQuery q = query(500);
  q.force_local = true;
  EXPECT_EQ(policy.choose(q, p, d).kind, RouteKind::kLocalForced);
  d[0].free_blocks = 0;  // it may queue what it could hold later
  EXPECT_EQ(policy.choose(q, p, d).kind, RouteKind::kLocalForced);
  d[0].total_blocks = 20;
  EXPECT_EQ(policy.choose(q, p, d).kind, RouteKind::kWait);
}

TEST(PredictedFinish, ScoringAndOneTokenNeedNoDecodeNode) {
  const PredictedFinishPolicy policy;
  std::vector<NodeView> p{prefill_view()};
  RouteQuery q = query(500);
  q.max_new_tokens = 1;
  EXPECT_EQ(policy.choose(q, p, {}).kind, RouteKind::kPrefillOnly);
  q.max_new_tokens = 0;
  EXPECT_EQ(policy.choose(q, p, {}).kind, RouteKind::kPrefillOnly);
  const std::vector<NodeView> d{decode_view()};
  EXPECT_EQ(policy.choose(q, {}, d).kind, RouteKind::kLocalOnly);
}

TEST(RoundRobin, TakesTurnsAmongThoseThatCan) {
  const RoundRobinPolicy policy;
  std::vector<NodeView> p{prefill_view(), prefill_view()};
  std::vector<NodeView> d{decode_view(), decode_view(), decode_view()};
  d[1].usable = false;
  std::array<int, 3> hits{};
  for (uint64_t i = 0; i < 12; ++i) {
    RouteQuery q = query(500);
    q.sequence = i;
    const Route route = policy.choose(q, p, d);
    ASSERT_EQ(route.kind, RouteKind::kRemote);
    EXPECT_EQ(route.prefill, i % 2);
    ++hits[route.decode];
  }
  EXPECT_GT(hits[0], 0);
  EXPECT_EQ(hits[1], 0);
  EXPECT_GT(hits[2], 0);
}

}  // namespace
}  // namespace tandem::router

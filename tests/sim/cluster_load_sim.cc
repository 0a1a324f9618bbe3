// Clusters under a replayed trace: how long answers take to begin and to go on, by the number of
// nodes of each kind and by the router's decisions. Steps cost what they cost on a GPU, and nodes
// that share a card slow each other down.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/sim/cluster.h"

namespace tandem::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct TraceRow {
  double at = 0;  // seconds from the first
  uint32_t prompt = 0, answer = 0;
};

// The first `count` requests of Azure's conversation trace.
std::vector<TraceRow> conversation_trace(size_t count) {
  std::ifstream in(std::filesystem::path(TANDEM_TEST_DATA) / "traces" / "azure_conv_2023.csv");
  std::string line;
  std::getline(in, line);
  std::vector<TraceRow> rows;
  double first = 0;
  while (rows.size() < count && std::getline(in, line)) {
    int hour = 0, minute = 0;
    double second = 0;
    unsigned prompt = 0, answer = 0;
    if (std::sscanf(line.c_str(), "%*d-%*d-%*d %d:%d:%lf,%u,%u", &hour, &minute, &second, &prompt,
                    &answer) != 5) {
      ADD_FAILURE() << "not a line of the trace: " << line;
      break;
    }
    const double at = hour * 3600 + minute * 60 + second;
    if (rows.empty()) first = at;
    rows.push_back({at - first, prompt, std::clamp(answer, 2U, 512U)});
  }
  return rows;
}

// 500 and 30 ms for a chat with the whole model, halved with its layers.
constexpr double kSloTtft = 250, kSloItl = 15;  // milliseconds; ITL: the mean of an answer

struct Setup {
  int prefills = 0, decodes = 2;
  int cards = 2;             // prefill nodes from the first on, decode nodes from the last on
  double time_scale = 0.02;  // of the trace
  size_t requests = 300;
  bool fallback = true;
};

struct Outcome {
  double ttft_p50 = 0, ttft_p99 = 0, itl_p50 = 0,
         itl_p99 = 0;     // milliseconds; ITL: an answer's mean
  double within_slo = 0;  // share
  uint64_t local = 0, remote = 0;
};

// Steps of Qwen2-7B's shape with 14 layers on an H200: decoding reads the weights, prompts compute.
class Cards {
 public:
  explicit Cards(int cards) : cards_(cards) {}
  const World* world = nullptr;

  Duration cost(const std::string& node, const node::StepJob& job) {
    size_t prompt_rows = 0, decoding = 0;
    for (const auto& s : job.sequences) {
      if (s.tokens.size() > 1) {
        prompt_rows += s.tokens.size();
      } else {
        ++decoding;
      }
    }
    Duration alone = microseconds(400) + microseconds(10) * prompt_rows;
    if (decoding > 0) {
      alone = microseconds(prompt_rows > 0 ? 1600 : 2200) + microseconds(10) * prompt_rows +
              microseconds(15) * decoding;
    }
    const int index = std::stoi(node.substr(node.find('-') + 1));
    const int card = node.starts_with("prefill") ? index % cards_ : (cards_ - 1 - index % cards_);
    const TimePoint now = world->now();
    int busy = 1;
    for (const auto& [name, until] : busy_[card]) busy += name != node && until > now ? 1 : 0;
    busy_[card][node] = now + alone * busy;
    return alone * busy;
  }

 private:
  int cards_;
  std::map<int, std::map<std::string, TimePoint>> busy_;
};

ClusterOptions options_of(const Setup& setup, const std::shared_ptr<Cards>& cards) {
  NodeOptions node;
  node.layout =
      kv::KvLayout{.layers = 1, .kv_heads = 1, .head_dim = 16, .format = kv::KvFormat::kBf16};
  node.blocks = 40000;
  node.tails = 600;
  node.max_context = 8192;
  node.prefix_cache = false;
  node.prefill.chunk_tokens = 512;
  node.decode.max_sequences = 192;
  node.decode.chunk_tokens = 512;
  node.step_cost = [cards](const std::string& name, const node::StepJob& job) {
    return cards->cost(name, job);
  };
  node.make_step = [](const engine::KvPages&) {
    return node::StepFunction(
        [](auto sequences, const auto& hook) -> Result<std::vector<engine::SequenceOutput>> {
          if (hook) hook(0);
          std::vector<engine::SequenceOutput> out(sequences.size());
          for (auto& o : out) o.token = engine::SampledToken{};
          return out;
        });
  };
  ClusterOptions options;
  options.prefills = setup.prefills;
  options.decodes = setup.decodes;
  options.prefill = options.decode = node;
  options.dispatch.local_prefill_below = setup.fallback ? 32 : 0;
  options.dispatch.queue_deadline = setup.fallback ? seconds(3) : seconds(600);
  options.dispatch.queue_capacity = 4096;
  return options;
}

double percentile(std::vector<double> values, double p) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(p * static_cast<double>(values.size() - 1))];
}

Outcome replay(const Setup& setup) {
  auto cards = std::make_shared<Cards>(setup.cards);
  Cluster cluster(options_of(setup, cards));
  cards->world = &cluster.world;
  for (int i = 0; i < 4 * (setup.prefills + setup.decodes); ++i) cluster.submit_random(64, 4);
  EXPECT_TRUE(cluster.world.run_until([&] { return cluster.open() == 0; }, seconds(60)));
  cluster.world.run_for(milliseconds(200));
  const auto before = cluster.dispatcher().counters();
  const size_t warm = cluster.answers().size();
  for (const TraceRow& row : conversation_trace(setup.requests)) {
    cluster.world.after(from_seconds(row.at * setup.time_scale),
                        [&cluster, row] { cluster.submit_random(row.prompt, row.answer); });
  }
  cluster.world.run_for(milliseconds(1));
  EXPECT_TRUE(cluster.world.run_until(
      [&] { return cluster.answers().size() == warm + setup.requests && cluster.open() == 0; },
      seconds(600)));
  std::vector<double> ttft, itl;
  size_t good = 0;
  for (const auto& [id, a] : cluster.answers()) {
    if (id <= warm) continue;
    EXPECT_FALSE(a.error) << a.error->to_string();
    if (a.error || !a.first_token) continue;
    ttft.push_back(1e3 * to_seconds(*a.first_token - a.submitted));
    itl.push_back(1e3 * to_seconds(a.ended_at - *a.first_token) /
                  static_cast<double>(a.tokens.size() - 1));
    good += ttft.back() <= kSloTtft && itl.back() <= kSloItl ? 1 : 0;
  }
  const auto& after = cluster.dispatcher().counters();
  return {.ttft_p50 = percentile(ttft, 0.5),
          .ttft_p99 = percentile(ttft, 0.99),
          .itl_p50 = percentile(itl, 0.5),
          .itl_p99 = percentile(itl, 0.99),
          .within_slo = static_cast<double>(good) / static_cast<double>(setup.requests),
          .local = after.local_predicted - before.local_predicted,
          .remote = after.remote - before.remote};
}

struct Topology {
  const char* name;
  int prefills, decodes;
};

// 102 requests a second: what two such cards can just do.
class ClusterLoadSim : public ::testing::TestWithParam<Topology> {
 protected:
  static Outcome with(int prefills, int decodes, bool fallback = true) {
    const Outcome o = replay(
        {.prefills = prefills, .decodes = decodes, .time_scale = 0.035, .fallback = fallback});
    std::printf(
        "%dP%dD%s: TTFT %.1f / %.1f ms, ITL %.2f / %.2f ms, %.1f %% within the SLO, %llu prompts "
        "prefilled where they are answered, %llu handed over\n",
        prefills, decodes, fallback ? "" : " without fallback", o.ttft_p50, o.ttft_p99, o.itl_p50,
        o.itl_p99, 100 * o.within_slo, static_cast<unsigned long long>(o.local),
        static_cast<unsigned long long>(o.remote));
    return o;
  }
};

TEST_P(ClusterLoadSim, FallbackKeepsTheGoodputOfAsManyColocatedNodes) {
  const auto [name, prefills, decodes] = GetParam();
  const Outcome colocated = with(0, prefills + decodes);
  const Outcome apart = with(prefills, decodes);
  EXPECT_GT(colocated.within_slo, 0.97);
  EXPECT_GT(apart.within_slo, 0.97 * colocated.within_slo);
  EXPECT_GT(apart.remote, 0U);
  EXPECT_GT(apart.local, 0U);
  // What the fallback is for: these prefill nodes alone cannot compute that many prompts.
  if (prefills == 1) {
    EXPECT_LT(with(prefills, decodes, false).within_slo, 0.5);
  }
}

INSTANTIATE_TEST_SUITE_P(TwoCards, ClusterLoadSim,
                         ::testing::Values(Topology{"1P1D", 1, 1}, Topology{"2P1D", 2, 1},
                                           Topology{"1P2D", 1, 2}, Topology{"2P2D", 2, 2}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace tandem::sim

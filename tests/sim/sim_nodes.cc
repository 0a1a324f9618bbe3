#include "tests/sim/sim_nodes.h"

#include <utility>

#include "common/base/check.h"

namespace tandem::sim {
namespace {

std::unique_ptr<node::KvStore> make_store(const NodeOptions& o) {
  auto store = node::KvStore::create({.pool = {.layout = o.kv_layout(),
                                               .blocks = o.blocks,
                                               .tails = o.kv_layout().needs_tail() ? o.tails : 0,
                                               .memory = {.huge_pages = false},
                                               .poison = true},
                                      .prefix_cache = o.prefix_cache});
  TANDEM_CHECK(store.has_value(), store.error().to_string());
  return std::move(*store);
}

}  // namespace

kv::KvLayout NodeOptions::kv_layout() const {
  if (layout) return *layout;
  return {.layers = layers, .kv_heads = 1, .head_dim = 64, .format = format};
}

SimNode::SimNode(World& world, SimNetwork& network, std::string name, uint64_t generation,
                 const NodeOptions& options)
    : world_(world),
      name_(std::move(name)),
      generation_(generation),
      options_(options),
      kv_(make_store(options)),
      engine_(std::make_unique<LedgerEngine>(kVocab, kv_->pages())) {
  const std::string address = name_ + "#" + std::to_string(generation);
  if (options.hub != nullptr) {
    transport_ = options.hub->create(
        address, {.self = generation_, .clock = world.clock(), .events = *this, .limits = {}});
  } else {
    auto wire = std::make_unique<SimTransport>(network, address, generation_);
    wire->events = this;
    wire_ = wire.get();
    transport_ = std::move(wire);
  }
  executor_ = std::make_unique<SimExecutor>(
      world,
      options.make_step ? options.make_step(kv_->pages())
                        : node::StepFunction([this](auto sequences, const auto& hook) {
                            return engine_->step(sequences, hook);
                          }),
      [this](const node::StepJob& job) {
        Duration cost = options_.step_base;
        for (const auto& s : job.sequences) {
          cost += options_.step_row * static_cast<int64_t>(s.tokens.size());
        }
        return cost;
      });
}

SimNode::~SimNode() { *alive_ = false; }

void SimNode::start(std::unique_ptr<node::Scheduler> scheduler) {
  scheduler_ = std::move(scheduler);
  executor_->sink = [this](node::StepResult r) { scheduler_->on_step(std::move(r)); };
  keep_ticking();
}

void SimNode::keep_ticking() {
  world_.after(options_.tick, [this, alive = alive_] {
    if (!*alive) return;
    scheduler_->tick();
    keep_ticking();
  });
}

SimPrefill::SimPrefill(World& world, SimNetwork& network, std::string name, uint64_t generation,
                       const NodeOptions& options)
    : SimNode(world, network, std::move(name), generation, options) {
  auto o = options.prefill;
  o.limits = {.vocab = options.vocab, .max_context = options.max_context};
  start(std::make_unique<prefill::PrefillScheduler>(
      prefill::PrefillScheduler::Deps{.clock = world.clock(),
                                      .kv = *kv_,
                                      .transport = *transport_,
                                      .executor = *executor_,
                                      .metrics = registry_,
                                      .send =
                                          [this](control::ToRouter m) {
                                            if (to_router) to_router(std::move(m));
                                          }},
      o));
}

SimDecode::SimDecode(World& world, SimNetwork& network, std::string name, uint64_t generation,
                     const NodeOptions& options)
    : SimNode(world, network, std::move(name), generation, options) {
  auto o = options.decode;
  o.limits = {.vocab = options.vocab, .max_context = options.max_context};
  start(std::make_unique<decode::DecodeScheduler>(
      decode::DecodeScheduler::Deps{.clock = world.clock(),
                                    .kv = *kv_,
                                    .transport = *transport_,
                                    .executor = *executor_,
                                    .metrics = registry_,
                                    .send =
                                        [this](control::ToRouter m) {
                                          if (to_router) to_router(std::move(m));
                                        }},
      o));
}

control::Task make_task(uint64_t id, const LedgerRequest& r) {
  control::Task task;
  task.set_request_id(id);
  task.mutable_tokens()->Add(r.prompt.begin(), r.prompt.end());
  task.set_prompt_tokens(static_cast<uint32_t>(r.prompt.size()));
  task.set_max_new_tokens(r.max_new_tokens);
  task.set_min_new_tokens(r.min_new_tokens);
  task.mutable_stop_tokens()->Add(r.stop_tokens.begin(), r.stop_tokens.end());
  auto& sampling = *task.mutable_sampling();
  sampling.set_top_p(1);
  sampling.set_repetition_penalty(1);
  sampling.set_seed(r.seed);
  sampling.set_logprobs(-1);
  task.set_prompt_logprobs(-1);
  return task;
}

std::vector<TokenId> random_prompt(World& world, size_t tokens) {
  std::vector<TokenId> prompt(tokens);
  for (auto& t : prompt) t = static_cast<TokenId>(world.draw(0, kVocab - 1));
  return prompt;
}

}  // namespace tandem::sim

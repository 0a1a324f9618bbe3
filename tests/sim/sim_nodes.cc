#include "tests/sim/sim_nodes.h"

#include <utility>

#include "common/base/check.h"

namespace tandem::sim {
namespace {

std::unique_ptr<node::KvStore> make_store(const kv::KvLayout& layout, uint32_t blocks,
                                          uint32_t tails, bool prefix_cache) {
  auto store = node::KvStore::create({.pool = {.layout = layout,
                                               .blocks = blocks,
                                               .tails = layout.needs_tail() ? tails : 0,
                                               .memory = {.huge_pages = false},
                                               .poison = true},
                                      .prefix_cache = prefix_cache});
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
      kv_(make_store(options.kv_layout(), options.blocks, options.tails, options.prefix_cache)),
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
  executor_ = make_executor(kv_->pages(), *engine_, 1);
}

std::unique_ptr<SimExecutor> SimNode::make_executor(const engine::KvPages& pages,
                                                    LedgerEngine& engine, int slowdown) {
  return std::make_unique<SimExecutor>(
      world_,
      options_.make_step ? options_.make_step(pages)
                         : node::StepFunction([&engine](auto sequences, const auto& hook) {
                             return engine.step(sequences, hook);
                           }),
      [this, slowdown](const node::StepJob& job) {
        if (options_.step_cost) return options_.step_cost(name_, job) * slowdown;
        Duration cost = options_.step_base;
        for (const auto& s : job.sequences) {
          cost += options_.step_row * static_cast<int64_t>(s.tokens.size());
        }
        return cost * slowdown;
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
  const auto tail = make_tail();
  start(std::make_unique<decode::DecodeScheduler>(
      decode::DecodeScheduler::Deps{.clock = world.clock(),
                                    .device = {.kv = *kv_, .executor = *executor_},
                                    .tail = tail,
                                    .transport = *transport_,
                                    .metrics = registry_,
                                    .send =
                                        [this](control::ToRouter m) {
                                          if (to_router) to_router(std::move(m));
                                        }},
      o));
}

SimDecode::~SimDecode() { scheduler_.reset(); }  // holds blocks of both pools

std::optional<decode::CpuTail> SimDecode::make_tail() {
  if (options_.tail_blocks == 0) return std::nullopt;
  kv::KvLayout layout = options_.kv_layout();
  layout.format = options_.tail_format.value_or(layout.format);
  tail_kv_ = make_store(layout, options_.tail_blocks, options_.tails, false);
  tail_engine_ = std::make_unique<LedgerEngine>(kVocab, tail_kv_->pages());
  tail_executor_ = make_executor(tail_kv_->pages(), *tail_engine_, options_.tail_slowdown);
  tail_executor_->sink = [this](node::StepResult r) { scheduler_->on_step(std::move(r)); };
  mover_ = std::make_unique<SimMover>(
      world_, node::least_staging(kv_->layout(), tail_kv_->layout()), options_.move_batch);
  mover_->sink = [this](node::MoveResult r) { scheduler_->on_moved(std::move(r)); };
  return decode::CpuTail{.lane = {.kv = *tail_kv_, .executor = *tail_executor_}, .mover = *mover_};
}

uint32_t SimDecode::blocks_used() const {
  return SimNode::blocks_used() + (tail_kv_ ? tail_kv_->usage().used : 0);
}

uint64_t SimDecode::mismatches() const {
  return SimNode::mismatches() + (tail_engine_ ? tail_engine_->mismatches() : 0);
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

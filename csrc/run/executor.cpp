// Epochs, as their callers see them.
#include "run/executor.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

#include "draft/heads_drafter.h"
#include "draft/model_drafter.h"
#include "ops/head.h"
#include "run/pass_check.h"
#include "run/worker_loop.h"

namespace monolane {

namespace {

Seat seat_of(const Setup& setup) {
  return {.rank = setup.rank,
          .ranks = setup.ranks,
          .segment = setup.segment,
          .apart = setup.apart != 0,
          .delay_ns = setup.delay_ns,
          .timed = setup.timed != 0};
}

}  // namespace

Executor::Executor(Plan plan, const Setup& setup, ModelWeights weights, const Kernels& kernels,
                   const std::vector<int>& cores)
    : forward_(std::move(plan), seat_of(setup), std::move(weights), kernels,
               static_cast<Activation>(setup.activation), static_cast<Format>(setup.kv_format),
               setup.max_sequences),
      scheduler_(forward_, setup.max_sequences),
      threads_(forward_.exchange.workers(), cores) {
  const Exchange& exchange = forward_.exchange;
  const ExpertFile experts = {.file = setup.expert_file,
                              .memory = static_cast<size_t>(setup.expert_memory)};
  std::optional<size_t> memory;  // of each worker, for experts
  if (experts.file >= 0) memory = experts.memory / exchange.workers();
  for (int i = 0; i < exchange.workers(); ++i) {
    workers_.push_back(std::make_unique<Worker>(forward_, exchange.first_worker() + i, memory));
  }
  loader_ = std::make_unique<WeightLoader>(forward_, workers_, threads_, experts);
  saved_ = std::make_unique<SavedSequences>(forward_, *workers_.front(),
                                            [this](const Chore& chore) { run_chore(chore); });
  // Other ranks' workers have no logits, and a timed pass takes the time that it is told.
  // And where there are more workers than processors, they are asleep when they wait.
  const bool help = setup.ranks == 1 && !setup.timed && exchange.spins();
  scheduler_.set_leader(*workers_.front(), help ? exchange.workers() - 1 : 0);
}

Executor::~Executor() {
  if (following_) {
    forward_.exchange.stop();
    return;
  }
  interrupt();
  std::vector<TokenEvent> dropped;
  while (!take(dropped, 1)) dropped.clear();  // a full ring must not hold the leader up
}

void Executor::work_on(int worker) { work(forward_, *workers_[worker], scheduler_, trace_); }

void Executor::connect(const std::vector<int>& sockets, int64_t patience_ns) {
  forward_.exchange.connect(sockets, patience_ns, [this](const Pass& pass) {
    const Worker& first = *workers_.front();
    check_pass(pass, {.plan = forward_.plan,
                      .slots = forward_.sequences.slots(),
                      .states = forward_.states.any(),
                      .cache = forward_.cache,
                      .kept = first.kept,
                      .heads = {first.group, forward_.plan.header.groups}});
  });
}

// Of a worker that throws here rank 0 is told where ranks are apart, and may join this one again.
// Else it ends its process, which rank 0 sees as it sees any rank that is lost.
void Executor::follow() {
  following_ = true;
  threads_.start([this](int worker) {
    try {
      while (!forward_.exchange.given_up()) work_on(worker);
    } catch (const std::exception& error) {
      if (!forward_.exchange.give_up(error.what())) throw;
    }
  });
}

bool Executor::follows(int milliseconds) {
  return !threads_.join_for(int64_t{milliseconds} * 1'000'000);
}

void Executor::check_idle(const char* what) const {
  if (in_epoch_) {
    throw std::logic_error(std::string(what) + ": an epoch is running; stop it first");
  }
}

bool Executor::is_free(int slot) const {
  forward_.sequences.length(slot);  // throws where there is no such slot
  return scheduler_.is_free(slot);
}

Sequences& Executor::sequences(const char* what, int slot) {
  if (is_free(slot)) return forward_.sequences;
  throw std::logic_error(std::string(what) + ": an epoch uses this slot; stop it first");
}

void Executor::begin(std::vector<Advance> advances, bool open) {
  if (in_epoch_) throw std::logic_error("an epoch is running; read it to its end or stop it first");
  check_failed();
  check_loaded();
  scheduler_.begin_epoch(std::move(advances), open);
  in_epoch_ = true;
  scheduler_.ring().begin();
  threads_.start([this](int worker) {
    work_or_fail(worker);
    if (worker == 0) scheduler_.ring().push_end();
  });
}

void Executor::end() {
  if (in_epoch_) scheduler_.free_slots();
  in_epoch_ = false;
}

// Of one that fails, the others' waits end, too, and so does the executor's use.
void Executor::work_or_fail(int worker) {
  try {
    work_on(worker);
  } catch (...) {
    if (!failed_.exchange(true)) failure_ = std::current_exception();
    forward_.exchange.stop();
  }
}

void Executor::take_part(int worker) {
  try {
    work_on(worker);
  } catch (...) {
    forward_.exchange.stop();  // or the others would wait in here for this one
    throw;
  }
}

// In an epoch of no rows, by every group of every rank. Other ranks may be at it still when this
// returns: their part of the next epoch comes behind it.
void Executor::run_chore(const Chore& chore) {
  check_failed();
  scheduler_.begin_chore(chore);
  threads_.start([this](int worker) { work_or_fail(worker); });
  threads_.join();
  scheduler_.end_chore();
  check_failed();
}

void Executor::check_loaded() const {
  if (loader_->left() > 0) {
    throw std::logic_error("weights: expected every matrix to be converted");
  }
}

void Executor::check_failed() const {
  if (failed_) std::rethrow_exception(failure_);
}

void Executor::prepare(std::vector<Advance> advances, OnToken on_token) {
  check_loaded();
  scheduler_.begin_epoch(std::move(advances), false, std::move(on_token));
}

void Executor::set_draft_model(Executor& model) {
  check_idle("draft model");
  const bool alone = forward_.exchange.ranks() == 1 && model.forward_.exchange.ranks() == 1;
  if (!alone || model.workers_.size() != workers_.size() ||
      model.forward_.sequences.slots() != forward_.sequences.slots() ||
      model.scheduler_.joint() != nullptr || &model == this) {
    throw std::invalid_argument(
        "draft model: expected one of its own, in one rank, with the same workers and slots");
  }
  if (reads_states(model.header()) && model.header().hidden != plan().header.hidden) {
    throw std::invalid_argument("draft model: expected states of " +
                                std::to_string(model.header().hidden) + " columns, got " +
                                std::to_string(plan().header.hidden));
  }
  scheduler_.speculation().set_joint(
      std::make_unique<ModelDrafter>(model, forward_.sequences.slots(), plan().header.vocab));
}

void Executor::set_heads(const HeadsWeights& heads) {
  check_idle("heads");
  const PlanHeader& h = plan().header;
  if (forward_.exchange.ranks() != 1 || heads.hidden != h.hidden || heads.vocab != h.vocab) {
    throw std::invalid_argument(
        "heads: expected those of a model with " + std::to_string(h.hidden) +
        " hidden columns and " + std::to_string(h.vocab) + " tokens, in one rank, got " +
        std::to_string(heads.hidden) + " and " + std::to_string(heads.vocab));
  }
  scheduler_.speculation().set_joint(std::make_unique<HeadsDrafter>(
      forward_.kernels, forward_.weights.embedding, heads, static_cast<int>(workers_.size()),
      forward_.sequences.slots()));
}

void Executor::add_adapter(int adapter, int64_t layer, WeightRole role, LowRank part) {
  check_idle("adapter");
  if (forward_.exchange.ranks() != 1) {
    throw std::invalid_argument("adapter: expected one rank, got several");
  }
  forward_.adapters.add(adapter, layer, role, std::move(part));
  const int64_t rank = forward_.adapters.highest_rank();
  for (const std::unique_ptr<Worker>& worker : workers_) {
    worker->adapter_room.reserve(forward_.plan, forward_.kernels, rank);
  }
}

void Executor::give_adapter(int slot, int adapter) {
  if (const int64_t held = sequences("adapter", slot).length(slot); held > 0) {
    throw std::invalid_argument("adapter: expected an empty slot, got one with " +
                                std::to_string(held) + " tokens");
  }
  forward_.adapters.give(slot, adapter);
}

// Where the stream is read, for who drafts by that: before some layers of the model.
std::vector<Tap> Executor::tap_layers(const std::vector<int>& layers, int64_t streams,
                                      int64_t hidden) const {
  check_idle("heads");
  const PlanHeader& h = plan().header;
  if (forward_.exchange.ranks() != 1 || h.lanes != 1 || hidden != h.hidden ||
      static_cast<int64_t>(layers.size()) != streams) {
    throw std::invalid_argument(
        "heads: expected those of a model with " + std::to_string(h.hidden) +
        " hidden columns, by " + std::to_string(streams) +
        " of its streams, in one rank and one lane, got " + std::to_string(hidden) +
        " columns and " + std::to_string(layers.size()) + " streams, " +
        std::to_string(forward_.exchange.ranks()) + " ranks and " + std::to_string(h.lanes) +
        " lanes");
  }
  std::vector<Tap> taps;
  for (const int layer : layers) {
    const auto& phases = plan().phases;
    const auto first = std::find_if(phases.begin(), phases.end(),
                                    [&](const PlanPhase& phase) { return phase.layer == layer; });
    if (layer < 0 || first == phases.end()) {
      throw std::invalid_argument("heads: expected layers of the model, got " +
                                  std::to_string(layer));
    }
    const int64_t bytes = h.max_width * h.hidden * static_cast<int64_t>(sizeof(float));
    taps.push_back({first - phases.begin(), std::make_unique<Arena>(static_cast<size_t>(bytes))});
  }
  return taps;
}

void Executor::set_eagle(const EagleWeights& weights, const std::vector<int>& layers) {
  std::vector<Tap> taps = tap_layers(layers, kEagleStreams, weights.shape.hidden);
  scheduler_.speculation().set_joint(std::make_unique<EagleDrafter>(
      forward_.kernels, forward_.weights.embedding, weights, static_cast<int>(workers_.size()),
      forward_.sequences.slots(), plan().header.context));
  forward_.taps = std::move(taps);
}

void Executor::set_dflash(const DflashWeights& weights, const std::vector<int>& layers) {
  std::vector<Tap> taps = tap_layers(layers, weights.streams, weights.shape.hidden);
  const PlanHeader& h = plan().header;
  const auto phase = std::ranges::find(plan().phases, PhaseKind::kHead, &PlanPhase::kind);
  const auto head = [this, phase](int worker, const float* normed, int64_t rows, float* logits) {
    run_head_alone(forward_, *workers_[worker], *phase, normed, rows, logits);
  };
  scheduler_.speculation().set_joint(std::make_unique<DflashDrafter>(
      forward_.kernels, forward_.weights.embedding, h.embedding_scale, head, weights,
      static_cast<int>(workers_.size()), forward_.sequences.slots(), h.context));
  forward_.taps = std::move(taps);
}

void Executor::set_assistant(AssistantWeights weights) {
  check_idle("assistant");
  const PlanHeader& h = plan().header;
  if (forward_.exchange.ranks() != 1 || h.lanes != 1) {
    throw std::invalid_argument("assistant: expected a model in one rank and one lane, got " +
                                std::to_string(forward_.exchange.ranks()) + " ranks and " +
                                std::to_string(h.lanes) + " lanes");
  }
  for (const AssistantLayer& layer : weights.layers) {
    const auto fits = [&](const PlanModule& module) {
      const PlanAttention& a = module.attention;
      return module.layer == layer.keys_of && a.heads > 0 && a.keys_of < 0 && a.chunked == 0 &&
             module.latent.rank == 0 && a.kv_heads == layer.kv_heads &&
             a.head_dim == layer.head_dim && a.window == layer.window;
    };
    if (std::ranges::none_of(plan().modules, fits)) {
      throw std::invalid_argument(
          "assistant: expected a layer of the model that keeps keys of its own, in " +
          std::to_string(layer.kv_heads) + " heads of " + std::to_string(layer.head_dim) +
          " with a window of " + std::to_string(layer.window) + ", got layer " +
          std::to_string(layer.keys_of));
    }
  }
  scheduler_.speculation().set_joint(std::make_unique<AssistantDrafter>(
      forward_.kernels, forward_.activation, forward_.weights.embedding, h.embedding_scale,
      forward_.sequences, std::move(weights), static_cast<int>(workers_.size())));
}

void Executor::start(std::vector<Advance> advances) { begin(std::move(advances), true); }

void Executor::logits(int slot, std::vector<int32_t> tokens, std::vector<float> states,
                      float* out) {
  check_idle("logits");  // before the leader of a running epoch sees where they would go
  finish(slot, std::move(tokens), std::move(states), out, nullptr);
}

void Executor::hidden(int slot, std::vector<int32_t> tokens, std::vector<float> states,
                      float* out) {
  check_idle("hidden");
  finish(slot, std::move(tokens), std::move(states), nullptr, out);
}

// One slot's tokens from the first pass to the last, all rows of which are wanted.
void Executor::finish(int slot, std::vector<int32_t> tokens, std::vector<float> states,
                      float* logits, float* hidden) {
  struct Forget {
    PassScheduler& scheduler;
    ~Forget() { scheduler.set_outputs(nullptr, nullptr); }
  } forget{scheduler_};
  scheduler_.set_outputs(logits, hidden);
  begin({Advance{.slot = slot, .tokens = std::move(tokens), .states = std::move(states)}}, false);
  threads_.join();
  std::vector<TokenEvent> none;
  scheduler_.ring().take(none);  // the end
  end();
  check_failed();
  if (!scheduler_.fed_all() && forward_.exchange.lost() < 0) {
    throw std::logic_error("logits, hidden: expected no `interrupt` while they are computed");
  }
}

bool Executor::read(std::vector<TokenEvent>& events, int milliseconds) {
  const bool over = take(events, milliseconds);
  if (over) check_failed();
  return over;
}

bool Executor::take(std::vector<TokenEvent>& events, int milliseconds) {
  const int64_t deadline = now_ns() + int64_t{milliseconds} * 1'000'000;
  for (;;) {
    const bool over = !in_epoch_ || threads_.finished();  // before taking: later there come no more
    scheduler_.ring().take(events);
    if (over) {
      end();
      return true;
    }
    if (!events.empty() || now_ns() >= deadline) return false;
    const int64_t left = deadline - now_ns();
    if (scheduler_.ring().ended()) {  // but some workers are not through with it
      threads_.join_for(left);
    } else {
      scheduler_.ring().await_token(left);
    }
  }
}

void Executor::set_trace(bool on) {
  check_idle("trace");
  trace_ = on;
}

std::vector<Span> Executor::take_spans() {
  check_idle("trace");
  std::vector<Span> all;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    all.insert(all.end(), worker->spans.begin(), worker->spans.end());
    worker->spans.clear();
  }
  return all;
}

}  // namespace monolane

// Loading, and epochs as their callers see them.
#include "run/executor.h"

#include <fcntl.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "draft/model_drafter.h"
#include "ops/worker.h"

namespace monolane {
namespace {

// Tokens in flight towards Python before the decode waits for it: seconds of decoding.
constexpr uint32_t kRingEvents = 4096;

// Of each layer, as KvCache reads it.
std::vector<int64_t> windows_of(const Plan& plan) {
  std::vector<int64_t> windows(plan.header.layers, -1);
  for (const PlanPhase& phase : plan.phases) {
    if (phase.kind == PhaseKind::kAttend) windows.at(phase.layer) = phase.window;
  }
  return windows;
}

auto gate_up_of(const Kernels& kernels, GateActivation activation) {
  switch (activation) {
    case GateActivation::kGeluTanh:
      return kernels.gelu_tanh_times;
    case GateActivation::kClampedSwiglu:
      return kernels.clamped_swiglu;
    default:
      return kernels.silu_times;
  }
}

// Codes are made by the worker that has a group: a share must not begin or end amid one.
void check_cache_format(const Plan& plan, Format format) {
  const int64_t group = is_cached(format) ? column_step(format) : 0;
  bool whole = group > 0 && plan.header.head_dim % group == 0;
  for (const PlanPhase& phase : plan.phases) {
    if (phase.kind != PhaseKind::kQkv) continue;
    for (int32_t i = 0; i < phase.num_matrices && whole; ++i) {
      const PlanMatrix& matrix = phase.matrices[i];
      if (matrix.role == WeightRole::kQ) continue;
      for (int32_t w = 0; w < plan.header.workers; ++w) {
        whole = whole && plan.share(matrix.share, w).begin % group == 0;
      }
    }
  }
  if (!whole) throw std::invalid_argument("the plan is not one for this format of keys and values");
}

}  // namespace

Executor::Executor(Plan plan, const Seat& seat, ModelWeights weights, const Kernels& kernels,
                   Activation activation, Format kv_format, int slots,
                   const std::vector<int>& cores, const ExpertFile& experts)
    : plan_(std::move(plan)),
      weights_(std::move(weights)),
      kernels_(kernels),
      activation_(activation),
      gate_up_(gate_up_of(kernels, plan_.header.activation)),
      exchange_(plan_, seat),
      cache_(windows_of(plan_), int64_t{plan_.header.kv_heads} / seat.ranks * seat.rank,
             plan_.header.kv_heads / seat.ranks, plan_.header.head_dim,
             plan_.header.latent > 0 ? 1 : 2, plan_.header.context, plan_.header.max_width, slots,
             kv_format),
      states_(plan_, slots),
      lengths_(slots),
      highest_(slots, 0),
      restored_(slots, 0),
      pass_(exchange_.pass()),
      guides_(slots),
      ring_(kRingEvents),
      speculation_(slots, decode_width(plan_.header), plan_.header.context),
      team_(exchange_.workers(), cores) {
  const PlanHeader& h = plan_.header;
  if (h.schema != kPlanSchema || !h.leader || h.max_width > kPlanMixtureWidth ||
      h.chunk != kChunk || (states_.any() && h.max_width > kPlanMaxWidth)) {
    throw std::invalid_argument("the plan is not one for this executor: build it for a CPU device");
  }
  check_cache_format(plan_, kv_format);
  if (static_cast<int32_t>(weights_.layers.size()) != h.layers) {
    throw std::invalid_argument("plan and weights have different numbers of layers");
  }
  const int64_t width = h.max_width;
  if (seat.ranks > 1) {  // only rank 0 knows what a slot will hold
    for (int slot = 0; slot < slots; ++slot) cache_.reach(slot, h.context);
  }
  query_ = std::make_unique<Arena>(floats(width * h.heads * h.head_dim));
  attention_ = std::make_unique<Arena>(floats(h.splits * width * h.heads * (h.head_dim + 2)));
  hidden_ = std::make_unique<Arena>(floats(width * h.lanes * h.hidden_columns));
  routed_ = std::make_unique<Arena>(floats(width * std::max(h.experts, 1)));
  query_gate_ =
      std::make_unique<Arena>(floats(h.attention_gate ? width * h.heads * h.head_dim : 1));
  mixed_ = std::make_unique<Arena>(floats(std::max<int64_t>(width * mixed_columns(), 1)));
  int64_t values = 0;  // of all heads, that kOut reads
  for (const PlanPhase& phase : plan_.phases) {
    if (phase.kind == PhaseKind::kValues) values = int64_t{h.heads} * phase.matrices[0].rows;
  }
  latents_ = std::make_unique<Arena>(floats(values > 0 ? width * latent_columns() : 1));
  const int64_t made = std::max(values, delta_columns());
  heads_ = std::make_unique<Arena>(floats(std::max<int64_t>(width * made, 1)));
  std::optional<size_t> memory;  // of each worker, for experts
  if (experts.file >= 0) memory = experts.memory / exchange_.workers();
  for (int i = 0; i < exchange_.workers(); ++i) {
    const int worker = exchange_.first_worker() + i;
    workers_.push_back(
        std::make_unique<Worker>(plan_, weights_, kernels_, activation_, worker, memory));
  }
  if (memory.has_value()) open_experts(experts.file);
  // Other ranks' workers have no logits, and a timed pass takes the time that it is told.
  // And where there are more workers than processors, they are asleep when they wait.
  if (seat.ranks == 1 && !seat.timed && exchange_.spins()) {
    scratch_.crew.enlist(exchange_.workers() - 1, [this] { call_helpers(); });
  }
  for (const PlanPhase& phase : plan_.phases) {
    for (int64_t i = 0; i < phase.num_matrices; ++i) to_convert_ += converts(index_of(phase), i);
  }
}

Executor::~Executor() {
  if (following_) {
    exchange_.stop();
    return;
  }
  interrupt();
  std::vector<TokenEvent> dropped;
  while (!take(dropped, 1)) dropped.clear();  // a full ring must not hold the leader up
  drop_guides();
}

// ---- Loading: called from outside, before the first epoch ----

const PlanMatrix& Executor::matrix_of(int64_t phase, int64_t matrix) const {
  if (phase < 0 || phase >= plan_.header.phases || matrix < 0 ||
      matrix >= plan_.phases[phase].num_matrices) {
    throw std::invalid_argument("matrix: expected one of the plan's phases");
  }
  return plan_.phases[phase].matrices[matrix];
}

bool Executor::converts(int64_t phase, int64_t matrix) const {
  const WeightRole role = matrix_of(phase, matrix).role;
  return weights_.weight(role, plan_.phases[phase].layer).copied() ||
         workers_.front()->weights.stows(phase, matrix);
}

void Executor::convert(int64_t phase, int64_t matrix) {
  if (!converts(phase, matrix)) return;
  std::vector<std::exception_ptr> failed(workers_.size());
  team_.start([&](int worker) {
    try {
      workers_[worker]->weights.convert(kernels_, phase, matrix);
    } catch (...) {
      failed[worker] = std::current_exception();
    }
  });
  team_.join();
  for (const std::exception_ptr& error : failed) {
    if (error != nullptr) std::rethrow_exception(error);
  }
  --to_convert_;
}

void Executor::open_experts(int file) {
  if (plan_.header.experts == 0) {
    throw std::invalid_argument("expert_memory: expected a mixture of experts, got a dense model");
  }
  size_t bytes = 0;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    bytes += worker->weights.experts()->file_bytes();
  }
  // The room is taken at once, so that there is some for what is read later.
  if (const int error = bytes == 0 ? 0 : posix_fallocate(file, 0, static_cast<off_t>(bytes))) {
    throw std::runtime_error(
        "expert_memory: expected " + std::to_string((bytes >> 20) + 1) +
        " MB of disk for the experts, got: " + std::generic_category().message(error));
  }
  size_t offset = 0;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    worker->weights.experts()->open(file, offset);
    offset += worker->weights.experts()->file_bytes();
  }
}

ExpertCache::Counts Executor::expert_counts() const {
  ExpertCache::Counts all;
  for (const std::unique_ptr<Worker>& worker : workers_) {
    if (worker->weights.experts() == nullptr) continue;
    const ExpertCache::Counts& counts = worker->weights.experts()->counts();
    all.found += counts.found;
    all.missed += counts.missed;
    all.brought += counts.brought;
  }
  return all;
}

size_t Executor::converted_bytes() const {
  size_t bytes = 0;
  for (const std::unique_ptr<Worker>& worker : workers_) bytes += worker->weights.bytes();
  return bytes;
}

// A worker that throws here ends its process, which rank 0 sees as it sees any rank that is lost.
void Executor::follow() {
  following_ = true;
  team_.start([this](int worker) {
    while (!exchange_.given_up()) work(*workers_[worker]);
  });
}

bool Executor::follows(int milliseconds) {
  return !team_.join_for(int64_t{milliseconds} * 1'000'000);
}

// ---- Epochs: called from outside, by one thread at a time ----

int64_t Executor::length(int slot) const {
  if (slot < 0 || slot >= static_cast<int>(lengths_.size())) {
    throw std::invalid_argument("slot: expected 0 to " + std::to_string(lengths_.size() - 1) +
                                ", got " + std::to_string(slot));
  }
  return lengths_[slot].load(std::memory_order_relaxed);
}

void Executor::check_idle(const char* what) const {
  if (in_epoch_) {
    throw std::logic_error(std::string(what) + ": an epoch is running; stop it first");
  }
}

void Executor::truncate(int slot, int64_t length) {
  check_idle("truncate");
  const int64_t now = this->length(slot);
  if (length < 0 || length > now) {
    throw std::invalid_argument("length: expected 0 to " + std::to_string(now) +
                                ", the tokens in this slot, got " + std::to_string(length));
  }
  if (length > 0 && !resumable(slot, length)) {
    throw std::invalid_argument(
        "length: windowed layers have dropped the keys that the next token would see, or states "
        "are beyond it; expected 0 or at least " +
        std::to_string(first_resumable(slot)) + ", got " + std::to_string(length));
  }
  lengths_[slot] = length;
  if (length == 0) {
    highest_[slot] = restored_[slot] = 0;
    states_.set_position(slot, 0);
  }
}

int64_t Executor::first_resumable(int slot) const {
  // Restored without its states, a slot goes on from nowhere.
  if (states_.any() && states_.position(slot) < 0) return lengths_[slot] + 1;
  int64_t first = std::max(restored_[slot], states_.any() ? states_.position(slot) : 0);
  for (const PlanPhase& phase : plan_.phases) {
    if (phase.kind != PhaseKind::kAttend) continue;
    const int64_t kept = highest_[slot] - cache_.capacity(phase.layer);  // oldest key kept
    if (phase.window > 0 && kept > 0) first = std::max(first, kept + phase.window - 1);
  }
  return first;
}

void Executor::check_room(int slot, size_t count) const {
  const int64_t now = length(slot);
  if (count == 0) throw std::invalid_argument("tokens: expected at least one");
  if (now + static_cast<int64_t>(count) > plan_.header.context) {
    throw std::invalid_argument("context: expected at most " +
                                std::to_string(plan_.header.context) + " tokens in a slot, got " +
                                std::to_string(now) + " there and " + std::to_string(count) +
                                " more");
  }
}

void Executor::check_token(const char* what, int32_t token) const {
  if (token >= 0 && token < plan_.header.vocab) return;
  throw std::invalid_argument(std::string(what) + ": expected ids from 0 to " +
                              std::to_string(plan_.header.vocab - 1) + ", got " +
                              std::to_string(token));
}

void Executor::check(const std::vector<Advance>& advances) const {
  std::vector<bool> used(lengths_.size(), false);
  if (advances.empty() || advances.size() > static_cast<size_t>(decode_width(plan_.header))) {
    throw std::invalid_argument("advances: expected 1 to " +
                                std::to_string(decode_width(plan_.header)) + ", got " +
                                std::to_string(advances.size()));
  }
  for (const Advance& advance : advances) {
    if (advance.budget < 1) throw std::invalid_argument("budget: expected at least 1");
    check_room(advance.slot, advance.tokens.size() + advance.budget - 1);
    if (advance.drafts < kAutoDrafts) throw std::invalid_argument("drafts: expected -1 or more");
    if (advance.tokens.empty()) throw std::invalid_argument("tokens: expected at least one");
    if (used[advance.slot]) throw std::invalid_argument("advances: a slot occurs twice");
    used[advance.slot] = true;
    if (states_.any() && states_.position(advance.slot) < 0) {
      throw std::invalid_argument(
          "restore: expected the last part with its tail before the slot goes on, got none");
    }
    for (const int32_t token : advance.tokens) check_token("tokens", token);
    for (const int32_t token : advance.earlier) {
      if (token != kTextEnd) check_token("earlier", token);
    }
    check_history(advance);
    for (const LogitBias& bias : advance.biases) {
      check_token("logit_bias", static_cast<int32_t>(bias.token));
    }
  }
}

void Executor::check_history(const Advance& advance) const {
  for (const int32_t token : advance.history) check_token("history", token);
  const int64_t held = lengths_[advance.slot], given = static_cast<int64_t>(advance.history.size());
  if (given != held && (given > 0 || Seen(advance.draw, 1).penalises())) {
    throw std::invalid_argument("history: expected the " + std::to_string(held) +
                                " tokens that the slot holds, got " + std::to_string(given));
  }
}

void Executor::begin(std::vector<Advance> advances) {
  if (in_epoch_) throw std::logic_error("an epoch is running; read it to its end or stop it first");
  check_failed();
  lay_out_epoch(std::move(advances));
  in_epoch_ = true;
  ring_.begin();
  team_.start([this](int worker) {
    work_or_fail(worker);
    if (worker == 0) ring_.push_end();
  });
}

// Of one that fails, the others' waits end, too, and so does the executor's use.
void Executor::work_or_fail(int worker) {
  try {
    work(*workers_[worker]);
  } catch (...) {
    if (!failed_.exchange(true)) failure_ = std::current_exception();
    exchange_.stop();
  }
}

void Executor::take_part(int worker) {
  try {
    work(*workers_[worker]);
  } catch (...) {
    exchange_.stop();  // or the others would wait in here for this one
    throw;
  }
}

void Executor::check_failed() const {
  if (failed_) std::rethrow_exception(failure_);
}

void Executor::prepare(std::vector<Advance> advances, OnToken on_token) {
  lay_out_epoch(std::move(advances));
  on_token_ = std::move(on_token);
}

void Executor::set_draft_model(Executor& model) {
  check_idle("draft model");
  const bool alone = exchange_.ranks() == 1 && model.exchange_.ranks() == 1;
  if (!alone || model.workers_.size() != workers_.size() ||
      model.lengths_.size() != lengths_.size() || model.speculation_.joint() != nullptr ||
      &model == this) {
    throw std::invalid_argument(
        "draft model: expected one of its own, in one rank, with the same workers and slots");
  }
  speculation_.set_joint(
      std::make_unique<ModelDrafter>(model, static_cast<int>(lengths_.size()), plan_.header.vocab));
}

void Executor::set_heads(const HeadsWeights& heads) {
  check_idle("heads");
  const PlanHeader& h = plan_.header;
  if (exchange_.ranks() != 1 || heads.hidden != h.hidden || heads.vocab != h.vocab) {
    throw std::invalid_argument(
        "heads: expected those of a model with " + std::to_string(h.hidden) +
        " hidden columns and " + std::to_string(h.vocab) + " tokens, in one rank, got " +
        std::to_string(heads.hidden) + " and " + std::to_string(heads.vocab));
  }
  speculation_.set_joint(std::make_unique<HeadsDrafter>(kernels_, weights_.embedding, heads,
                                                        static_cast<int>(workers_.size()),
                                                        static_cast<int>(lengths_.size())));
}

void Executor::lay_out_epoch(std::vector<Advance> advances) {
  if (to_convert_ > 0) throw std::logic_error("weights: expected every matrix to be converted");
  check(advances);
  running_.clear();
  for (Advance& advance : advances) {
    cache_.reach(advance.slot, lengths_[advance.slot] + advance.tokens.size());
    if (advance.drafts != 0) {
      speculation_.begin(advance.slot, advance.history, advance.tokens,
                         static_cast<size_t>(advance.prompt), advance.earlier);
    }
    running_.push_back(Running{.advance = std::move(advance)});
    look_back(running_.back());
  }
  drop_guides();
  on_token_ = nullptr;
  yield_.store(false, std::memory_order_relaxed);
}

void Executor::start(std::vector<Advance> advances) { begin(std::move(advances)); }

void Executor::script(int slot, std::vector<int32_t> drafts, std::vector<int32_t> draws) {
  check_idle("script");
  length(slot);  // throws where there is no such slot
  for (const int32_t token : drafts) check_token("drafts", token);
  for (const int32_t token : draws) check_token("draws", token);
  speculation_.script(slot, std::move(drafts), std::move(draws));
}

void Executor::logits(int slot, std::vector<int32_t> tokens, float* out) {
  check_idle("logits");  // before the leader of a running epoch sees where they would go
  all_logits_ = out;
  finish(slot, std::move(tokens));
}

void Executor::hidden(int slot, std::vector<int32_t> tokens, float* out) {
  check_idle("hidden");
  all_hidden_ = out;
  finish(slot, std::move(tokens));
}

// One slot's tokens from the first pass to the last, all rows of which are wanted.
void Executor::finish(int slot, std::vector<int32_t> tokens) {
  struct Forget {
    float *&logits, *&hidden;
    ~Forget() { logits = hidden = nullptr; }
  } forget{all_logits_, all_hidden_};
  begin({Advance{.slot = slot, .tokens = std::move(tokens)}});
  team_.join();
  std::vector<TokenEvent> none;
  ring_.take(none);  // the end
  in_epoch_ = false;
  check_failed();
  if (!running_.front().done && exchange_.lost() < 0) {
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
    const bool over = !in_epoch_ || team_.finished();  // before taking: later there come no more
    ring_.take(events);
    if (over) {
      in_epoch_ = false;
      return true;
    }
    if (!events.empty() || now_ns() >= deadline) return false;
    const int64_t left = deadline - now_ns();
    if (ring_.ended()) {  // but some workers are not through with it
      team_.join_for(left);
    } else {
      ring_.await_token(left);
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

// Past 500 lines on purpose: the phases are short, share one state, and are read side by side.
#include "executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>

#include "clones.h"
#include "worker_rows.h"

namespace monolane {
namespace {

// Tokens in flight towards Python before the decode waits for it: seconds of decoding.
constexpr uint32_t kRingEvents = 4096;

size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

std::vector<int64_t> windows_of(const Plan& plan) {
  std::vector<int64_t> windows;
  for (const PlanPhase& phase : plan.phases) {
    if (phase.kind == PhaseKind::kAttend) windows.push_back(phase.window);
  }
  return windows;
}

// Elementwise loops over [D].
MONOLANE_CLONES void add_to(float* x, const float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] += y[i];
}

MONOLANE_CLONES void add_scaled_to(float* x, const float* y, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] += scale * y[i];
}

MONOLANE_CLONES void scale_by(float* x, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] *= scale;
}

}  // namespace

// Rows of the group's lanes, [lanes][T][...], and scratch. Lane indices here are within the group.
struct Executor::Worker {
  Worker(const Plan& plan, const ModelWeights& weights, const Kernels& kernels,
         Activation activation, int worker)
      : index(worker), group(worker / plan.header.group_workers), weights(plan, weights, worker) {
    const PlanHeader& h = plan.header;
    const int64_t lanes = h.group_lanes, width = h.max_width;
    first_lane = group * lanes;
    first_worker = group * h.group_workers;
    const int64_t concat = h.head == PlanHead::kConcat ? int64_t{h.lanes} * h.hidden : 0;
    int64_t columns = std::max<int64_t>(
        {h.hidden, concat, h.intermediate / h.lanes, int64_t{h.heads} / h.lanes * h.head_dim});
    // The kinds in which activations are packed: one, unless formats are mixed.
    int64_t packed_bytes = 0;
    for (const PlanPhase& phase : plan.phases) {
      for (int32_t i = 0; i < phase.num_matrices; ++i) {
        const Weight& weight = weights.weight(phase.matrices[i].role, phase.layer);
        token_bytes[static_cast<int>(activation_for(weight.format, activation))] = 1;
      }
    }
    for (int kind = 0; kind < kKinds; ++kind) {
      if (token_bytes[kind] == 0) continue;
      first_byte[kind] = packed_bytes;
      token_bytes[kind] = kernels.packed_bytes(static_cast<Activation>(kind), columns);
      packed_bytes += lanes * width * token_bytes[kind];
    }
    int64_t rows = 0;  // of the largest share of any phase
    for (const PlanShare& part : plan.shares) rows = std::max<int64_t>(rows, part.end - part.begin);

    x = std::make_unique<Arena>(floats(lanes * width * h.hidden));
    normed = std::make_unique<Arena>(floats(width * std::max<int64_t>(columns, h.hidden)));
    packed = std::make_unique<Arena>(static_cast<size_t>(packed_bytes));
    product = std::make_unique<Arena>(floats(2 * width * std::max<int64_t>(rows, 1)));
    sum = std::make_unique<Arena>(floats(h.hidden));
    const int64_t group = h.heads / h.kv_heads;
    scores = std::make_unique<Arena>(
        floats(std::min(group, kAttendHeads) * std::max<int64_t>(h.chunk, 1)));
    partial = std::make_unique<Arena>(floats(group * (h.head_dim + 2)));
    cosine = std::make_unique<Arena>(floats(kPlanRotaries * width * h.head_dim / 2));
    sine = std::make_unique<Arena>(floats(kPlanRotaries * width * h.head_dim / 2));
  }

  void* packed_lane(Activation activation, int64_t lane, int64_t width) const {
    const int kind = static_cast<int>(activation);
    return packed->as<char>() + first_byte[kind] + lane * width * token_bytes[kind];
  }

  int index;
  int group;
  int64_t first_lane, first_worker;
  WorkerRows weights;
  static constexpr int kKinds = 3;      // of Activation
  int64_t token_bytes[kKinds] = {};     // of one packed token; 0: no matrix is of that kind
  int64_t first_byte[kKinds] = {};      // of a kind within `packed`
  uint32_t passes = 0;                  // laid out since construction, empty ones included
  uint32_t finished = 0;                // phases since construction
  uint32_t base = 0;                    // `finished` of everybody at the beginning of this pass
  std::unique_ptr<Arena> x;             // [lanes, T, D] residual streams
  std::unique_ptr<Arena> normed;        // [T, columns]
  std::unique_ptr<Arena> packed;        // of each kind [lanes, T, packed]
  std::unique_ptr<Arena> product;       // [T, rows], twice
  std::unique_ptr<Arena> sum;           // [D]
  std::unique_ptr<Arena> scores;        // [min(H/K, kAttendHeads), chunk]
  std::unique_ptr<Arena> partial;       // [H/K, h + 2]
  std::unique_ptr<Arena> cosine, sine;  // [PlanRotary, max_width, h/2], times the amplitude
  std::vector<Span> spans;
};

PlanShare Executor::share(const Worker& w, int32_t table) const {
  return plan_.share(table, w.index);
}

const Matrix& Executor::rows(const Worker& w, const PlanPhase& phase, int64_t index) const {
  return w.weights.of(index_of(phase), index);
}

Executor::Executor(Plan plan, const Seat& seat, ModelWeights weights, const Kernels& kernels,
                   Activation activation, Format kv_format, int slots,
                   const std::vector<int>& cores)
    : plan_(std::move(plan)),
      weights_(std::move(weights)),
      kernels_(kernels),
      activation_(activation),
      gate_times_(plan_.header.activation == GateActivation::kGeluTanh ? kernels.gelu_tanh_times
                                                                       : kernels.silu_times),
      exchange_(plan_, seat),
      cache_(windows_of(plan_), int64_t{plan_.header.kv_heads} / seat.ranks * seat.rank,
             plan_.header.kv_heads / seat.ranks, plan_.header.head_dim, plan_.header.context, slots,
             kv_format),
      lengths_(slots),
      highest_(slots, 0),
      restored_(slots, 0),
      pass_(exchange_.pass()),
      guides_(slots),
      ring_(kRingEvents),
      team_(exchange_.workers(), cores) {
  const PlanHeader& h = plan_.header;
  if (h.schema != kPlanSchema || !h.leader || h.max_width > kMaxWidth || h.chunk != kChunk) {
    throw std::invalid_argument("the plan is not one for this executor: build it for a CPU device");
  }
  if (static_cast<int32_t>(weights_.layers.size()) != h.layers) {
    throw std::invalid_argument("plan and weights have different numbers of layers");
  }
  const int64_t width = h.max_width;
  query_ = std::make_unique<Arena>(floats(width * h.heads * h.head_dim));
  const int64_t unnormed = h.qk_norm == QkNorm::kAll ? int64_t{h.heads} + h.kv_heads : 0;
  unnormed_ = std::make_unique<Arena>(floats(width * unnormed * h.head_dim));
  attention_ = std::make_unique<Arena>(floats(h.splits * width * h.heads * (h.head_dim + 2)));
  hidden_ = std::make_unique<Arena>(floats(width * h.intermediate));
  for (int i = 0; i < exchange_.workers(); ++i) {
    const int worker = exchange_.first_worker() + i;
    workers_.push_back(std::make_unique<Worker>(plan_, weights_, kernels_, activation_, worker));
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
  while (!read(dropped, 1)) dropped.clear();  // a full ring must not hold the leader up
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
  const Weight& weight = weights_.weight(role, plan_.phases[phase].layer);
  return weight.format != weight.stored.format;
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

size_t Executor::converted_bytes() const {
  size_t bytes = 0;
  for (const std::unique_ptr<Worker>& worker : workers_) bytes += worker->weights.bytes();
  return bytes;
}

void Executor::follow() {
  following_ = true;
  team_.start([this](int worker) {
    while (!exchange_.given_up()) work(*workers_[worker]);
  });
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
        "length: windowed layers have dropped the keys that the next token would see; expected 0 "
        "or at least " +
        std::to_string(first_resumable(slot)) + ", got " + std::to_string(length));
  }
  lengths_[slot] = length;
  if (length == 0) highest_[slot] = restored_[slot] = 0;
}

int64_t Executor::first_resumable(int slot) const {
  int64_t first = restored_[slot], layer = 0;
  for (const PlanPhase& phase : plan_.phases) {
    if (phase.kind != PhaseKind::kAttend) continue;
    const int64_t kept = highest_[slot] - cache_.capacity(layer++);  // oldest key kept
    if (phase.window > 0 && kept > 0) first = std::max(first, kept + phase.window - 1);
  }
  return first;
}

void Executor::save(int slot, int64_t begin, int64_t end, char* rows, char* tail) const {
  if (in_epoch_) throw std::logic_error("save: an epoch is running; stop it first");
  cache_.save_rows(slot, begin, end, rows);
  if (tail != nullptr) cache_.save_tail(slot, end, tail);
}

void Executor::restore(int slot, int64_t count, int64_t stride, const char* rows,
                       const char* tail) {
  if (in_epoch_) throw std::logic_error("restore: an epoch is running; stop it first");
  const int64_t begin = lengths_[slot], end = begin + count;
  cache_.restore_rows(slot, begin, end, stride, rows);
  if (tail != nullptr) cache_.restore_tail(slot, end, tail);
  lengths_[slot] = highest_[slot] = end;
  if (cache_.rings() > 0) restored_[slot] = end;
}

void Executor::copy(int source, int target) {
  check_idle("copy");
  const int64_t now = length(source);
  length(target);  // throws where there is no such slot
  if (source == target) {
    throw std::invalid_argument("copy: expected two slots, got " + std::to_string(source) +
                                " twice");
  }
  running_.clear();
  copy_ = {source, target, highest_[source]};
  team_.start([this](int worker) { work(*workers_[worker]); });
  team_.join();
  copy_ = {};
  lengths_[target] = now;
  highest_[target] = highest_[source];
  restored_[target] = restored_[source];
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
  if (advances.empty() || advances.size() > static_cast<size_t>(plan_.header.max_width)) {
    throw std::invalid_argument("advances: expected 1 to " +
                                std::to_string(plan_.header.max_width) + ", got " +
                                std::to_string(advances.size()));
  }
  for (const Advance& advance : advances) {
    if (advance.budget < 1) throw std::invalid_argument("budget: expected at least 1");
    check_room(advance.slot, advance.tokens.size() + advance.budget - 1);
    if (advance.tokens.empty()) throw std::invalid_argument("tokens: expected at least one");
    if (used[advance.slot]) throw std::invalid_argument("advances: a slot occurs twice");
    used[advance.slot] = true;
    for (const int32_t token : advance.tokens) check_token("tokens", token);
    for (const LogitBias& bias : advance.biases) {
      check_token("logit_bias", static_cast<int32_t>(bias.token));
    }
  }
}

void Executor::begin(std::vector<Advance> advances, float* all_logits) {
  if (in_epoch_) throw std::logic_error("an epoch is running; read it to its end or stop it first");
  if (to_convert_ > 0) throw std::logic_error("weights: expected every matrix to be converted");
  check(advances);
  running_.clear();
  for (Advance& advance : advances) running_.push_back(Running{.advance = std::move(advance)});
  drop_guides();
  all_logits_ = all_logits;
  yield_.store(false, std::memory_order_relaxed);
  in_epoch_ = true;
  team_.start([this](int worker) { work(*workers_[worker]); });
}

void Executor::start(std::vector<Advance> advances) { begin(std::move(advances), nullptr); }

void Executor::logits(int slot, std::vector<int32_t> tokens, float* out) {
  begin({Advance{.slot = slot, .tokens = std::move(tokens)}}, out);
  team_.join();
  in_epoch_ = false;
}

bool Executor::read(std::vector<TokenEvent>& events, int milliseconds) {
  const int64_t deadline = now_ns() + int64_t{milliseconds} * 1'000'000;
  for (;;) {
    const bool over = !in_epoch_ || team_.finished();  // before taking: later there come no more
    ring_.take(events);
    if (over) {
      in_epoch_ = false;
      return true;
    }
    if (!events.empty() || now_ns() >= deadline) return false;
    // In slices: an epoch that ends without a token, as a stopped one does, wakes nobody here.
    ring_.await_token(std::min<int64_t>(deadline - now_ns(), 5'000'000));
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

// ---- Workers ----

// One epoch, or as much of it as there is until the ranks give up.
void Executor::work(Worker& w) {
  if (w.index == 0 && !await_others(w)) return;
  for (;;) {
    ++w.passes;
    if (w.index == 0) {
      lay_out_pass();
      exchange_.publish_pass(w.passes);
    } else if (!exchange_.await_pass(w.passes)) {  // reads pass_, which the leader wrote
      return;
    }
    const int32_t width = pass_.width;  // kept: in the last phase the leader writes the next pass
    if (width == 0) return end_epoch(w);
    for (const PlanPhase& phase : plan_.phases) {
      const int64_t arrived = trace_ ? now_ns() : 0;
      if (!await(w, phase)) return;
      const int64_t begun = trace_ ? now_ns() : 0;
      run(w, phase);
      if (trace_) {
        const int32_t index = static_cast<int32_t>(&phase - plan_.phases.data());
        w.spans.push_back({arrived, begun, now_ns(), w.index, index, width});
      }
      exchange_.publish(w.index, ++w.finished);
    }
    w.base = w.finished;
  }
}

// Called by the leader: workers of other ranks may still read the pass that ended the last epoch.
bool Executor::await_others(const Worker& w) {
  for (int32_t i = 0; i < plan_.header.workers; ++i) {
    if (!exchange_.await(i, w.base)) return false;
  }
  return true;
}

// The last pass has no rows. It counts as one phase, so that the leader sees who has read it.
void Executor::end_epoch(Worker& w) {
  const PlanHeader& h = plan_.header;
  const SlotCopy& copy = pass_.copy;
  if (copy.source >= 0 && w.index == w.first_worker) {
    const int64_t heads = h.kv_heads / h.groups;
    cache_.copy(copy.source, copy.target, copy.positions, w.group * heads, heads);
  }
  w.base = ++w.finished;
  exchange_.publish(w.index, w.finished);
}

bool Executor::await(const Worker& w, const PlanPhase& phase) {
  if (phase.wait_group != kNoWait) {
    const uint32_t count = w.base + static_cast<uint32_t>(phase.wait_group);
    for (int32_t i = 0; i < plan_.header.group_workers; ++i) {
      if (!exchange_.await(static_cast<int32_t>(w.first_worker) + i, count)) return false;
    }
  }
  if (phase.wait_all != kNoWait) {
    const uint32_t count = w.base + static_cast<uint32_t>(phase.wait_all);
    for (int32_t i = 0; i < plan_.header.workers; ++i) {
      if (!exchange_.await(i, count)) return false;
    }
  }
  return true;
}

void Executor::run(Worker& w, const PlanPhase& phase) {
  switch (phase.kind) {
    case PhaseKind::kEmbed:
      return embed(w);
    case PhaseKind::kQkv:
      return project_qkv(w, phase);
    case PhaseKind::kNormQk:
      return norm_qk(w, phase);
    case PhaseKind::kAttend:
      return attend(w, phase);
    case PhaseKind::kOut:
      return project_out(w, phase);
    case PhaseKind::kGateUp:
      return gate_up(w, phase);
    case PhaseKind::kDown:
      return project_down(w, phase);
    case PhaseKind::kGather:
      return gather(w, phase);
    case PhaseKind::kHead:
      return project_head(w, phase);
    case PhaseKind::kChoose:
      if (w.index == 0) choose_tokens();
      return;
  }
}

// ---- The leader: what goes into a pass, and what comes out of it ----

void Executor::lay_out_pass() {
  for (;;) {
    pass_.width = 0;
    pass_.wanted = 0;
    pass_.copy = copy_;
    const uint32_t calls = call_count_.load(std::memory_order_acquire);  // before looking for them
    if (yield_.load(std::memory_order_relaxed)) {
      // A parked slot gives its last token back: the next epoch feeds it, and has its logits then.
      for (const Running& running : running_) lengths_[running.advance.slot] -= running.parked;
      return;
    }
    const bool parked = settle_parked();
    lay_out_rows();
    if (pass_.width > 0 || !parked) return;
    calls_.await(calls + 1);
  }
}

void Executor::lay_out_rows() {
  // Sequences that decode come first: they hold one row each, and a prompt may take what is left.
  for (Running& running : running_) {
    const bool decoding = running.fed == running.advance.tokens.size();
    if (decoding && !running.done && !running.parked) add_rows(running);
  }
  for (Running& running : running_) {
    if (!running.done && running.fed < running.advance.tokens.size()) add_rows(running);
  }
}

void Executor::add_rows(Running& running) {
  const Advance& advance = running.advance;
  running.row = -1;
  int64_t length = lengths_[advance.slot];
  const bool decoding = running.fed == advance.tokens.size();
  size_t count = decoding ? 1 : advance.tokens.size() - running.fed;
  count = std::min<size_t>(count, plan_.header.max_width - pass_.width);
  for (size_t i = 0; i < count; ++i) {
    const int32_t token = decoding ? running.next : advance.tokens[running.fed++];
    const bool last = decoding || running.fed == advance.tokens.size();
    if (last || all_logits_ != nullptr) {
      running.row = pass_.wanted;
      pass_.wanted_row[pass_.wanted++] = pass_.width;
    }
    pass_.rows[pass_.width++] = {advance.slot, static_cast<int32_t>(length++), token};
  }
  lengths_[advance.slot].store(length, std::memory_order_relaxed);
  highest_[advance.slot] = std::max(highest_[advance.slot], length);
}

void Executor::choose_tokens() {
  const int64_t vocab = plan_.header.vocab;
  const float* logits = exchange_.logits();
  if (all_logits_ != nullptr) {  // one slot, whose rows are all wanted
    std::memcpy(all_logits_, logits, floats(pass_.wanted * vocab));
    all_logits_ += pass_.wanted * vocab;
    Running& only = running_.front();
    only.done = only.fed == only.advance.tokens.size();
    return;
  }
  for (Running& running : running_) {
    if (running.done || running.row < 0) continue;
    const float* row = logits + running.row * vocab;
    running.row = -1;
    if (!running.advance.guided || take_guide(running)) {
      settle(running, row);
    } else {
      park(running, row);
    }
  }
}

// The next token of a slot, or the forced ones.
void Executor::settle(Running& running, const float* logits) {
  if (running.guide && !running.guide->forced.empty()) return force(running);
  const uint32_t position = static_cast<uint32_t>(lengths_[running.advance.slot]);
  const uint32_t* mask = running.guide ? running.guide->mask.data() : nullptr;
  const int32_t token = choose(logits, plan_.header.vocab, running.advance.draw,
                               running.advance.biases, position, mask, scratch_);
  running.guide.reset();
  emit(running, token, logits);
}

void Executor::emit(Running& running, int32_t token, const float* logits) {
  const Advance& advance = running.advance;
  TokenEvent event{};
  event.slot = advance.slot;
  event.token = token;
  event.logprob = std::numeric_limits<float>::quiet_NaN();
  if (advance.logprobs >= 0 && logits != nullptr) {
    report_logprobs(logits, plan_.header.vocab, advance.logprobs, event);
  }
  event.time_ns = now_ns();
  running.next = token;
  const std::vector<int32_t>& stops = advance.stop_ids;
  running.done = ++running.drawn == advance.budget ||
                 std::find(stops.begin(), stops.end(), token) != stops.end();
  ring_.push(event);
}

// ---- Phases ----

void Executor::embed(Worker& w) {
  const PlanHeader& h = plan_.header;
  const int64_t pairs = h.head_dim / 2;
  float* x = w.x->as<float>();
  for (int64_t t = 0; t < pass_.width; ++t) {
    kernels_.widen(weights_.embedding, pass_.rows[t].token, x + t * h.hidden);
    if (h.embedding_scale != 1.0f) scale_by(x + t * h.hidden, h.embedding_scale, h.hidden);
    for (int64_t lane = 1; lane < h.group_lanes; ++lane) {
      std::memcpy(x + (lane * pass_.width + t) * h.hidden, x + t * h.hidden, floats(h.hidden));
    }
    for (int64_t rotary = 0; rotary < kPlanRotaries; ++rotary) {
      const float* frequencies = weights_.frequencies[rotary];
      if (frequencies == nullptr) continue;
      float* cosine = w.cosine->as<float>() + (rotary * h.max_width + t) * pairs;
      float* sine = w.sine->as<float>() + (rotary * h.max_width + t) * pairs;
      for (int64_t i = 0; i < pairs; ++i) {
        const float angle = static_cast<float>(pass_.rows[t].position) * frequencies[i];
        cosine[i] = h.amplitude[rotary] * std::cos(angle);
        sine[i] = h.amplitude[rotary] * std::sin(angle);
      }
    }
  }
}

// x_l += reduce(outputs of a module), or its norm; the rule is told in
// src/monolane/model/_reduce.py.
void Executor::update(Worker& w, const PlanPhase& phase) {
  if (phase.update == PlanBuffer::kNone) return;
  const PlanHeader& h = plan_.header;
  const int64_t count = pass_.width * h.hidden;
  const float alone = std::sqrt(static_cast<float>(h.lanes));  // gain of a lane that never reduces
  const float* scale = nullptr;                                // of the norm of what is added
  if (h.norm_after) {
    const LayerWeights& layer = weights_.layers[phase.update_layer];
    scale = phase.update == PlanBuffer::kAttentionOutput ? layer.post_attention_norm
                                                         : layer.post_mlp_norm;
  }
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    float* x = w.x->as<float>() + lane * count;
    const int64_t own_lane = w.first_lane + lane;
    const float* own = output(phase.update, phase.update_own_slot, own_lane);
    if (phase.update_delay == kNever && scale == nullptr) {
      add_scaled_to(x, own, alone, count);
      continue;
    }
    const float* lane_scale =
        scale == nullptr || !h.norm_per_lane ? scale : scale + own_lane * h.hidden;
    // Token by token, so that the sum stays in the first-level cache.
    for (int64_t t = 0; t < pass_.width; ++t) {
      float* sum = w.sum->as<float>();
      std::fill_n(sum, h.hidden, 0.0f);
      if (phase.update_delay == kNever) {
        add_scaled_to(sum, own + t * h.hidden, alone, h.hidden);
      } else {
        for (int64_t j = 0; j < h.lanes; ++j) {
          if (j == own_lane && phase.update_delay > 0) continue;
          add_to(sum, output(phase.update, phase.update_other_slot, j) + t * h.hidden, h.hidden);
        }
        if (phase.update_delay > 0) add_to(sum, own + t * h.hidden, h.hidden);
      }
      if (lane_scale != nullptr) {
        kernels_.rms_norm(sum, h.hidden, lane_scale, h.norm_eps, h.hidden, 1, sum, h.hidden);
      }
      add_to(x + t * h.hidden, sum, h.hidden);
    }
  }
}

// Packs the inputs of a phase, [T, columns] of a lane, in each kind that its matrices take. A kind
// that an earlier matrix takes too is there already.
void Executor::pack(const Worker& w, const PlanPhase& phase, const float* x, int64_t columns,
                    int64_t lane, int64_t width) const {
  uint32_t packed = 0;
  for (int32_t i = 0; i < phase.num_matrices; ++i) {
    const Activation kind = activation_of(rows(w, phase, i));
    const uint32_t bit = 1u << static_cast<int>(kind);
    if ((packed & bit) == 0)
      kernels_.pack(kind, x, columns, width, w.packed_lane(kind, lane, width));
    packed |= bit;
  }
}

// Packs what a module reads: the streams of the group's lanes, normed if the model norms them.
void Executor::read_stream(Worker& w, const PlanPhase& phase, const float* scale) {
  const PlanHeader& h = plan_.header;
  const int64_t width = pass_.width, hidden = h.hidden;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    const float* x = w.x->as<float>() + lane * width * hidden;
    if (h.norm_before) {
      const float* lane_scale = scale + (h.norm_per_lane ? (w.first_lane + lane) * hidden : 0);
      float* normed = w.normed->as<float>();
      kernels_.rms_norm(x, hidden, lane_scale, h.norm_eps, hidden, width, normed, hidden);
      x = normed;
    }
    pack(w, phase, x, hidden, lane, width);
  }
}

// Multiplies the worker's share of a matrix with the packed activations of each lane it falls on,
// and hands each piece on: store(lane of the group, first row within the lane, rows, y [T, rows]).
template <typename Store>
void Executor::multiply(Worker& w, const PlanPhase& phase, int64_t index, Store store) {
  const PlanMatrix& part = phase.matrices[index];
  const Matrix& matrix = rows(w, phase, index);
  const PlanShare own = share(w, part.share);
  const Activation kind = activation_of(matrix);
  for (int64_t row = own.begin; row < own.end;) {
    const int64_t lane = row / part.rows, first = row % part.rows;
    const int64_t count = std::min<int64_t>(own.end - row, part.rows - first);
    const int64_t begin = row - own.begin;
    float* y = w.product->as<float>();
    kernels_.multiply(matrix, begin, begin + count, kind, w.packed_lane(kind, lane, pass_.width),
                      pass_.width, y, count);
    store(lane, first, count, y);
    row += count;
  }
}

void Executor::project_qkv(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const LayerWeights& layer = weights_.layers[phase.layer];
  update(w, phase);
  read_stream(w, phase, layer.attention_norm);
  const int64_t width = pass_.width, both = int64_t{h.heads + h.kv_heads} * h.head_dim;
  const bool late = h.qk_norm == QkNorm::kAll;  // kNormQk goes on with queries and keys

  const auto add_bias = [&](float* y, const float* bias, int64_t first, int64_t count) {
    if (bias == nullptr) return;
    for (int64_t t = 0; t < width; ++t) add_to(y + t * count, bias + first, count);
  };
  // Of whole heads, where they are normed each by itself; their rows are then shared out whole.
  const auto norm_heads = [&](float* y, const float* scale, int64_t count) {
    if (h.qk_norm != QkNorm::kHead) return;
    kernels_.rms_norm(y, h.head_dim, scale, h.norm_eps, h.head_dim, width * count / h.head_dim, y,
                      h.head_dim);
  };
  for (int32_t i = 0; i < phase.num_matrices; ++i) {
    const PlanMatrix& part = phase.matrices[i];
    const int64_t rows = part.rows;
    if (late && part.role != WeightRole::kV) {
      const bool query = part.role == WeightRole::kQ;
      const int64_t before = query ? 0 : int64_t{h.heads} * h.head_dim;
      multiply(w, phase, i, [&](int64_t, int64_t first, int64_t count, float* y) {
        add_bias(y, query ? layer.q_bias : layer.k_bias, first, count);
        for (int64_t t = 0; t < width; ++t) {
          float* out = unnormed_->as<float>() + t * both + before + first;
          std::memcpy(out, y + t * count, floats(count));
        }
      });
      continue;
    }
    if (part.role == WeightRole::kQ) {
      multiply(w, phase, i, [&](int64_t lane, int64_t first, int64_t count, float* y) {
        const int64_t owner = w.first_lane + lane;
        add_bias(y, layer.q_bias, owner * rows + first, count);
        norm_heads(y, layer.q_norm, count);
        for (int64_t t = 0; t < width; ++t) {
          rotate(w, phase.rotary, y + t * count, t, first, count);
          float* q = query_->as<float>() + (owner * h.max_width + t) * rows + first;
          std::memcpy(q, y + t * count, floats(count));
        }
      });
      continue;
    }
    const bool key = part.role == WeightRole::kK;
    const float* bias = key ? layer.k_bias : layer.v_bias;
    multiply(w, phase, i, [&](int64_t lane, int64_t first, int64_t count, float* y) {
      const int64_t owner = w.first_lane + lane;
      add_bias(y, bias, owner * rows + first, count);
      if (key) norm_heads(y, layer.k_norm, count);
      for (int64_t t = 0; t < width; ++t) {
        float* row = y + t * count;
        if (key) rotate(w, phase.rotary, row, t, first, count);
        store_key_or_value(phase, key, t, owner * rows + first, row, count);
      }
    });
  }
}

// Puts rows first .. first + count - 1 of all lanes' keys or values of a token into the cache, head
// by head: a share may begin and end amid one.
void Executor::store_key_or_value(const PlanPhase& phase, bool key, int64_t t, int64_t first,
                                  const float* y, int64_t count) {
  const int64_t dim = plan_.header.head_dim;
  const Row& token = pass_.rows[t];
  for (int64_t r = 0; r < count;) {
    const int64_t head = (first + r) / dim, c = (first + r) % dim;
    const int64_t n = std::min<int64_t>(count - r, dim - c);
    char* base =
        static_cast<char*>(key ? cache_.key(token.slot, phase.layer, head, token.position)
                               : cache_.value(token.slot, phase.layer, head, token.position));
    kernels_.store_kv(y + r, n, cache_.format(), base + row_bytes(cache_.format(), c));
    r += n;
  }
}

// Norms the queries and the keys of each token, each over all their heads, and turns and stores the
// own heads. Every worker sums the squares of all, in the same order: adding them up again takes
// less than a second wait would. One lane.
void Executor::norm_qk(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const LayerWeights& layer = weights_.layers[phase.layer];
  const PlanShare units = share(w, phase.units);  // heads, of Q and then of K
  const int64_t dim = h.head_dim, heads = h.heads, kv_heads = h.kv_heads;
  const auto finish = [&](const float* x, const float* scale, int64_t all, int64_t begin,
                          int64_t end, int64_t t, auto store) {
    if (begin >= end) return;
    float* normed = w.normed->as<float>();
    kernels_.rms_norm(x, all * dim, scale, h.norm_eps, all * dim, 1, normed, all * dim);
    float* own = normed + begin * dim;
    rotate(w, phase.rotary, own, t, begin * dim, (end - begin) * dim);
    store(own, begin * dim, (end - begin) * dim);
  };
  for (int64_t t = 0; t < pass_.width; ++t) {
    const float* x = unnormed_->as<float>() + t * (heads + kv_heads) * dim;
    finish(x, layer.q_norm, heads, std::min<int64_t>(units.begin, heads),
           std::min<int64_t>(units.end, heads), t,
           [&](const float* y, int64_t first, int64_t count) {
             float* q = query_->as<float>() + t * heads * dim + first;
             std::memcpy(q, y, floats(count));
           });
    finish(x + heads * dim, layer.k_norm, kv_heads, std::max<int64_t>(units.begin - heads, 0),
           std::max<int64_t>(units.end - heads, 0), t,
           [&](const float* y, int64_t first, int64_t count) {
             store_key_or_value(phase, true, t, first, y, count);
           });
  }
}

// Turns rows first .. first + count - 1 of a lane, which hold whole rotary pairs.
void Executor::rotate(const Worker& w, PlanRotary rotary, float* y, int64_t t, int64_t first,
                      int64_t count) const {
  if (rotary == PlanRotary::kNone) return;
  const int64_t h = plan_.header.head_dim, pairs = h / 2;
  const int64_t table = static_cast<int64_t>(rotary) * plan_.header.max_width + t;
  const float* cosine = w.cosine->as<float>() + table * pairs;
  const float* sine = w.sine->as<float>() + table * pairs;
  if (plan_.header.rotary == RotaryStyle::kInterleaved) {
    for (int64_t r = 0; r < count; r += 2) {
      const int64_t i = (first + r) % h / 2;
      const float a = y[r], b = y[r + 1];
      y[r] = a * cosine[i] - b * sine[i];
      y[r + 1] = b * cosine[i] + a * sine[i];
    }
    return;
  }
  for (int64_t head = 0; head < count; head += h) {
    for (int64_t i = 0; i < pairs; ++i) {
      const float a = y[head + i], b = y[head + pairs + i];
      y[head + i] = a * cosine[i] - b * sine[i];
      y[head + pairs + i] = b * cosine[i] + a * sine[i];
    }
  }
}

void Executor::attend(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const int64_t kv_heads = h.kv_heads / h.lanes;
  const PlanShare units = share(w, phase.units);
  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    const int64_t split = unit % h.splits;
    const int64_t kv_head = unit / h.splits % kv_heads;
    const int64_t lane = w.first_lane + unit / h.splits / kv_heads;
    for (int64_t t = 0; t < pass_.width; ++t)
      attend_group(w, phase, lane, kv_head, split, t, unit + 1 < units.end);
  }
}

// All query heads of one KV head, for one token: the partial sums of every chunk of this split,
// merged in the order of the chunks. Which chunks there are depends on the position alone.
void Executor::attend_group(Worker& w, const PlanPhase& phase, int64_t lane, int64_t kv_head,
                            int64_t split, int64_t t, bool more_heads) {
  const PlanHeader& h = plan_.header;
  const int64_t heads = h.heads / h.lanes, group = h.heads / h.kv_heads, dim = h.head_dim;
  const int64_t cached_head = lane * (h.kv_heads / h.lanes) + kv_head;
  const Row& row = pass_.rows[t];
  const int64_t end = row.position + 1;
  const int64_t begin = phase.window > 0 ? std::max<int64_t>(0, end - phase.window) : 0;
  const int64_t first = kv_head * group, stride = dim + 2;
  const float* q = query_->as<float>() + ((lane * h.max_width + t) * heads + first) * dim;
  float* out = attention_->as<float>() +
               (((lane * h.splits + split) * h.max_width + t) * heads + first) * stride;
  float* partial = w.partial->as<float>();
  const auto key = [&](int64_t head, int64_t chunk) {
    return cache_.key(row.slot, phase.layer, head, std::max(begin, chunk * kChunk));
  };

  for (int64_t head = 0; head < group; ++head) {
    std::fill_n(out + head * stride, dim, 0.0f);
    out[head * stride + dim] = -std::numeric_limits<float>::infinity();
    out[head * stride + dim + 1] = 0;
  }
  const int64_t oldest = begin / kChunk;
  int64_t chunk = oldest + (split - oldest % h.splits + h.splits) % h.splits;
  for (; chunk * kChunk < end; chunk += h.splits) {
    const int64_t from = std::max(begin, chunk * kChunk);
    const int64_t count = std::min(end, (chunk + 1) * kChunk) - from;
    const void* next = nullptr;  // what this worker reads next, where that is easily said
    if ((chunk + h.splits) * kChunk < end) {
      next = key(cached_head, chunk + h.splits);
    } else if (more_heads && h.splits == 1 && pass_.width == 1) {
      next = key(cached_head + 1, oldest);
    }
    kernels_.attend(q, group, key(cached_head, chunk),
                    cache_.value(row.slot, phase.layer, cached_head, from), cache_.format(), dim,
                    count, dim, h.query_scale, next, w.scores->as<float>(), partial);
    for (int64_t head = 0; head < group; ++head) {
      float* sum = out + head * stride;
      const float* added = partial + head * stride;
      const float top = std::max(sum[dim], added[dim]);
      const float keep = std::exp(sum[dim] - top), gain = std::exp(added[dim] - top);
      scale_by(sum, keep, dim);
      add_scaled_to(sum, added, gain, dim);
      sum[dim + 1] = sum[dim + 1] * keep + added[dim + 1] * gain;
      sum[dim] = top;
    }
  }
}

// Leaves the attention of a lane of the group, [T, H/L*h], in `normed`.
void Executor::merge_splits(Worker& w, int64_t lane) {
  const PlanHeader& h = plan_.header;
  const int64_t heads = h.heads / h.lanes, dim = h.head_dim, stride = dim + 2;
  const int64_t owner = w.first_lane + lane;
  for (int64_t t = 0; t < pass_.width; ++t) {
    for (int64_t head = 0; head < heads; ++head) {
      const auto part = [&](int64_t split) {
        return attention_->as<float>() +
               (((owner * h.splits + split) * h.max_width + t) * heads + head) * stride;
      };
      float peak = -std::numeric_limits<float>::infinity();
      for (int64_t s = 0; s < h.splits; ++s) peak = std::max(peak, part(s)[dim]);
      float* out = w.normed->as<float>() + (t * heads + head) * dim;
      std::fill_n(out, dim, 0.0f);
      float total = 0;
      for (int64_t s = 0; s < h.splits; ++s) {
        const float gain = std::exp(part(s)[dim] - peak);
        add_scaled_to(out, part(s), gain, dim);
        total += part(s)[dim + 1] * gain;
      }
      scale_by(out, 1.0f / total, dim);
    }
  }
}

void Executor::project_out(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const PlanMatrix& part = phase.matrices[0];
  const PlanShare rows = share(w, part.share);
  const int64_t width = pass_.width;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    if (rows.begin >= (lane + 1) * part.rows || rows.end <= lane * part.rows) continue;
    merge_splits(w, lane);
    pack(w, phase, w.normed->as<float>(), part.columns, lane, width);
  }
  multiply(w, phase, 0, [&](int64_t lane, int64_t first, int64_t count, float* y) {
    float* out = output(PlanBuffer::kAttentionOutput, phase.write_slot, w.first_lane + lane);
    for (int64_t t = 0; t < width; ++t) {
      std::memcpy(out + t * h.hidden + first, y + t * count, floats(count));
    }
  });
}

void Executor::gate_up(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const LayerWeights& layer = weights_.layers[phase.layer];
  update(w, phase);
  read_stream(w, phase, layer.mlp_norm);
  const int64_t width = pass_.width, inner = h.intermediate / h.lanes;
  const PlanMatrix& part = phase.matrices[0];  // UP has the same rows and the same share
  const Matrix& up_rows = rows(w, phase, 1);
  const Activation up_kind = activation_of(up_rows);
  const PlanShare own = share(w, part.share);
  multiply(w, phase, 0, [&](int64_t lane, int64_t first, int64_t count, float* gate) {
    float* up = gate + width * count;
    const int64_t begin = lane * part.rows + first - own.begin;
    kernels_.multiply(up_rows, begin, begin + count, up_kind, w.packed_lane(up_kind, lane, width),
                      width, up, count);
    for (int64_t t = 0; t < width; ++t) {
      float* hidden =
          hidden_->as<float>() + ((w.first_lane + lane) * h.max_width + t) * inner + first;
      gate_times_(gate + t * count, up + t * count, count, hidden);
    }
  });
}

void Executor::project_down(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const PlanMatrix& part = phase.matrices[0];
  const PlanShare rows = share(w, part.share);
  const int64_t width = pass_.width, inner = h.intermediate / h.lanes;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    if (rows.begin >= (lane + 1) * part.rows || rows.end <= lane * part.rows) continue;
    const float* hidden = hidden_->as<float>() + (w.first_lane + lane) * h.max_width * inner;
    pack(w, phase, hidden, inner, lane, width);
  }
  multiply(w, phase, 0, [&](int64_t lane, int64_t first, int64_t count, float* y) {
    float* out = output(PlanBuffer::kMlpOutput, phase.write_slot, w.first_lane + lane);
    for (int64_t t = 0; t < width; ++t) {
      std::memcpy(out + t * h.hidden + first, y + t * count, floats(count));
    }
  });
}

// Offers this worker's elements of its lanes' streams to a head that reads all lanes.
void Executor::gather(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  update(w, phase);
  const PlanShare units = share(w, phase.units);  // (lane of the group, column)
  const int64_t width = pass_.width, hidden = h.hidden;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    const int64_t from = std::max<int64_t>(units.begin - lane * hidden, 0);
    const int64_t to = std::min<int64_t>(units.end - lane * hidden, hidden);
    if (from >= to) continue;
    const float* x = w.x->as<float>() + lane * width * hidden;
    if (h.head != PlanHead::kSum) {
      const int64_t scale = h.final_norm_per_lane ? (w.first_lane + lane) * hidden : 0;
      kernels_.rms_norm(x, hidden, weights_.final_norm + scale, h.norm_eps, hidden, width,
                        w.normed->as<float>(), hidden);
      x = w.normed->as<float>();
    }
    for (int64_t t = 0; t < width; ++t) {
      float* stream = exchange_.stream() + ((w.first_lane + lane) * h.max_width + t) * hidden;
      std::memcpy(stream + from, x + t * hidden + from, floats(to - from));
    }
  }
}

void Executor::project_head(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const PlanMatrix& part = phase.matrices[0];
  const int64_t hidden = h.hidden, wanted = pass_.wanted;
  const bool shared = plan_.shared_head();
  float* logits = exchange_.logits();
  if (!shared) update(w, phase);
  if (wanted == 0) return;

  const PlanShare own = share(w, part.share);
  for (int64_t lane = 0; lane < (shared ? 1 : h.group_lanes); ++lane) {
    const int64_t begin = std::max<int64_t>(own.begin - lane * part.rows, 0);
    const int64_t end = std::min<int64_t>(own.end - lane * part.rows, part.rows);
    if (begin >= end) continue;
    float* normed = w.normed->as<float>();
    const int64_t owner = shared ? 0 : w.first_lane + lane;
    for (int64_t i = 0; i < wanted; ++i) {
      const int64_t t = pass_.wanted_row[i];
      float* row = normed + i * part.columns;
      if (shared) {
        join_lanes(t, row);
        continue;
      }
      const int64_t scale = h.final_norm_per_lane ? owner * hidden : 0;
      kernels_.rms_norm(w.x->as<float>() + (lane * pass_.width + t) * hidden, hidden,
                        weights_.final_norm + scale, h.norm_eps, hidden, 1, row, hidden);
    }
    pack(w, phase, normed, part.columns, 0, wanted);
    const Matrix& matrix = rows(w, phase, 0);
    const Activation kind = activation_of(matrix);
    const int64_t first = lane * part.rows + begin - own.begin;
    kernels_.multiply(matrix, first, first + end - begin, kind, w.packed_lane(kind, 0, wanted),
                      wanted, logits + owner * part.rows + begin, h.vocab);
  }
}

// The input of a head that reads all lanes, from what `gather` offered: [D] or [L*D].
void Executor::join_lanes(int64_t t, float* out) const {
  const PlanHeader& h = plan_.header;
  const int64_t hidden = h.hidden;
  const auto stream = [&](int64_t lane) {
    return exchange_.stream() + (lane * h.max_width + t) * hidden;
  };
  if (h.head == PlanHead::kConcat) {
    for (int64_t lane = 0; lane < h.lanes; ++lane) {
      std::memcpy(out + lane * hidden, stream(lane), floats(hidden));
    }
    return;
  }
  std::memcpy(out, stream(0), floats(hidden));
  for (int64_t lane = 1; lane < h.lanes; ++lane) add_to(out, stream(lane), hidden);
  if (h.head == PlanHead::kMean) scale_by(out, 1.0f / static_cast<float>(h.lanes), hidden);
  if (h.head == PlanHead::kSum) {
    kernels_.rms_norm(out, hidden, weights_.final_norm, h.norm_eps, hidden, 1, out, hidden);
  }
}

float* Executor::output(PlanBuffer module, int64_t slot, int64_t lane) const {
  const PlanHeader& h = plan_.header;
  float* ring = module == PlanBuffer::kAttentionOutput ? exchange_.attention_output()
                                                       : exchange_.mlp_output();
  return ring + (slot * h.lanes + lane) * h.max_width * h.hidden;
}

}  // namespace monolane

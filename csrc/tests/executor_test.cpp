// Past 500 lines on purpose: one program, whose cases share its models and its comparison.
// Drives the executor without Python, so that a sanitizer sees nothing but our own code: weights
// converted by the workers, epochs, batches, stops, drafts, a draft model, heads, rollbacks,
// traces, and a destructor amid an epoch, on 1 to 8 workers; and the ranks of a plan as executors
// of one process that share memory.
//
//   executor_test CASES           runs everything; exit code 0 if all holds
//   executor_test CASES FAULT     with a fault put in, which the sanitizer must report:
//     wait      a phase no longer waits for what it reads (a race)
//     norm      the same of the norm over all heads
//     route     the same of the choice of experts
//     weights   a matrix is one row shorter than its plan says (a read beyond a buffer)
//     ring      a phase writes one slot beyond its ring (a write beyond an arena)
//
// CASES comes from write_cases.py, which describes it.
#include "executor.h"

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace monolane {
namespace {

#define EXPECT(condition)                                                           \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (false)

class Blobs {
 public:
  explicit Blobs(const char* path) : file_(path, std::ios::binary) { EXPECT(file_.good()); }

  template <typename T>
  std::vector<T> next() {
    int64_t bytes = 0;
    file_.read(reinterpret_cast<char*>(&bytes), 8);
    EXPECT(file_.good() && bytes % static_cast<int64_t>(sizeof(T)) == 0);
    std::vector<T> found(bytes / sizeof(T));
    file_.read(reinterpret_cast<char*>(found.data()), bytes);
    EXPECT(file_.good());
    return found;
  }
  int64_t number() { return next<int64_t>().at(0); }

 private:
  std::ifstream file_;
};

struct Tensor {
  int32_t columns;
  std::vector<float> values;
};

struct Tensors {
  std::vector<float> frequencies[kPlanRotaries], final_norm;
  Tensor embedding, head;
  std::vector<std::map<WeightRole, Tensor>> layers;
};

struct NamedPlan {
  std::string dtype;
  bool every_set;  // of instructions that this machine and this build have
  Plan plan;
};

struct Arithmetic {
  Format weights;
  Activation activation;
  Format kv;
};

Arithmetic arithmetic_of(const std::string& dtype) {
  if (dtype == "float32") return {Format::kF32, Activation::kF32, Format::kF32};
  if (dtype == "bfloat16") return {Format::kBf16, Activation::kBf16, Format::kBf16};
  if (dtype == "int8") return {Format::kI8, Activation::kI8, Format::kBf16};
  EXPECT(dtype == "int4");
  return {Format::kI4, Activation::kI8, Format::kBf16};
}

// In which matrices of a format are multiplied.
Format used_of(Format format) { return is_repacked(format) ? repacked_of(format) : format; }

void convert_all(Executor& executor) {
  for (size_t p = 0; p < executor.plan().phases.size(); ++p) {
    for (int32_t i = 0; i < executor.plan().phases[p].num_matrices; ++i) executor.convert(p, i);
  }
}

// A model's weights in one format, in buffers exactly as long as they need be, to be used in one.
class StoredWeights {
 public:
  StoredWeights(const Tensors& t, Format format, Format used, bool cut)
      : format_(format), used_(used), cut_(cut) {
    table.embedding = store(t.embedding.values, t.embedding.columns, Format::kF32);
    table.head = {store(t.head.values, t.head.columns, format), used};
    table.final_norm = t.final_norm.data();
    for (int i = 0; i < kPlanRotaries; ++i) {
      table.frequencies[i] = t.frequencies[i].empty() ? nullptr : t.frequencies[i].data();
    }
    for (size_t i = 0; i < t.layers.size(); ++i) table.layers.push_back(layer(t, i));
  }

  ModelWeights table;

 private:
  LayerWeights layer(const Tensors& t, size_t index) {
    const std::map<WeightRole, Tensor>& tensors = t.layers[index];
    const auto vector = [&](WeightRole role) -> const float* {
      const auto found = tensors.find(role);
      return found == tensors.end() ? nullptr : found->second.values.data();
    };
    const auto matrix = [&](WeightRole role, int64_t missing = 0) {
      const Tensor& found = tensors.at(role);
      return Weight{store(found.values, found.columns, format_, missing), used_};
    };
    const auto experts = [&](WeightRole role, int64_t count) {
      std::vector<Weight> each;
      const Tensor& found = tensors.at(role);
      const std::vector<float>& all = found.values;
      const size_t size = all.size() / static_cast<size_t>(count);
      for (size_t begin = 0; begin < all.size(); begin += size) {
        const std::vector<float> one(all.begin() + begin, all.begin() + begin + size);
        each.push_back({store(one, found.columns, format_), used_});
      }
      return each;
    };
    LayerWeights w{};
    w.attention_norm = vector(WeightRole::kAttentionNorm);
    w.q = matrix(WeightRole::kQ);
    if (tensors.contains(WeightRole::kKvDown)) {
      w.q_down = matrix(WeightRole::kQDown);
      w.kv_down = matrix(WeightRole::kKvDown);
      w.k_up = matrix(WeightRole::kKUp);
      w.v_up = matrix(WeightRole::kVUp);
    } else {
      w.k = matrix(WeightRole::kK);
      w.v = matrix(WeightRole::kV);
    }
    w.q_norm = vector(WeightRole::kQNorm);
    w.k_norm = vector(WeightRole::kKNorm);
    w.o = matrix(WeightRole::kO);
    w.post_attention_norm = vector(WeightRole::kPostAttentionNorm);
    w.mlp_norm = vector(WeightRole::kMlpNorm);
    if (tensors.contains(WeightRole::kRouter)) {
      const Tensor& router = tensors.at(WeightRole::kRouter);
      const int64_t count = static_cast<int64_t>(router.values.size()) / router.columns;
      w.router = {store(router.values, router.columns, Format::kF32), Format::kF32};
      w.expert_gate = experts(WeightRole::kExpertGate, count);
      w.expert_up = experts(WeightRole::kExpertUp, count);
      w.expert_down = experts(WeightRole::kExpertDown, count);
      w.router_correction = vector(WeightRole::kRouterCorrection);
      if (tensors.contains(WeightRole::kSharedGate)) {
        w.shared_gate = matrix(WeightRole::kSharedGate);
        w.shared_up = matrix(WeightRole::kSharedUp);
        w.shared_down = matrix(WeightRole::kSharedDown);
      }
    } else {
      w.gate = matrix(WeightRole::kGate);
      w.up = matrix(WeightRole::kUp, cut_ && index == 0 ? 1 : 0);
      w.down = matrix(WeightRole::kDown);
    }
    w.post_mlp_norm = vector(WeightRole::kPostMlpNorm);
    return w;
  }

  // `missing`: rows that the buffer lacks although the matrix claims them.
  Matrix store(const std::vector<float>& x, int64_t columns, Format format, int64_t missing = 0) {
    const int64_t rows = static_cast<int64_t>(x.size()) / columns, kept = rows - missing;
    auto& values = values_.emplace_back(new uint8_t[kept * row_bytes(format, columns)]);
    Matrix matrix{values.get(), nullptr, rows, columns, format};
    if (format == Format::kF32) {
      std::memcpy(values.get(), x.data(), kept * columns * 4);
    } else if (format == Format::kBf16) {
      for (int64_t i = 0; i < kept * columns; ++i) {  // cut off: the upper half of a float
        std::memcpy(values.get() + 2 * i, reinterpret_cast<const char*>(&x[i]) + 2, 2);
      }
    } else {
      auto& scales = scales_.emplace_back(new uint16_t[rows * columns / kGroup]);
      quantize_rows(format, Format::kF32, x.data(), kept, columns, values.get(), scales.get());
      matrix.scales = scales.get();
    }
    return matrix;
  }

  Format format_, used_;
  bool cut_;
  std::vector<std::unique_ptr<uint8_t[]>> values_;
  std::vector<std::unique_ptr<uint16_t[]>> scales_;
};

constexpr int kSlots = 3;

std::vector<int32_t> prompt(int count, uint32_t seed) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i)
    tokens.push_back((seed = seed * 1664525u + 1013904223u) >> 24 & 63);
  return tokens;
}

Advance advance(int slot, std::vector<int32_t> tokens, int budget) {
  return {.slot = slot,
          .tokens = std::move(tokens),
          .budget = budget,
          .draw = {.seed = 5,
                   .top_p = 0.95,
                   .min_p = 0.02,
                   .temperature = 1.1f,
                   .top_k = 30,
                   .frequency_penalty = 0,
                   .presence_penalty = 0,
                   .repetition_penalty = 1},
          .biases = {{7, 1.5f}, {9, -INFINITY}},
          .stop_ids = {},
          .logprobs = slot == 1 ? 2 : -1};
}

Advance penalised(Advance advance, int32_t prompt) {
  advance.draw.frequency_penalty = 0.5f;
  advance.draw.presence_penalty = 0.25f;
  advance.draw.repetition_penalty = 1.25f;
  advance.prompt = prompt;
  return advance;
}

using Drawn = std::map<int, std::vector<int32_t>>;  // by slot

// Reads an epoch to its end; from `stop_after` tokens on it asks for that end.
Drawn drain(Executor& executor, size_t stop_after = SIZE_MAX) {
  Drawn drawn;
  std::vector<TokenEvent> events;
  size_t count = 0;
  for (bool over = false; !over;) {
    events.clear();
    over = executor.read(events, 20);
    for (const TokenEvent& event : events) drawn[event.slot].push_back(event.token);
    count += events.size();
    if (count >= stop_after) executor.interrupt();
  }
  return drawn;
}

Drawn draw(Executor& executor, std::vector<Advance> advances) {
  executor.start(std::move(advances));
  return drain(executor);
}

void clear(Executor& executor) {
  for (int slot = 0; slot < kSlots; ++slot) executor.truncate(slot, 0);
}

// Three requests at once, one of them with a prompt of several passes, are what each is alone.
Drawn test_batch(Executor& executor) {
  const std::vector<Advance> advances = {advance(0, prompt(70, 1), 8), advance(1, prompt(3, 2), 12),
                                         penalised(advance(2, prompt(270, 3), 5), 270)};
  clear(executor);
  Drawn alone;
  for (const Advance& one : advances) alone.merge(draw(executor, {one}));
  clear(executor);
  EXPECT(draw(executor, advances) == alone);
  return alone;
}

// An epoch that is stopped and taken up again draws what one draws that is not.
void test_yield(Executor& executor) {
  clear(executor);
  const std::vector<int32_t> given = prompt(20, 4);
  const std::vector<int32_t> whole = draw(executor, {penalised(advance(0, given, 20), 20)})[0];
  clear(executor);
  executor.start({penalised(advance(0, given, 20), 20)});
  std::vector<int32_t> parts = drain(executor, 5)[0];
  while (parts.size() < whole.size()) {
    const int left = static_cast<int>(whole.size() - parts.size());
    Advance rest = penalised(advance(0, {parts.back()}, left), 20);
    rest.history = given;
    rest.history.insert(rest.history.end(), parts.begin(), parts.end() - 1);
    executor.start({rest});
    const std::vector<int32_t> more = drain(executor, 3)[0];
    parts.insert(parts.end(), more.begin(), more.end());
  }
  EXPECT(parts == whole);
}

// Guides for slot 1, made from its tokens so far on a thread of their own, as its readers' are.
class Guiding {
 public:
  Guiding(Executor& executor, int32_t vocab) : executor_(executor), vocab_(vocab) {}

  // Draws until `stop_after` tokens of slot 1 have come, or all there are; may be called again.
  std::vector<int32_t> draw(std::vector<Advance> advances, size_t stop_after) {
    executor_.start(std::move(advances));
    bool over = false, stopped = false;
    std::thread poster([&] { post_all(); });
    std::vector<TokenEvent> events;
    while (!over) {
      events.clear();
      over = executor_.read(events, 20);
      for (const TokenEvent& event : events) {
        if (event.slot != 1) continue;
        const std::lock_guard<std::mutex> lock(mutex_);
        drawn_.push_back(event.token);
      }
      changed_.notify_one();
      if (drawn_.size() >= stop_after && !stopped) executor_.interrupt(), stopped = true;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    poster.join();
    over_ = false;
    return drawn_;
  }

 private:
  // What follows the first `count` tokens: a third of the vocabulary, now and then behind a run.
  Guide after(size_t count) const {
    uint32_t state = 17;
    for (size_t i = 0; i < count; ++i) state = state * 31u + drawn_[i];
    Guide guide;
    for (uint32_t i = 0; i < state % 7 && state % 3 == 0; ++i)
      guide.forced.push_back(i + state % 50);
    guide.mask.assign(mask_words(vocab_), 0);
    for (int32_t i = state % 3; i < vocab_; i += 3) guide.mask[i / 32] |= 1u << i % 32;
    return guide;
  }

  void post_all() {
    std::unique_lock<std::mutex> lock(mutex_);
    bool first = true;  // of the epoch, which forgot the last guide
    while (true) {
      changed_.wait(lock, [&] { return over_ || first || drawn_.size() >= due_; });
      if (over_) return;
      Guide guide;
      if (drawn_.size() >= due_) {
        said_ = drawn_.size();
        guide = after(said_);
        due_ = said_ + guide.forced.size() + 1;
      } else {  // said already: what is left of it
        guide = after(said_);
        guide.forced.erase(guide.forced.begin(), guide.forced.begin() + (drawn_.size() - said_));
      }
      first = false;
      if (due_ % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));  // late
      executor_.guide(1, std::move(guide));
    }
  }

  Executor& executor_;
  int32_t vocab_;
  std::vector<int32_t> drawn_;
  size_t said_ = 0,
         due_ = 0;  // the last guide followed `said_` tokens; the next is due with `due_`
  bool over_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// What is guided draws the same alone, beside others, and in epochs that end at any time; with
// drafts, most of them right.
void test_guides(Executor& executor, int32_t vocab) {
  Advance guided = advance(1, prompt(20, 9), 40);
  guided.guided = true;
  clear(executor);
  const std::vector<int32_t> whole = Guiding(executor, vocab).draw({guided}, SIZE_MAX);
  EXPECT(whole.size() == 40);
  std::vector<int32_t> drafts = guided.tokens;
  drafts.insert(drafts.end(), whole.begin(), whole.end());
  for (size_t i = 0; i < drafts.size(); i += 5) drafts[i] ^= 1;
  executor.script(1, drafts, {});
  guided.drafts = 7;
  clear(executor);
  const std::vector<int32_t> beside =
      Guiding(executor, vocab)
          .draw({advance(0, prompt(70, 1), 30), guided, advance(2, prompt(90, 3), 50)}, SIZE_MAX);
  EXPECT(beside == whole);
  clear(executor);
  Guiding guiding(executor, vocab);
  std::vector<int32_t> parts;
  const std::vector<int32_t> tokens = guided.tokens;
  while (parts.size() < whole.size()) {
    std::vector<int32_t> known = tokens;
    known.insert(known.end(), parts.begin(), parts.end());
    Advance rest = guided;
    rest.tokens.assign(known.begin() + executor.length(1), known.end());
    rest.budget = guided.budget - static_cast<int>(parts.size());
    parts = guiding.draw({rest}, parts.size() + 3);
  }
  EXPECT(parts == whole);
  executor.script(1, {}, {});
}

// Drafts that are right up to a place draw what none do, beside others and in epochs that end amid
// them; a sequence of its own drafter, too.
void test_drafts(Executor& executor) {
  const std::vector<int32_t> given = prompt(20, 4);
  Advance one = penalised(advance(0, given, 24), 20), other = advance(1, prompt(3, 2), 18);
  clear(executor);
  const Drawn plain = draw(executor, {one, other});
  std::vector<int32_t> known = given;
  known.insert(known.end(), plain.at(0).begin(), plain.at(0).end());
  std::vector<int32_t> drafts = known;
  for (size_t i = 0; i < drafts.size(); i += 5) drafts[i] ^= 1;
  executor.script(0, drafts, {});
  one.drafts = 7;
  other.drafts = kAutoDrafts;
  clear(executor);
  EXPECT(draw(executor, {one, other}) == plain);
  clear(executor);
  size_t drawn = 0;
  while (drawn < plain.at(0).size()) {
    const auto held = known.begin() + executor.length(0);
    one.history.assign(known.begin(), held);
    one.tokens.assign(held, known.begin() + given.size() + drawn);
    one.budget = static_cast<int32_t>(plain.at(0).size() - drawn);
    executor.start({one});
    const Drawn more = drain(executor, 2);
    for (const int32_t token : more.at(0)) EXPECT(token == plain.at(0).at(drawn++));
  }
  executor.script(0, {}, {});
}

// Heads of numbers without meaning, in buffers as long as they need be; of some tokens.
class SomeHeads {
 public:
  explicit SomeHeads(const PlanHeader& h) : vocab_(h.vocab), hidden_(h.hidden) {
    for (int32_t token = 0; token < h.vocab; token += 3) tokens_.push_back(token);
    const auto fill = [](std::vector<float>& x, size_t count) {
      for (size_t i = 0; i < count; ++i)
        x.push_back(0.3f * std::sin(static_cast<float>(7 * i + 1)));
    };
    fill(gate_, kInner * 2 * hidden_);
    fill(up_, kInner * 2 * hidden_);
    fill(down_, hidden_ * kInner);
    fill(head_, tokens_.size() * hidden_);
  }
  HeadsWeights weights() const {
    return {hidden_,      kInner,       static_cast<int64_t>(tokens_.size()),
            vocab_,       gate_.data(), up_.data(),
            down_.data(), head_.data(), tokens_.data(),
            1e-5f};
  }

 private:
  static constexpr int64_t kInner = 96;
  int64_t vocab_, hidden_;
  std::vector<float> gate_, up_, down_, head_;
  std::vector<int32_t> tokens_;
};

// What a draft model or heads propose, on the same workers, changes nothing: in one sequence,
// beside others that read prompts, and in epochs that end at any time.
void test_joint_drafter(const NamedPlan& named, const StoredWeights& weights, Isa isa, DraftBy by) {
  const Arithmetic arithmetic = arithmetic_of(named.dtype);
  const auto make = [&] {
    auto made = std::make_unique<Executor>(named.plan, Seat{}, weights.table, select_kernels(isa),
                                           arithmetic.activation, arithmetic.kv, kSlots,
                                           std::vector<int>{});
    convert_all(*made);
    return made;
  };
  const std::unique_ptr<Executor> model = make(), drafting = make();
  if (by == DraftBy::kModel) {
    drafting->set_draft_model(*model);
  } else {
    if (named.plan.header.hidden % kGroup != 0) return;  // heads are for whole groups
    drafting->set_heads(SomeHeads(named.plan.header).weights());
  }
  Advance one = penalised(advance(0, prompt(20, 4), 24), 20), other = advance(1, prompt(3, 2), 18);
  Advance reading = advance(2, prompt(270, 3), 5);
  const Drawn plain = draw(*drafting, {one, other, reading});
  one.drafts = other.drafts = 5;
  reading.drafts = kAutoDrafts;
  one.drafter = other.drafter = reading.drafter = by;
  clear(*drafting);
  EXPECT(draw(*drafting, {one, other, reading}) == plain);
  clear(*drafting);
  const std::vector<int32_t> given = one.tokens;
  std::vector<int32_t> parts;
  while (parts.size() < plain.at(0).size()) {
    std::vector<int32_t> known = given;
    known.insert(known.end(), parts.begin(), parts.end());
    const auto held = known.begin() + drafting->length(0);
    one.history.assign(known.begin(), held);
    one.tokens.assign(held, known.end());
    one.budget = static_cast<int32_t>(plain.at(0).size() - parts.size());
    drafting->start({one});
    const Drawn more = drain(*drafting, 3);
    parts.insert(parts.end(), more.at(0).begin(), more.at(0).end());
  }
  EXPECT(parts == plain.at(0));
  clear(*drafting);
  one.history.clear();
  one.tokens = given;
  one.budget = 400;
  drafting->start({one});  // and destroyed amid it
}

// Drafts that are taken back leave no trace; logits do not depend on the width of the passes.
void test_rollback(Executor& executor, int32_t vocab) {
  const std::vector<int32_t> tokens = prompt(330, 6);
  const auto logits = [&](size_t begin, size_t count) {
    const std::vector<int32_t> part(tokens.begin() + begin, tokens.begin() + begin + count);
    std::vector<float> out(count * vocab);
    executor.logits(2, part, out.data());
    return out;
  };
  clear(executor);
  const std::vector<float> whole = logits(0, tokens.size());
  executor.truncate(2, 310);
  logits(3, 7);
  executor.truncate(2, 310);
  std::vector<float> again = logits(310, 1);
  const std::vector<float> rest = logits(311, 19);
  again.insert(again.end(), rest.begin(), rest.end());
  EXPECT(std::memcmp(again.data(), &whole[310 * vocab], again.size() * sizeof(float)) == 0);
}

void test_trace(Executor& executor, const Plan& plan) {
  clear(executor);
  executor.set_trace(true);
  draw(executor, {advance(0, prompt(9, 7), 4)});
  executor.set_trace(false);
  EXPECT(executor.take_spans().size() == plan.phases.size() * plan.header.workers * 4);
}

// Workers that convert float weights themselves draw what those draw that were given the result.
void test_convert(const NamedPlan& named, const Tensors& tensors, Isa isa, const Drawn& expected) {
  const Arithmetic arithmetic = arithmetic_of(named.dtype);
  const StoredWeights weights(tensors, Format::kF32, used_of(arithmetic.weights), false);
  Executor executor(named.plan, Seat{}, weights.table, select_kernels(isa), arithmetic.activation,
                    arithmetic.kv, kSlots, {});
  bool refused = false;
  try {
    executor.start({advance(0, prompt(5, 8), 5)});
  } catch (const std::logic_error&) {
    refused = true;
  }
  EXPECT(refused);
  convert_all(executor);
  EXPECT(test_batch(executor) == expected);
}

// Ranks draw what one executor draws, also from a slot that each of them copied.
void test_ranks(const NamedPlan& named, const Tensors& tensors, Isa isa, const Drawn& expected) {
  const Arithmetic arithmetic = arithmetic_of(named.dtype);
  const StoredWeights weights(tensors, arithmetic.weights, used_of(arithmetic.weights), false);
  std::vector<std::unique_ptr<Executor>> ranks;  // the followers stop first, as when rank 0 ends
  for (int32_t rank = 0; rank < 2; ++rank) {
    const int segment = rank > 0 ? ranks[0]->exchange().segment() : -1;
    ranks.push_back(std::make_unique<Executor>(
        named.plan, Seat{.rank = rank, .ranks = 2, .segment = segment}, weights.table,
        select_kernels(isa), arithmetic.activation, arithmetic.kv, kSlots, std::vector<int>{}));
    convert_all(*ranks.back());
    if (rank > 0) ranks.back()->follow();
  }
  Executor& leader = *ranks[0];
  EXPECT(test_batch(leader) == expected);
  clear(leader);
  draw(leader, {advance(0, prompt(40, 1), 1)});
  leader.copy(0, 1);
  leader.copy(1, 2);
  const Drawn first = draw(leader, {advance(0, prompt(3, 2), 9)});
  leader.copy(1, 0);  // while a late rank may still read the pass that ended the last epoch
  const Drawn last = draw(leader, {advance(2, prompt(3, 2), 9)});
  EXPECT(first.at(0) == last.at(2));
  ranks.pop_back();
}

// Returns what test_batch drew.
Drawn test_all(const NamedPlan& named, const Tensors& tensors, Isa isa, const std::string& fault) {
  const Arithmetic arithmetic = arithmetic_of(named.dtype);
  const StoredWeights weights(tensors, arithmetic.weights, used_of(arithmetic.weights),
                              fault == "weights");
  Executor executor(named.plan, Seat{}, weights.table, select_kernels(isa), arithmetic.activation,
                    arithmetic.kv, kSlots, {});
  convert_all(executor);
  const Drawn drawn = test_batch(executor);
  if (named.plan.header.groups % 2 == 0 && fault.empty()) test_ranks(named, tensors, isa, drawn);
  test_yield(executor);
  test_guides(executor, named.plan.header.vocab);
  test_drafts(executor);
  if (fault.empty()) test_joint_drafter(named, weights, isa, DraftBy::kModel);
  if (fault.empty()) test_joint_drafter(named, weights, isa, DraftBy::kHeads);
  test_rollback(executor, named.plan.header.vocab);
  test_trace(executor, named.plan);
  clear(executor);
  // bfloat16 is cut off here, but rounded by the workers.
  if (arithmetic.activation == Activation::kI8) test_convert(named, tensors, isa, drawn);
  Advance waiting = advance(1, prompt(5, 8), 500);
  waiting.guided = true;
  executor.start({advance(0, prompt(5, 8), 500), waiting});  // and destroyed amid it
  return drawn;
}

// Spoils a plan as the name of the fault says.
void spoil(Plan& plan, const std::string& fault) {
  for (PlanPhase& phase : plan.phases) {
    if (fault == "wait" && phase.kind == PhaseKind::kGateUp && phase.layer == 1) {
      phase.wait_group = phase.wait_all = kNoWait;
    }
    if (fault == "norm" && phase.kind == PhaseKind::kNormQk && phase.layer == 1) {
      phase.wait_group = kNoWait;
    }
    if (fault == "route" && phase.kind == PhaseKind::kExpertGateUp) {
      phase.wait_group = kNoWait;
    }
    if (fault == "ring" && phase.kind == PhaseKind::kOut) {
      phase.write_slot = plan.header.attention_slots;
    }
  }
}

Tensors read_tensors(Blobs& blobs) {
  Tensors t;
  const std::vector<int32_t> counts = blobs.next<int32_t>();  // tensors of each layer
  for (std::vector<float>& frequencies : t.frequencies) frequencies = blobs.next<float>();
  t.final_norm = blobs.next<float>();
  const auto tensor = [&] {
    const int32_t columns = static_cast<int32_t>(blobs.number());
    return Tensor{columns, blobs.next<float>()};
  };
  t.embedding = tensor();
  t.head = tensor();
  for (const int32_t tensors : counts) {
    std::map<WeightRole, Tensor>& layer = t.layers.emplace_back();
    for (int32_t j = 0; j < tensors; ++j) {
      const auto role = static_cast<WeightRole>(blobs.number());
      layer.emplace(role, tensor());
    }
  }
  return t;
}

NamedPlan read_plan(Blobs& blobs) {
  const std::vector<char> dtype = blobs.next<char>();
  const bool every_set = blobs.number() != 0;
  Plan plan;
  plan.header = blobs.next<PlanHeader>().at(0);
  plan.phases = blobs.next<PlanPhase>();
  plan.shares = blobs.next<PlanShare>();
  return {std::string(dtype.begin(), dtype.end()), every_set, plan};
}

int run(const char* path, const std::string& fault) {
  Blobs blobs(path);
  int count = 0;
  for (int64_t models = blobs.number(); models > 0; --models) {
    const Tensors tensors = read_tensors(blobs);
    std::map<std::string, Drawn> alone;  // what one worker draws, by dtype
    for (int64_t plans = blobs.number(); plans > 0; --plans) {
      NamedPlan named = read_plan(blobs);
      const bool spoilt = !fault.empty() && named.plan.header.workers > 1;
      if (spoilt) spoil(named.plan, fault);
      const Drawn drawn = test_all(named, tensors, best_isa(), spoilt ? fault : "");
      const Drawn& expected = alone.try_emplace(named.dtype, drawn).first->second;
      // Where keys are split, sums are others, and may tip a draw.
      if (named.plan.header.splits == 1) EXPECT(drawn == expected);
      ++count;
      if (!named.every_set || !fault.empty()) continue;
      for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
        if (isa != best_isa() && supported(isa)) test_all(named, tensors, isa, ""), ++count;
      }
    }
  }
  std::printf("%d executors: all holds\n", count);
  return 0;
}

}  // namespace
}  // namespace monolane

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "expected: executor_test CASES [wait | norm | route | weights | ring]\n");
    return 2;
  }
  return monolane::run(argv[1], argc > 2 ? argv[2] : "");
}

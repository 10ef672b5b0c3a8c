// Drafts: given ones, a sequence's own, a draft model's, heads' and an assistant's.
#include <algorithm>
#include <cmath>
#include <list>
#include <memory>
#include <optional>

#include "expect.h"
#include "sample/token_order.h"
#include "tests.h"

namespace monolane {
namespace {

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

// An assistant of numbers without meaning, with a layer for each of the model's that keeps keys and
// values, in buffers as long as they need be; with centroids or without.
class SomeAssistant {
 public:
  SomeAssistant(const Plan& plan, bool ordered) {
    const PlanHeader& h = plan.header;
    for (const PlanModule& module : plan.modules) {
      const PlanAttention& a = module.attention;
      if (a.heads > 0 && a.keys_of < 0) weights.layers.push_back(layer(a, module.layer));
    }
    weights.before = matrix(kHidden, 2 * h.hidden);
    weights.after = matrix(h.hidden, kHidden);
    weights.head = matrix(h.vocab, kHidden);
    weights.centroids = ordered ? matrix(kCentroids, kHidden) : Matrix{};
    for (int32_t i = 0; ordered && i < h.vocab; ++i) {
      weights.ordering.push_back((i * 5 + 3) % h.vocab);
    }
    weights.chosen = 3;
    weights.final_norm = some(kHidden);
    weights.norm_eps = 1e-6f;
  }
  // Whether a model's layers keep what an assistant reads: keys of their own, of one lane.
  static bool reads(const Plan& plan) {
    return plan.header.lanes == 1 &&
           std::ranges::any_of(plan.modules,
                               [](const PlanModule& m) {
                                 return m.attention.heads > 0 && m.attention.keys_of < 0;
                               }) &&
           std::ranges::all_of(plan.modules,
                               [](const PlanModule& m) { return m.latent.rank == 0; });
  }

  AssistantWeights weights = {};

 private:
  static constexpr int64_t kHidden = 44, kInner = 58, kCentroids = 12;

  AssistantLayer layer(const PlanAttention& a, int64_t keys_of) {
    const int64_t heads = 3 * a.kv_heads, dim = a.head_dim;
    return {.heads = heads,
            .kv_heads = a.kv_heads,
            .head_dim = dim,
            .keys_of = keys_of,
            .window = a.window,
            .q = matrix(heads * dim, kHidden),
            .o = matrix(kHidden, heads * dim),
            .gate = matrix(kInner, kHidden),
            .up = matrix(kInner, kHidden),
            .down = matrix(kHidden, kInner),
            .attention_norms = some(2 * kHidden),
            .mlp_norms = some(2 * kHidden),
            .query_norm = some(dim),
            .frequencies = some(dim / 2),
            .amplitude = 1,
            .scale = 0.5f};
  }
  std::vector<float> some(int64_t count) {
    std::vector<float> x;
    for (int64_t i = 0; i < count; ++i) x.push_back(std::sin(static_cast<float>(++drawn_ * 7)));
    return x;
  }
  Matrix matrix(int64_t rows, int64_t columns) {
    const std::vector<float>& values = values_.emplace_back(some(rows * columns));
    return {values.data(), nullptr, rows, columns, Format::kF32};
  }

  int64_t drawn_ = 0;
  std::list<std::vector<float>> values_;
};

}  // namespace

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

// What a draft model, heads or an assistant propose, on the same workers, changes nothing: in one
// sequence, beside others that read prompts, and in epochs that end at any time.
void test_joint_drafter(const NamedPlan& named, const StoredWeights& weights, Isa isa,
                        Drafting how) {
  const Arithmetic arithmetic = arithmetic_of(named.dtype);
  const auto make = [&] {
    auto made = std::make_unique<Executor>(named.plan, setup_of(arithmetic), weights.table,
                                           select_kernels(isa), std::vector<int>{});
    convert_all(*made);
    return made;
  };
  std::optional<SomeAssistant> assistant;  // outlives who reads it
  const std::unique_ptr<Executor> model = make(), drafting = make();
  const DraftBy by = how == Drafting::kModel ? DraftBy::kModel : DraftBy::kHeads;
  const bool ordered = how == Drafting::kOrderedAssistant;
  if (how == Drafting::kModel) {
    drafting->set_draft_model(*model);
  } else if (ordered || how == Drafting::kAssistant) {
    if (!SomeAssistant::reads(named.plan)) return;
    assistant.emplace(named.plan, ordered);
    drafting->set_assistant(assistant->weights);
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

// Logits that are no numbers: a chance of them is none, and tokens still have an order.
void test_no_numbers() {
  Acceptance acceptance;
  for (const float stated : {NAN, INFINITY, -INFINITY, -1.0f, 1e30f, 1.0f, 0.0f}) {
    acceptance.add(stated, true);
    EXPECT(std::isfinite(acceptance.of(stated, 0.5f)));
  }
  const std::vector<float> logits = {2, NAN, 1, -INFINITY, 2, NAN, INFINITY, 1, -NAN};
  const std::vector<int32_t> wanted = {6, 0, 4, 2, 7, 3, 1, 5, 8};
  const Before before{logits.data()};
  for (size_t i = 0; i < wanted.size(); ++i) {
    for (size_t j = 0; j < wanted.size(); ++j) EXPECT(before(wanted[i], wanted[j]) == (i < j));
  }
}

}  // namespace monolane

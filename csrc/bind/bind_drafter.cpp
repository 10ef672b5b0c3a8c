// The suffix drafter, and how drafts are chosen, as Python sees them, for tests and benchmarks: the
// executor calls both directly.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "draft/speculation.h"
#include "draft/suffix_drafter.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace monolane {
namespace {

using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OwnTokens = nb::ndarray<nb::numpy, int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OwnChances = nb::ndarray<nb::numpy, float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const Tokens& checked(const Tokens& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens.data()[i] < 0) {
      const std::string got = std::to_string(tokens.data()[i]);
      throw nb::value_error(("tokens: expected ids of 0 or more, got " + got).c_str());
    }
  }
  return tokens;
}

template <typename T>
nb::capsule owner_of(T* values) {
  return nb::capsule(values, [](void* p) noexcept { delete[] static_cast<T*>(p); });
}

std::pair<OwnTokens, OwnChances> draft(const SuffixDrafter& drafter, size_t most) {
  if (most > (size_t{1} << 20)) throw nb::value_error("most: expected at most 2**20");
  auto* tokens = new int32_t[most];
  const nb::capsule owns_tokens = owner_of(tokens);
  auto* chances = new float[most];
  const nb::capsule owns_chances = owner_of(chances);
  const size_t count = drafter.draft(most, tokens, chances);
  return {OwnTokens(tokens, {count}, owns_tokens), OwnChances(chances, {count}, owns_chances)};
}

// Drafts for all sequences, and says how long that takes and how sure it is.
class SetDrafter final : public JointDrafter {
 public:
  SetDrafter(size_t block, double cost_ns, float stated, int64_t& clock_ns)
      : block_(block), cost_ns_(cost_ns), stated_(stated), clock_ns_(clock_ns) {}
  DraftBy by() const override { return DraftBy::kHeads; }
  void draft(std::vector<DraftAsk>& asks, const GoOn& go_on, const std::function<void()>&,
             const std::atomic<bool>&) override {
    for (const DraftAsk& ask : asks) {
      const int64_t cost = std::llround(cost_ns_);
      for (size_t i = 0; i < ask.most; ++i) {
        if (i == 0 || block_ == 0) clock_ns_ += cost;
        if (!go_on(ask, 1, stated_)) break;
      }
    }
  }
  void take_part(int) override {}
  size_t block() const override { return block_; }
  double cost(int sequences) const override { return cost_ns_ * sequences; }

 private:
  const size_t block_;
  const double cost_ns_;
  const float stated_;
  int64_t& clock_ns_;
};

// One sequence without a model: whoever replays it says what is drawn, and how long things took.
class Replay {
 public:
  Replay(int max_width, int64_t context, const std::vector<float>& read)
      : speculation_(1, max_width, context, read) {
    advance_.drafts = kAutoDrafts;
    speculation_.set_clock([this] { return clock_ns_; });
  }

  void begin(const std::vector<int32_t>& tokens) {
    speculation_.begin(0, {}, tokens, tokens.size(), {});
    length_ = static_cast<int64_t>(tokens.size());
  }

  // What is drafted, and how much of it the pass verifies; nothing where nobody looked.
  using Drafted = std::optional<std::pair<std::vector<int32_t>, size_t>>;
  Drafted draft(size_t most, int64_t lookup_ns) {
    draft_.clear();
    if (!speculation_.may_look(0, 1)) return std::nullopt;
    speculation_.catch_up(0);
    speculation_.propose(advance_, length_, most, draft_);
    speculation_.add_lookup(1, lookup_ns);
    speculation_.share_out({&draft_}, 1);
    return std::pair{draft_.tokens, draft_.used};
  }

  // As draft, by a joint drafter that takes so long for a token, or for a block, and states the
  // same chance of each; how many tokens it is let draft.
  size_t draft_jointly(size_t most, size_t block, double cost_ns, float stated) {
    draft_.clear();
    speculation_.set_joint(std::make_unique<SetDrafter>(block, cost_ns, stated, clock_ns_));
    std::vector<DraftAsk> asks;
    const std::atomic<bool> stop = false;
    speculation_.ask_joint(advance_, length_, most, INT32_MAX, nullptr, draft_, asks);
    speculation_.draft_jointly(asks, 1, [] {}, stop);
    return draft_.tokens.size();
  }

  void draw(const std::vector<int32_t>& tokens, int64_t pass_ns) {
    for (size_t i = 0; i < tokens.size(); ++i, ++length_) {
      speculation_.push(0, tokens[i]);
      if (i >= draft_.tokens.size()) continue;
      speculation_.learn(0, draft_, i, tokens[i] == draft_.tokens[i]);
    }
    speculation_.add_cost(1 + static_cast<int>(draft_.used), pass_ns);
  }

 private:
  Speculation speculation_;
  Advance advance_;
  Draft draft_;
  int64_t length_ = 0;
  int64_t clock_ns_ = 0;  // joint drafters' time alone
};

}  // namespace

void bind_drafter(nb::module_& m) {
  nb::class_<SuffixDrafter>(m, "SuffixDrafter",
                            "Guesses the next tokens from what followed the same ones before.")
      .def(nb::init<size_t>(), "max_tokens"_a,
           "Remember the newest max_tokens tokens, rounded up to a power of two.")
      .def(
          "append",
          [](SuffixDrafter& d, const Tokens& t) { d.append(checked(t).data(), t.size()); },
          "tokens"_a, "The text goes on with tokens that nobody drew, int32 [T].")
      .def(
          "observe",
          [](SuffixDrafter& d, const Tokens& t) { d.observe(checked(t).data(), t.size()); },
          "tokens"_a, "The text goes on with tokens that the model drew, int32 [T]: learn.")
      .def(
          "add_text",
          [](SuffixDrafter& d, const Tokens& t) { d.add_text(checked(t).data(), t.size()); },
          "tokens"_a, "Another text to copy from, int32 [T], before the first append.")
      .def("draft", &draft, "most"_a,
           "Return tokens that may come next, int32 [N], and of each the chance that it is drawn "
           "if those before it are, float32 [N].")
      .def("clear", &SuffixDrafter::clear, "Forget the texts, and keep the chances.")
      .def_prop_ro("length", &SuffixDrafter::length, "Tokens of the sequence, since clear.")
      .def_prop_ro("bytes", &SuffixDrafter::bytes, "Memory of the index.")
      .def_prop_ro("steps", &SuffixDrafter::steps, "Places and tokens looked at, ever.");

  nb::class_<PassCost>(m, "PassCost", "What passes take by their rows, as far as it is known.")
      .def(
          nb::init<int, const std::vector<float>&>(), "max_width"_a,
          "read"_a = std::vector<float>(),
          "``read``: weights that a pass is expected to read by its rows, beside those of one row.")
      .def("add", &PassCost::add, "width"_a, "nanoseconds"_a, "A pass of so many rows took that.")
      .def("of", &PassCost::of, "width"_a, "Return expected nanoseconds, 0 if nothing is known.");

  nb::class_<Replay>(m, "SpeculationReplay",
                     "How many drafts of one sequence are verified, without a model and a clock.")
      .def(nb::init<int, int64_t, const std::vector<float>&>(), "max_width"_a, "context"_a,
           "read"_a = std::vector<float>(),
           "Weights that a pass is expected to read by its rows, beside those of one row.")
      .def("begin", &Replay::begin, "tokens"_a, "A sequence begins with tokens that were given.")
      .def("draft", &Replay::draft, "most"_a, "lookup_ns"_a,
           "Return up to ``most`` drafted tokens, and how many of them the pass verifies; None "
           "where nothing is looked for. Looking takes ``lookup_ns``.")
      .def("draft_jointly", &Replay::draft_jointly, "most"_a, "block"_a, "cost_ns"_a, "stated"_a,
           "Return how many tokens are drafted of ``most`` by a drafter that takes ``cost_ns`` for "
           "each, or for a block of so many if ``block`` is not 0, and is as sure of all.")
      .def("draw", &Replay::draw, "tokens"_a, "pass_ns"_a,
           "The pass drew these tokens: drafted ones that are right, and one more.");
}

}  // namespace monolane

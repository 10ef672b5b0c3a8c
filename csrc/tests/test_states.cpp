// States of made-up operations: whatever passes a sequence is cut into, and however many rows of
// them are taken back, each token's step is taken of the same state and the same inputs.
#include <algorithm>
#include <cmath>
#include <vector>

#include "expect.h"
#include "ops/recurrent.h"
#include "tests.h"

namespace monolane {
namespace {

constexpr int64_t kTokens = 150, kSlot = 1;

// A state that decays and takes in a weighted sum over tokens; without numbers, that sum alone, as
// of a short convolution.
struct Recurrence {
  PlanState kept;

  float input(int64_t part, int64_t token, int64_t i) const {
    return std::sin(static_cast<float>(1 + token * 7 + part * 3 + i));
  }
  float sum(const float* inputs) const {
    float y = 0;
    for (int64_t i = 0; i < (kept.before + 1) * int64_t{kept.inputs}; ++i) {
      y += inputs[i] / static_cast<float>(i + 1);
    }
    return y;
  }
  float step(float* state, const float* inputs) const {
    float y = sum(inputs);
    for (int64_t i = 0; i < kept.numbers; ++i) {
      state[i] = state[i] * 0.5f + y;
      y = state[i];
    }
    return y;
  }

  // What each token of a part says: [kTokens].
  std::vector<float> expected(int64_t part) const {
    std::vector<float> inputs(static_cast<size_t>(kept.before * kept.inputs), 0.0f);
    std::vector<float> state(static_cast<size_t>(kept.numbers), 0.0f), said;
    for (int64_t token = 0; token < kTokens; ++token) {
      for (int64_t i = 0; i < kept.inputs; ++i) inputs.push_back(input(part, token, i));
      said.push_back(step(state.data(), inputs.data() + token * kept.inputs));
    }
    return said;
  }
};

// One pass of every module; returns what its rows say of a module's part, [modules][parts][rows].
std::vector<std::vector<std::vector<float>>> pass(const RecurrentStates& states,
                                                  const std::vector<Recurrence>& all,
                                                  const Run& run) {
  std::vector<std::vector<std::vector<float>>> said(all.size());
  for (size_t m = 0; m < all.size(); ++m) {
    const Recurrence& x = all[m];
    // Exactly as many as a step may need, so that a sanitizer sees one beyond them.
    std::vector<float> inputs(
        static_cast<size_t>((x.kept.before + 2 * int64_t{kPlanMaxWidth}) * x.kept.inputs));
    std::vector<float> tried(static_cast<size_t>(x.kept.numbers));
    for (int64_t part = 0; part < x.kept.parts; ++part) {
      std::vector<float>& rows = said[m].emplace_back();
      take_steps(
          states, static_cast<int64_t>(m), part, run, {inputs.data(), tried.data()},
          [&](int64_t of, int64_t row, float* out) {
            const int64_t token = run.position + row - run.first;
            for (int64_t i = 0; i < x.kept.inputs; ++i) out[i] = x.input(of, token, i);
          },
          [&](int64_t, const Step& step) {
            const float y = x.step(step.state, step.inputs);
            if (step.row < 0) return;
            EXPECT(step.row == run.first + static_cast<int64_t>(rows.size()));
            rows.push_back(y);
          });
      EXPECT(static_cast<int32_t>(rows.size()) == run.rows);
    }
  }
  return said;
}

}  // namespace

void test_states() {
  const std::vector<Recurrence> all = {{{.parts = 2, .numbers = 3, .inputs = 2, .before = 3}},
                                       {{}},  // of a module without one
                                       {{.parts = 3, .numbers = 0, .inputs = 4, .before = 2}},
                                       {{.parts = 1, .numbers = 5, .inputs = 1, .before = 0}}};
  std::vector<PlanModule> modules(all.size());
  for (size_t m = 0; m < all.size(); ++m) modules[m].state = all[m].kept;
  RecurrentStates states(modules, 2);
  const RecurrentStates none({PlanModule{}}, 2);
  EXPECT(states.any() && !none.any());

  uint32_t random = 1;
  const auto below = [&](int64_t count) {
    random = random * 1664525u + 1013904223u;
    return static_cast<int32_t>((random >> 16) % static_cast<uint32_t>(count));
  };
  for (int round = 0; round < 20; ++round) {
    states.set_position(kSlot, 0);
    for (int32_t position = 0; position < kTokens;) {
      const auto settled = static_cast<int32_t>(states.position(kSlot));
      const int32_t rows = 1 + below(std::min<int64_t>(kPlanMaxWidth, kTokens - position));
      const int32_t certain = below(rows + 1);
      const Run run{kSlot, 5, rows, certain, position, settled};
      const auto said = pass(states, all, run);
      for (size_t m = 0; m < all.size(); ++m) {
        for (int64_t part = 0; part < all[m].kept.parts; ++part) {
          const std::vector<float> expected = all[m].expected(part);
          const std::vector<float>& rows_said = said[m][static_cast<size_t>(part)];
          EXPECT(std::equal(rows_said.begin(), rows_said.end(), expected.begin() + position));
        }
      }
      states.set_position(kSlot, position + certain);
      position += certain + below(rows - certain + 1);  // the rest was taken back
      // It goes on as what it was kept as, in whichever slot.
      const int64_t bytes = states.tail_bytes(kSlot, position);
      EXPECT(states.takes_tail(position, bytes) && !states.takes_tail(position, bytes + 4));
      std::vector<char> tail(static_cast<size_t>(bytes));
      states.save_tail(kSlot, position, tail.data());
      states.copy(0, kSlot);
      states.restore_tail(kSlot, position, bytes, tail.data());
      EXPECT(states.first_resumable(kSlot) == states.position(kSlot));
    }
  }
}

}  // namespace monolane

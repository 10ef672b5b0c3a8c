// What every operation with a state of a fixed size does alike (PlanState,
// state/recurrent_states.h): which tokens' steps a pass takes, of which inputs, and what the
// sequence's next pass is left.
//
// Who has a part takes all its steps, so nobody else touches its state. Rows that may be taken back
// take their steps on a copy, which nobody keeps: the next pass takes them again, as far as they
// were right, ahead of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "abi/pass.h"
#include "ops/products.h"
#include "state/recurrent_states.h"

namespace monolane {

// One token's step in a part.
struct Step {
  float* state;         // [numbers], of the tokens before
  const float* inputs;  // [before + 1, inputs], the token's own last
  int64_t row;          // of the pass; -1: of an earlier one, which said what comes of it
};

// What a worker needs for it.
struct StepRoom {
  float* inputs;  // of the tokens before, of those whose steps were put off, and of a pass's
  float* tried;   // the copy of a state
};

// Of its scratch; State.scratch of src/monolane/ops/_spec.py counts it.
inline StepRoom step_room(const PlanState& kept, Scratch& scratch) {
  return {scratch.take((kept.before + 2 * int64_t{kPlanMaxWidth}) * kept.inputs),
          scratch.take(kept.numbers)};
}

// The steps of one part of a sequence; see below.
template <typename Read, typename Take>
void take_steps(const RecurrentStates& states, int64_t module, int64_t part, const Run& run,
                const StepRoom& room, Read read, Take take) {
  const PlanState& x = states.kept(module);
  float* state = states.state(run.slot, module, part);
  float* kept = states.inputs(run.slot, module, part);
  const int64_t put_off = run.position - run.settled, certain = put_off + run.certain;
  const int64_t earlier = x.before + put_off;
  if (run.settled == 0) {
    std::fill_n(state, x.numbers, 0.0f);
    std::fill_n(kept, int64_t{x.before} * x.inputs, 0.0f);
  }
  std::memcpy(room.inputs, kept, floats(earlier * x.inputs));
  for (int64_t t = 0; t < run.rows; ++t) {
    read(part, run.first + t, room.inputs + (earlier + t) * x.inputs);
  }
  std::memcpy(kept, room.inputs + certain * x.inputs,
              floats((x.before + run.rows - run.certain) * x.inputs));
  for (int64_t t = x.numbers > 0 ? 0 : put_off; t < put_off + run.rows; ++t) {
    if (t == certain) {  // what follows may be taken back
      std::copy_n(state, x.numbers, room.tried);
      state = room.tried;
    }
    const int64_t row = t < put_off ? -1 : run.first + t - put_off;
    take(part, Step{state, room.inputs + t * x.inputs, row});
  }
}

// Takes the steps of the worker's parts in a phase whose units are the parts of its module, of all
// sequences of the pass. `read(part, row, out)` puts what a row's step takes into out [inputs];
// `take(part, step)` makes of a state the one behind a token, and says what comes of its row.
template <typename Read, typename Take>
void take_steps(Forward& f, Worker& w, const PlanPhase& phase, const StepRoom& room, Read read,
                Take take) {
  const PlanShare own = share(f, w, phase.units);
  for (int64_t part = own.begin; part < own.end; ++part) {
    for (int32_t i = 0; i < f.pass.runs; ++i) {
      take_steps(f.states, phase.module, part, f.pass.run[i], room, read, take);
    }
  }
}

}  // namespace monolane

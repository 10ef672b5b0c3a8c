// How modules join the residual streams: what a stream gains of earlier outputs before a phase
// reads it, and where a module puts what it says.
#pragma once

#include <cstdint>

#include "ops/products.h"

namespace monolane {

// x_l += reduce(outputs of a module), or its norm, of each that joins before the phase; the rule is
// told in src/monolane/model/_reduce.py.
void update(Forward& f, Worker& w, const PlanPhase& phase);

// Norms `width` tokens of a stream [T, D] by the plan's norm; `out` may be `x`.
void norm_stream(const Forward& f, const float* x, const float* scale, int64_t width, float* out);

// Packs what a phase's module reads: the streams of the group's lanes, normed if it norms them.
void read_stream(Forward& f, Worker& w, const PlanPhase& phase);

// A token of one of the streams of AltUp that a worker keeps, [D]; tokens of a stream follow.
float* stream_of(const Forward& f, const Worker& w, int64_t stream, int64_t t);

// Where a lane's output of a module lies in a slot of its ring, [T, D].
float* output(const Forward& f, PlanBuffer module, int64_t slot, int64_t lane);

// The product of what is packed, and a bias where there is one: what a module says.
void offer_products(Forward& f, Worker& w, const PlanPhase& phase, const float* bias);

}  // namespace monolane

// kAhead: what layers that predict further ahead begin with (ops/ahead/spec.py). Such models have
// one lane.
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/stream.h"

namespace monolane {

void run_ahead(Forward& f, Worker& w, const PlanPhase& phase) {
  const int64_t hidden = f.plan.header.hidden, width = f.module(phase).ahead.width;
  const int64_t columns = hidden + width;
  const WeightsByRole& weights = f.weights.of(phase.layer);
  const float* token_scale = weights.vector(WeightRole::kAheadTokenNorm);
  const float* state_scale = weights.vector(WeightRole::kAheadStateNorm);
  const float* states = f.buffer(PlanBuffer::kStates);
  update(f, w, phase);
  float* both = w.normed->as<float>();  // [T, D + D]
  for (int64_t t = 0; t < f.pass.width; ++t) {
    float* row = both + t * columns;
    norm_stream(f, w.x->as<float>() + t * hidden, token_scale, 1, row);
    f.kernels.rms_norm(states + t * width, width, state_scale, f.plan.header.norm_eps, width, 1,
                       row + hidden, width);
  }
  pack(f, w, phase, both, columns, 0, f.pass.width);
  offer_products(f, w, phase, nullptr);
}

}  // namespace monolane

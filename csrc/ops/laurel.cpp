// kLaurelLeft, kLaurelRight and kLaurelNorm: a learned residual (ops/laurel/spec.py). Such models
// have one lane. The norm goes over all rows of the second product: each worker norms all of them,
// as the streams, and offers its own columns.
#include <algorithm>

#include "ops/operations.h"
#include "ops/products.h"
#include "ops/stream.h"

namespace monolane {

void run_laurel_left(Forward& f, Worker& w, const PlanPhase& phase) {
  update(f, w, phase);
  read_stream(f, w, phase);
  store_side_by_side(f, w, phase, f.buffer(PlanBuffer::kHidden), f.module(phase).laurel.rank);
}

void run_laurel_right(Forward& f, Worker& w, const PlanPhase& phase) {
  pack(f, w, phase, f.buffer(PlanBuffer::kHidden), f.module(phase).laurel.rank, 0, f.pass.width);
  store_side_by_side(f, w, phase, f.buffer(PlanBuffer::kMixed), f.plan.header.hidden);
}

void run_laurel_norm(Forward& f, Worker& w, const PlanPhase& phase) {
  const int64_t hidden = f.plan.header.hidden;
  const PlanModule& module = f.module(phase);
  const WeightsByRole& weights = f.weights.of(phase.layer);
  const float* scale = weights.vector(WeightRole::kLaurelNorm);
  const PlanShare columns = share(f, w, phase.units);
  const int64_t count = columns.end - columns.begin;
  float *made = w.sum->as<float>(), *read = made + hidden;
  float* said = output(f, module.output, phase.write_slot, 0) + columns.begin;
  for (int64_t t = 0; t < f.pass.width; ++t) {
    const float* x = w.x->as<float>() + t * hidden;
    if (module.norm != WeightRole::kNone) {
      norm_stream(f, x, weights.vector(module.norm), 1, read);
      x = read;
    }
    norm_stream(f, f.buffer(PlanBuffer::kMixed) + t * hidden, scale, 1, made);
    float* out = said + t * hidden;
    for (int64_t i = 0; i < count; ++i) out[i] = x[columns.begin + i] + made[columns.begin + i];
  }
  f.exchange.wrote(w.index, said, count, f.pass.width, hidden);
}

}  // namespace monolane

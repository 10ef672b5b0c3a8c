// kSparseGateUp and kSparseDown: an MLP whose gate lets few numbers through
// (ops/sparse_mlp/spec.py). Such models have one lane. All products of a token with the gate are
// summed by every worker in one order: the bits hang neither on who made them nor on the pass.
#include <cmath>

#include "kernels/elementwise.h"
#include "ops/gate.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/stream.h"

namespace monolane {

void run_sparse_gate_up(Forward& f, Worker& w, const PlanPhase& phase) {
  update(f, w, phase);
  read_stream(f, w, phase);
  store_side_by_side(f, w, phase, f.buffer(PlanBuffer::kHidden),
                     2 * int64_t{f.module(phase).sparse_mlp.inner});
}

void run_sparse_down(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanSparseMlp& mlp = f.module(phase).sparse_mlp;
  const GateUp gate_up = gate_up_of(f.kernels, mlp.activation);
  const int64_t inner = mlp.inner;
  float* hidden = w.normed->as<float>();  // [T, F]
  for (int64_t t = 0; t < f.pass.width; ++t) {
    const float* gate = f.buffer(PlanBuffer::kHidden) + t * 2 * inner;
    float* passed = hidden + t * inner;
    centre(gate, inner, passed);
    const float square = dot(passed, passed, inner) / static_cast<float>(inner);
    const float least = mlp.deviations * std::sqrt(square);
    for (int64_t i = 0; i < inner; ++i) {
      const float above = passed[i] - least;
      passed[i] = above < 0.0f ? 0.0f : above;  // a NaN stays one
    }
    gate_up(passed, gate + inner, inner, passed);
  }
  pack(f, w, phase, hidden, inner, 0, f.pass.width);
  offer_products(f, w, phase, nullptr);
}

}  // namespace monolane

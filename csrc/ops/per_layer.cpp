// kPerLayerInputs, kPerLayerGate and kPerLayerOut: per-layer embeddings (ops/per_layer/spec.py).
// Such models have one lane.
#include <cmath>
#include <stdexcept>

#include "kernels/elementwise.h"
#include "ops/gate.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/stream.h"

namespace monolane {
namespace {

// That of the first layer which has it: the inputs are those of all.
const PlanPerLayer& sizes_of(const Plan& plan) {
  for (const PlanModule& module : plan.modules) {
    if (module.per_layer.inner > 0) return module.per_layer;
  }
  throw std::invalid_argument("plan: expected a layer with per-layer embeddings, got none");
}

}  // namespace

// What the pass's tokens have for each layer, [T, N*P]: whole layers of a worker's share.
void run_per_layer_inputs(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const PlanPerLayer& p = sizes_of(f.plan);
  const int64_t inner = p.inner, columns = inner * p.layers;
  const float* scale = f.weights.outer.vector(WeightRole::kPerLayerNorm);
  const Matrix& table = f.weights.outer.matrix(WeightRole::kPerLayerEmbedding).stored;
  const float shrink = 1.0f / std::sqrt(static_cast<float>(h.hidden));
  const float stretch = std::sqrt(static_cast<float>(inner)), half = std::sqrt(0.5f);
  float* row = Scratch(w).take(columns);
  pack(f, w, phase, w.x->as<float>(), h.hidden, 0, f.pass.width);
  multiply(f, w, phase, 0, [&](int64_t, int64_t first, int64_t count, float* y) {
    for (int64_t t = 0; t < f.pass.width; ++t, y += count) {
      scale_by(y, shrink, count);
      f.kernels.rms_norm(y, inner, scale, h.norm_eps, inner, count / inner, y, inner);
      const int32_t token = f.pass.rows[t].token;
      f.kernels.widen(table, token < p.rows ? token : 0, row);
      float* out = f.buffer(PlanBuffer::kPerLayer) + t * columns + first;
      for (int64_t i = 0; i < count; ++i) out[i] = (y[i] + row[first + i] * stretch) * half;
    }
  });
}

void run_per_layer_gate(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanPerLayer& p = f.module(phase).per_layer;
  const GateUp gate_up = gate_up_of(f.kernels, p.activation);
  const int64_t inner = p.inner, columns = inner * p.layers;
  update(f, w, phase);
  read_stream(f, w, phase);
  multiply(f, w, phase, 0, [&](int64_t, int64_t first, int64_t count, float* gate) {
    const float* inputs = f.buffer(PlanBuffer::kPerLayer) + phase.layer * inner + first;
    float* hidden = f.buffer(PlanBuffer::kHidden) + first;
    for (int64_t t = 0; t < f.pass.width; ++t) {
      gate_up(gate + t * count, inputs + t * columns, count, hidden + t * inner);
    }
  });
}

void run_per_layer_out(Forward& f, Worker& w, const PlanPhase& phase) {
  const int64_t inner = phase.matrices[0].columns;
  pack(f, w, phase, f.buffer(PlanBuffer::kHidden), inner, 0, f.pass.width);
  offer_products(f, w, phase, nullptr);
}

}  // namespace monolane

// kGateUp and kDown: a dense MLP.
#include "kernels/elementwise.h"
#include "ops/gate.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/stream.h"

namespace monolane {

void run_gate_up(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const PlanMlp& mlp = f.module(phase).mlp;
  update(f, w, phase);
  read_stream(f, w, phase);
  const int64_t width = f.pass.width, inner = mlp.inner / h.lanes;
  const auto hidden = [&](int64_t lane, int64_t t) {
    return f.buffer(PlanBuffer::kHidden) + ((w.first_lane + lane) * h.max_width + t) * inner;
  };
  if (!is_gated(mlp.activation)) {
    multiply(f, w, phase, 0, [&](int64_t lane, int64_t first, int64_t count, const float* up) {
      for (int64_t t = 0; t < width; ++t) {
        relu_squared(up + t * count, count, hidden(lane, t) + first);
      }
    });
    return;
  }
  const GateUp gate_up = gate_up_of(f.kernels, mlp.activation);
  const PlanMatrix& part = phase.matrices[0];  // UP has the same rows and the same share
  const OwnRows& up_rows = rows(f, w, phase, 1);
  const Activation up_kind = f.activation_of(up_rows);
  const PlanShare own = share(f, w, part.share);
  multiply(f, w, phase, 0, [&](int64_t lane, int64_t first, int64_t count, float* gate) {
    float* up = gate + width * count;
    const int64_t begin = lane * part.rows + first - own.begin;
    product(f, up_rows, begin, begin + count, up_kind, w.packed_lane(up_kind, lane, width), width,
            up, count);
    if (f.adapters.in_use()) add_adapted(f, w, phase, 1, lane, first, count, up, count);
    if (mlp.gate_scale != 1.0f) scale_by(gate, mlp.gate_scale, width * count);
    for (int64_t t = 0; t < width; ++t) {
      gate_up(gate + t * count, up + t * count, count, hidden(lane, t) + first);
    }
  });
}

void run_down(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const PlanMlp& mlp = f.module(phase).mlp;
  const PlanMatrix& part = phase.matrices[0];
  const PlanShare rows = share(f, w, part.share);
  const int64_t width = f.pass.width, inner = mlp.inner / h.lanes;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    if (rows.begin >= (lane + 1) * part.rows || rows.end <= lane * part.rows) continue;
    const float* hidden =
        f.buffer(PlanBuffer::kHidden) + (w.first_lane + lane) * h.max_width * inner;
    pack(f, w, phase, hidden, inner, lane, width);
  }
  offer_products(f, w, phase, nullptr);
}

}  // namespace monolane

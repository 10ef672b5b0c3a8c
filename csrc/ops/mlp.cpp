// kGateUp and kDown: a dense MLP.
#include "ops/worker.h"

namespace monolane {

void Executor::run_gate_up(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const LayerWeights& layer = weights_.layers[phase.layer];
  update(w, phase);
  read_stream(w, phase, layer.mlp_norm);
  const int64_t width = pass_.width, inner = h.intermediate / h.lanes;
  const PlanMatrix& part = phase.matrices[0];  // UP has the same rows and the same share
  const Matrix& up_rows = rows(w, phase, 1);
  const Activation up_kind = activation_of(up_rows);
  const PlanShare own = share(w, part.share);
  multiply(w, phase, 0, [&](int64_t lane, int64_t first, int64_t count, float* gate) {
    float* up = gate + width * count;
    const int64_t begin = lane * part.rows + first - own.begin;
    product(up_rows, begin, begin + count, up_kind, w.packed_lane(up_kind, lane, width), width, up,
            count);
    for (int64_t t = 0; t < width; ++t) {
      float* hidden =
          hidden_->as<float>() + ((w.first_lane + lane) * h.max_width + t) * inner + first;
      gate_up_(gate + t * count, up + t * count, count, hidden);
    }
  });
}

void Executor::run_down(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const PlanMatrix& part = phase.matrices[0];
  const PlanShare rows = share(w, part.share);
  const int64_t width = pass_.width, inner = h.intermediate / h.lanes;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    if (rows.begin >= (lane + 1) * part.rows || rows.end <= lane * part.rows) continue;
    const float* hidden = hidden_->as<float>() + (w.first_lane + lane) * h.max_width * inner;
    pack(w, phase, hidden, inner, lane, width);
  }
  offer_products(w, phase, PlanBuffer::kMlpOutput, nullptr);
}

}  // namespace monolane

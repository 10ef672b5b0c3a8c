// kEmbed: the streams begin, and the angles of each rotary base are laid out.
#include <cmath>
#include <cstring>

#include "kernels/elementwise.h"
#include "ops/operations.h"

namespace monolane {

void run_embed(Forward& f, Worker& w, const PlanPhase&) {
  const PlanHeader& h = f.plan.header;
  const int64_t pairs = h.rotary_dim / 2;
  float* x = w.x->as<float>();
  for (int64_t t = 0; t < f.pass.width; ++t) {
    f.kernels.widen(f.weights.embedding, f.pass.rows[t].token, x + t * h.hidden);
    if (h.embedding_scale != 1.0f) scale_by(x + t * h.hidden, h.embedding_scale, h.hidden);
    for (int64_t lane = 1; lane < h.group_lanes; ++lane) {
      std::memcpy(x + (lane * f.pass.width + t) * h.hidden, x + t * h.hidden, floats(h.hidden));
    }
    for (int64_t rotary = 0; rotary < kPlanRotaries; ++rotary) {
      const float* frequencies = f.weights.frequencies[rotary];
      if (frequencies == nullptr) continue;
      float* cosine = w.cosine->as<float>() + (rotary * h.max_width + t) * pairs;
      float* sine = w.sine->as<float>() + (rotary * h.max_width + t) * pairs;
      for (int64_t i = 0; i < pairs; ++i) {
        const float angle = static_cast<float>(f.pass.rows[t].position) * frequencies[i];
        cosine[i] = h.amplitude[rotary] * std::cos(angle);
        sine[i] = h.amplitude[rotary] * std::sin(angle);
      }
    }
  }
}

}  // namespace monolane

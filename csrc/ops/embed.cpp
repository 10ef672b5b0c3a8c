// kEmbed: the streams begin, and the angles of each rotary base are laid out.
#include <cmath>
#include <cstring>

#include "kernels/elementwise.h"
#include "ops/operations.h"
#include "ops/rotary.h"

namespace monolane {

void run_embed(Forward& f, Worker& w, const PlanPhase&) {
  const PlanHeader& h = f.plan.header;
  float* x = w.x->as<float>();
  for (int64_t t = 0; t < f.pass.width; ++t) {
    f.kernels.widen(f.weights.embedding, f.pass.rows[t].token, x + t * h.hidden);
    if (h.embedding_scale != 1.0f) scale_by(x + t * h.hidden, h.embedding_scale, h.hidden);
    for (int64_t lane = 1; lane < h.group_lanes; ++lane) {
      std::memcpy(x + (lane * f.pass.width + t) * h.hidden, x + t * h.hidden, floats(h.hidden));
    }
    for (int32_t i = 0; i < kPlanRotaries; ++i) {
      const float* frequencies = f.weights.frequencies[i];
      if (frequencies == nullptr) continue;
      const PlanRotaryTable& table = h.rotaries[i];
      const int64_t at = angles_at(h, static_cast<PlanRotary>(i), t);
      float *cosine = w.cosine->as<float>() + at, *sine = w.sine->as<float>() + at;
      for (int64_t pair = 0; pair < table.dim / 2; ++pair) {
        const float angle = static_cast<float>(f.pass.rows[t].position) * frequencies[pair];
        cosine[pair] = table.amplitude * std::cos(angle);
        sine[pair] = table.amplitude * std::sin(angle);
      }
    }
  }
}

}  // namespace monolane

// Rotary positions: see rotary.h.
#include "ops/rotary.h"

namespace monolane {

void rotate(const Forward& f, const Worker& w, const PlanPhase& phase, float* y, int64_t t,
            int64_t first, int64_t count) {
  const PlanModule& module = f.module(phase);
  const PlanRotary rotary = module.attention.rotary;
  if (rotary == PlanRotary::kNone) return;
  const PlanRotaryTable& table = f.plan.header.rotaries[static_cast<int32_t>(rotary)];
  const int64_t pairs = table.dim / 2, at = angles_at(f.plan.header, rotary, t);
  const int64_t h = module.latent.rank > 0 ? table.dim : module.attention.head_dim;
  const float* cosine = w.cosine->as<float>() + at;
  const float* sine = w.sine->as<float>() + at;
  if (table.style == RotaryStyle::kInterleaved) {
    for (int64_t r = 0; r < count; r += 2) {
      const int64_t i = (first + r) % h / 2;
      if (i >= pairs) continue;
      const float a = y[r], b = y[r + 1];
      y[r] = a * cosine[i] - b * sine[i];
      y[r + 1] = b * cosine[i] + a * sine[i];
    }
    return;
  }
  for (int64_t head = 0; head < count; head += h) {
    for (int64_t i = 0; i < pairs; ++i) {
      const float a = y[head + i], b = y[head + pairs + i];
      y[head + i] = a * cosine[i] - b * sine[i];
      y[head + pairs + i] = b * cosine[i] + a * sine[i];
    }
  }
}

}  // namespace monolane

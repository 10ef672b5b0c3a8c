// Rotary positions: see rotary.h.
#include "ops/rotary.h"

namespace monolane {

void rotate(const Forward& f, const Worker& w, PlanRotary rotary, float* y, int64_t t,
            int64_t first, int64_t count) {
  if (rotary == PlanRotary::kNone) return;
  const int64_t turned = f.plan.header.rotary_dim, pairs = turned / 2;
  const int64_t h = f.plan.header.latent > 0 ? turned : f.plan.header.head_dim;
  const int64_t table = static_cast<int64_t>(rotary) * f.plan.header.max_width + t;
  const float* cosine = w.cosine->as<float>() + table * pairs;
  const float* sine = w.sine->as<float>() + table * pairs;
  if (f.plan.header.rotary == RotaryStyle::kInterleaved) {
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

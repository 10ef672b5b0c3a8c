#include "kernels/mamba_step.h"

#include "kernels/isa/clones.h"

namespace monolane {

// In blocks of columns, whose sums stay in registers.
MONOLANE_CLONES void mamba_step(float* state, int64_t size, int64_t head, float keep,
                                const float* b, const float* c, const float* added, float* out) {
  constexpr int64_t kBlock = 32;
  int64_t first = 0;
  for (; first + kBlock <= head; first += kBlock) {
    float said[kBlock] = {};
    for (int64_t i = 0; i < size; ++i) {
      float* s = state + i * head + first;
      for (int64_t j = 0; j < kBlock; ++j) {
        s[j] = keep * s[j] + b[i] * added[first + j];
        said[j] += c[i] * s[j];
      }
    }
    for (int64_t j = 0; j < kBlock; ++j) out[first + j] = said[j];
  }
  for (int64_t j = first; j < head; ++j) {  // the same, a column at a time
    float said = 0;
    for (int64_t i = 0; i < size; ++i) {
      float* s = state + i * head + j;
      *s = keep * *s + b[i] * added[j];
      said += c[i] * *s;
    }
    out[j] = said;
  }
}

}  // namespace monolane

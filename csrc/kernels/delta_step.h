// The arithmetic of a gated delta rule (ops/delta/spec.py) on one token. Sums run over tokens, and
// over the rows of a state, in ascending order; nothing else adds up, so that bits depend neither
// on the instruction set nor on which tokens a pass carries.
#pragma once

#include <cstdint>

namespace monolane {

// out[c] = sum over j of x[j * stride + c] * taps[j * tap_stride + c], j in [0, kernel).
void sum_over_tokens(const float* x, int64_t stride, const float* taps, int64_t tap_stride,
                     int64_t kernel, int64_t channels, float* out);

// One value head's step, of its state [key][value]:
//   S = keep * S;  S = S + k (beta * (v - k S));  out = q S.
void delta_step(float* state, int64_t key, int64_t value, float keep, float beta, const float* q,
                const float* k, const float* v, float* out);

}  // namespace monolane

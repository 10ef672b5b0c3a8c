// The arithmetic of Mamba-2 (ops/mamba/spec.py) on one token. The sum runs over the rows of a
// state, in ascending order, so that bits depend neither on the instruction set nor on which tokens
// a pass carries.
#pragma once

#include <cstdint>

namespace monolane {

// One head's step, of its state [size][head]: S = keep * S + b added;  out = c S.
void mamba_step(float* state, int64_t size, int64_t head, float keep, const float* b,
                const float* c, const float* added, float* out);

}  // namespace monolane

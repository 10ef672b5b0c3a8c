// What the leader takes of the head.
#pragma once

#include <cstdint>

#include "ops/worker.h"

namespace monolane {

// What the head reads of row `t`, [D]: the normed sum of the lanes' streams, or the mean of their
// normed ones, from what was offered.
void merge_lanes(const Forward& f, int64_t t, float* out);

// This worker's logits of rows that the head reads, [count, D], by the phase of a head of one lane:
// its part of `logits`, [count, V]. For who drafts by the model's head, between two passes.
void run_head_alone(const Forward& f, const Worker& w, const PlanPhase& phase, const float* normed,
                    int64_t count, float* logits);

}  // namespace monolane

// Whether a pass may be shown to workers, who trust every field of it: each is an index, a count,
// or says which memory is read and written.
//
// For passes that another host sends, before any worker sees them. Of what this process lays out
// itself, PassScheduler has checked what it was asked.
#pragma once

#include <cstdint>

#include "abi/pass.h"
#include "abi/plan.h"
#include "state/kv_cache.h"
#include "state/saved_kv.h"

namespace monolane {

// What there is that a pass may name.
struct PassBounds {
  const Plan& plan;
  int32_t slots;
  bool states;  // whether sequences have states of a fixed size
  const KvCache& cache;
  const SavedKv& kept;  // of a group; other groups keep as much, under the same names
  HeadPart heads;       // of that group
};

// Throws std::invalid_argument, which names the field, what was expected and what it is.
void check_pass(const Pass& pass, const PassBounds& bounds);

}  // namespace monolane

// A plan as the executor holds it: the arrays of plan_abi.h, and what they say about one worker.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "abi/plan_abi.h"

namespace monolane {

// Rows at most of a pass in which a sequence decodes, and rows whose logits a pass can hold.
inline int32_t decode_width(const PlanHeader& h) { return std::min(h.max_width, kPlanMaxWidth); }

// Whether a pass's rows have states of tokens beside tokens (ops/ahead/spec.py).
inline bool reads_states(const PlanHeader& h) {
  return h.sizes[static_cast<size_t>(PlanBuffer::kStates)] > 0;
}

struct Plan {
  PlanHeader header;
  std::vector<PlanModule> modules;
  std::vector<PlanPhase> phases;
  std::vector<PlanShare> shares;  // [tables, W]

  PlanShare share(int32_t table, int64_t worker) const {
    return shares[static_cast<size_t>(table) * header.workers + worker];
  }

  // Whether the lanes share one head instead of having one for a part of the vocabulary each.
  bool shared_head() const { return header.head != PlanHead::kVocabParallel && header.lanes > 1; }

  // Of which a phase of a layer is one.
  const PlanModule& module(const PlanPhase& phase) const { return modules[phase.module]; }

  // How many matrices of that role a phase reads: one, or one for each expert.
  int64_t experts_of(const PlanPhase& phase, WeightRole role) const {
    return of_each(role) ? module(phase).experts.count : 1;
  }

  // The largest of a number of all modules, 0 without any.
  template <typename Of>
  int64_t most(Of of) const {
    int64_t found = 0;
    for (const PlanModule& module : modules) found = std::max<int64_t>(found, of(module));
    return found;
  }

  // The row of a whole matrix, all lanes one below the other, at which a worker's group begins.
  int64_t first_row(const PlanMatrix& part, int64_t worker) const {
    if (part.role == WeightRole::kHead && shared_head()) return 0;
    return worker / header.group_workers * header.group_lanes * part.rows;
  }
};

}  // namespace monolane

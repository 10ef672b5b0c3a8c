// A plan as the executor holds it: the arrays of plan_abi.h, and what they say about one worker.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "abi/plan_abi.h"

namespace monolane {

// Rows at most of a pass in which a sequence decodes, and rows whose logits a pass can hold.
inline int32_t decode_width(const PlanHeader& h) { return std::min(h.max_width, kPlanMaxWidth); }

struct Plan {
  PlanHeader header;
  std::vector<PlanPhase> phases;
  std::vector<PlanShare> shares;  // [tables, W]

  PlanShare share(int32_t table, int64_t worker) const {
    return shares[static_cast<size_t>(table) * header.workers + worker];
  }

  // Whether the lanes share one head instead of having one for a part of the vocabulary each.
  bool shared_head() const { return header.head != PlanHead::kVocabParallel && header.lanes > 1; }

  // How many matrices of that role a layer has: one, or one for each expert.
  int64_t experts_of(WeightRole role) const {
    const bool of_each = role == WeightRole::kExpertGate || role == WeightRole::kExpertUp ||
                         role == WeightRole::kExpertDown;
    return of_each ? header.experts : 1;
  }

  // The row of a whole matrix, all lanes one below the other, at which a worker's group begins.
  int64_t first_row(const PlanMatrix& part, int64_t worker) const {
    if (part.role == WeightRole::kHead && shared_head()) return 0;
    return worker / header.group_workers * header.group_lanes * part.rows;
  }
};

}  // namespace monolane

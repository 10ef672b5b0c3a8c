// A smaller model that drafts, as its drafter sees it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "abi/advance.h"
#include "abi/plan_abi.h"

namespace monolane {

class DraftModel {
 public:
  // Is told each token that is drawn, with its logits [V]; says whether the slot goes on.
  using OnToken = std::function<bool(int32_t slot, int32_t token, const float* logits)>;

  virtual ~DraftModel() = default;
  virtual const PlanHeader& header() const = 0;
  virtual int64_t length(int slot) const = 0;  // tokens
  virtual bool resumable(int slot, int64_t length) const = 0;
  virtual void truncate(int slot, int64_t length) = 0;

  // Lays out an epoch. Then every worker of the executor for which it drafts calls `take_part`,
  // which returns when the epoch is over.
  virtual void prepare(std::vector<Advance> advances, OnToken on_token) = 0;
  virtual void take_part(int worker) = 0;
};

}  // namespace monolane

// Low-rank updates of a model's matrices: y = W x + B (A x), of a sequence by one adapter, or none.
// The matrices stay as they are, so sequences of one pass may have different adapters.
//
// Shape legend: L lanes, R rows of a lane's matrix, K its columns, r rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "abi/advance.h"
#include "abi/plan.h"
#include "kernels/kernels.h"
#include "memory/arena.h"

namespace monolane {

// What an adapter adds to one matrix.
struct LowRank {
  int64_t rank = 0;
  std::vector<float> down;  // A [L, r, K]
  // The columns of B, one behind the other, [L, r, R], with the adapter's scale in them: what a
  // worker adds to its rows lies together, and rows are many where r is small.
  std::vector<float> up;
};

class Adapters {
 public:
  Adapters(const Plan& plan, int slots);

  // ---- Between epochs ----

  // Has `adapter`, from 1 on, add to the matrix of a role in a layer. Throws std::invalid_argument
  // if no phase multiplies by it that adapters reach, or the sizes are not the matrix's.
  void add(int adapter, int64_t layer, WeightRole role, LowRank part);

  // Has the sequence of a slot be that of an adapter, 0 of none. Throws std::invalid_argument if
  // there is no such adapter.
  void give(int slot, int adapter);
  void copied(int source, int target) { of_slot_[target] = of_slot_[source]; }

  void begin() { in_use_ = false; }  // an epoch, of no slot yet

  // ---- By the leader, before a pass ----

  // Notes that a slot takes part in the epoch.
  void use(int slot) { in_use_ |= of_slot_[slot] != 0; }

  // ---- By all workers, while an epoch runs ----

  // Whether some sequence of the epoch has an adapter: else nobody looks further.
  bool in_use() const { return in_use_; }
  int32_t of(int slot) const { return of_slot_[slot]; }
  // Whether any adapter adds to what a phase multiplies.
  bool reach(int64_t phase) const { return reached_[phase]; }
  // Null: it leaves this matrix as it is.
  const LowRank* find(int32_t adapter, int64_t phase, int64_t matrix) const {
    const int32_t part = parts_of_[adapter - 1][phase * kPlanMaxMatrices + matrix];
    return part < 0 ? nullptr : parts_[part].get();
  }
  int64_t highest_rank() const { return highest_rank_; }

 private:
  const Plan& plan_;
  std::vector<int32_t> of_slot_;
  bool in_use_ = false;
  int64_t highest_rank_ = 0;
  std::vector<bool> reached_;                   // [phases]
  std::vector<std::vector<int32_t>> parts_of_;  // of each adapter, [phases * kPlanMaxMatrices]
  std::vector<std::unique_ptr<LowRank>> parts_;
};

// What a worker needs for them; made with the first adapter.
struct AdapterRoom {
  std::unique_ptr<Arena> inputs;   // [kMaxWidth, packed K]
  std::unique_ptr<Arena> lowered;  // A x, [kPlanMaxMatrices, lanes, T, r]

  // Throws std::bad_alloc.
  void reserve(const Plan& plan, const Kernels& kernels, int64_t rank);
};

}  // namespace monolane

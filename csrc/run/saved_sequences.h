// What all ranks keep of sequences outside their slots, each of its own lanes, under names. The
// caller of rank 0 says what; all groups do it, in an epoch without rows (state/saved_kv.h).
//
// Between epochs alone. A slot of one process is saved and restored without that:
// state/sequences.h.
#pragma once

#include <cstdint>
#include <functional>

#include "abi/pass.h"
#include "ops/worker.h"

namespace monolane {

class SavedSequences {
 public:
  using RunChore = std::function<void(const Chore& chore)>;  // runs such an epoch to its end

  SavedSequences(Forward& f, const Worker& first, RunChore run_chore)
      : f_(f), first_(first), run_chore_(std::move(run_chore)) {}

  // Makes a slot hold what another holds: its keys, values and length.
  void copy(int source, int target);

  // Under a name that is not yet known: of a slot; of what is kept already, positions begin .. end
  // - 1 and the tail of `tail_from`, -1 for none. `keep` returns whether there is a tail. Throw
  // std::invalid_argument where a name or a position is not there.
  bool keep(int64_t name, int slot, int64_t begin, int64_t end);
  void cut(int64_t name, int64_t from, int64_t begin, int64_t end, int64_t tail_from);
  void resume(int64_t name, int slot, int64_t count, bool has_tail);
  void drop(int64_t name);

 private:
  int64_t positions(int64_t name) const;

  Forward& f_;
  const Worker& first_;
  const RunChore run_chore_;
};

}  // namespace monolane

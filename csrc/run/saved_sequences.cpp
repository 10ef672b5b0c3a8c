#include "run/saved_sequences.h"

#include <stdexcept>
#include <string>

namespace monolane {

int64_t SavedSequences::positions(int64_t name) const {
  const int64_t found = first_.kept.positions(name);  // the same in every group
  if (found < 0) {
    throw std::invalid_argument("kept: expected a name that is kept, got " + std::to_string(name));
  }
  return found;
}

bool SavedSequences::keep(int64_t name, int slot, int64_t begin, int64_t end) {
  const int64_t now = f_.sequences.length(slot);
  if (begin < 0 || begin > end || end > now) {
    throw std::invalid_argument("positions: expected some of the " + std::to_string(now) +
                                " in this slot, got " + std::to_string(begin) + " to " +
                                std::to_string(end));
  }
  const bool has_tail = f_.cache.rings() > 0 && f_.sequences.resumable(slot, end);
  run_chore_({.kind = Chore::kSave,
              .slot = slot,
              .has_tail = has_tail,
              .begin = begin,
              .end = end,
              .name = name});
  return has_tail;
}

void SavedSequences::cut(int64_t name, int64_t from, int64_t begin, int64_t end,
                         int64_t tail_from) {
  if (begin < 0 || begin > end || end > positions(from)) {
    throw std::invalid_argument("positions: expected some of those kept");
  }
  if (tail_from >= 0) positions(tail_from);
  run_chore_({.kind = Chore::kCut,
              .begin = begin,
              .end = end,
              .name = name,
              .from = from,
              .tail_from = tail_from});
}

void SavedSequences::resume(int64_t name, int slot, int64_t count, bool has_tail) {
  const int64_t begin = f_.sequences.length(slot), end = begin + count;
  if (count < 0 || count > positions(name) || end > f_.plan.header.context) {
    throw std::invalid_argument("restore: expected what save returned, of this context");
  }
  f_.cache.reach(slot, end);
  run_chore_({.kind = Chore::kRestore,
              .slot = slot,
              .has_tail = has_tail,
              .begin = begin,
              .end = end,
              .name = name});
  f_.sequences.restored(slot, end);
}

void SavedSequences::drop(int64_t name) { run_chore_({.kind = Chore::kDrop, .name = name}); }

void SavedSequences::copy(int source, int target) {
  f_.sequences.length(source);  // throws where there is no such slot
  f_.sequences.length(target);
  if (source == target) {
    throw std::invalid_argument("copy: expected two slots, got " + std::to_string(source) +
                                " twice");
  }
  const int64_t end = f_.sequences.highest(source);
  f_.cache.reach(target, end);
  run_chore_({.kind = Chore::kCopy, .slot = source, .target = target, .end = end});
  f_.sequences.copied(source, target);
  f_.adapters.copied(source, target);
}

}  // namespace monolane

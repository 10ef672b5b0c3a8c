// Slots copied, and kept outside themselves: between epochs, by rank 0's caller. Where lanes are
// spread over ranks, all groups do it, in an epoch without rows (saved_kv.h).
#include "state/saved_kv.h"

#include <stdexcept>
#include <string>

#include "run/executor.h"
#include "ops/worker.h"

namespace monolane {

void Executor::save(int slot, int64_t begin, int64_t end, char* rows, char* tail) const {
  if (in_epoch_) throw std::logic_error("save: an epoch is running; stop it first");
  cache_.save_rows(slot, begin, end, cache_.all_heads(), rows);
  if (tail == nullptr) return;
  cache_.save_tail(slot, end, cache_.all_heads(), tail);
  const int64_t rings = cache_.tail_bytes(end, cache_.all_heads().count);
  if (states_.any()) states_.save(slot, end - states_.position(slot), tail + rings);
}

int64_t Executor::tail_bytes(int slot, int64_t end) const {
  const int64_t rings = cache_.tail_bytes(end, cache_.all_heads().count);
  return rings + (states_.any() ? states_.saved_bytes(end - states_.position(slot)) : 0);
}

bool Executor::takes_tail(int64_t end, int64_t bytes) const {
  return has_tails() &&
         states_.saves(bytes - cache_.tail_bytes(end, cache_.all_heads().count), end);
}

void Executor::restore(int slot, int64_t count, int64_t stride, const char* rows, const char* tail,
                       int64_t tail_bytes) {
  if (in_epoch_) throw std::logic_error("restore: an epoch is running; stop it first");
  const int64_t begin = lengths_[slot], end = begin + count;
  cache_.reach(slot, end);
  cache_.restore_rows(slot, begin, end, stride, cache_.all_heads(), rows);
  if (tail != nullptr) {
    const int64_t rings = cache_.tail_bytes(end, cache_.all_heads().count);
    cache_.restore_tail(slot, end, cache_.all_heads(), tail);
    states_.restore(slot, end, tail_bytes - rings, tail + rings);
  } else if (count > 0) {
    states_.set_position(slot, -1);
  }
  lengths_[slot] = highest_[slot] = end;
  if (cache_.rings() > 0) restored_[slot] = end;
}

int64_t Executor::kept_positions(int64_t name) const {
  const int64_t found = workers_.front()->kept.positions(name);  // the same in every group
  if (found < 0) {
    throw std::invalid_argument("kept: expected a name that is kept, got " + std::to_string(name));
  }
  return found;
}

bool Executor::keep(int64_t name, int slot, int64_t begin, int64_t end) {
  check_idle("save");
  const int64_t now = length(slot);
  if (begin < 0 || begin > end || end > now) {
    throw std::invalid_argument("positions: expected some of the " + std::to_string(now) +
                                " in this slot, got " + std::to_string(begin) + " to " +
                                std::to_string(end));
  }
  const bool has_tail = cache_.rings() > 0 && resumable(slot, end);
  run_chore({.kind = Chore::kSave,
             .slot = slot,
             .has_tail = has_tail,
             .begin = begin,
             .end = end,
             .name = name});
  return has_tail;
}

void Executor::cut(int64_t name, int64_t from, int64_t begin, int64_t end, int64_t tail_from) {
  check_idle("cut");
  if (begin < 0 || begin > end || end > kept_positions(from)) {
    throw std::invalid_argument("positions: expected some of those kept");
  }
  if (tail_from >= 0) kept_positions(tail_from);
  run_chore({.kind = Chore::kCut,
             .begin = begin,
             .end = end,
             .name = name,
             .from = from,
             .tail_from = tail_from});
}

void Executor::resume(int64_t name, int slot, int64_t count, bool has_tail) {
  check_idle("restore");
  const int64_t begin = length(slot), end = begin + count;
  if (count < 0 || count > kept_positions(name) || end > plan_.header.context) {
    throw std::invalid_argument("restore: expected what save returned, of this context");
  }
  cache_.reach(slot, end);
  run_chore({.kind = Chore::kRestore,
             .slot = slot,
             .has_tail = has_tail,
             .begin = begin,
             .end = end,
             .name = name});
  lengths_[slot] = highest_[slot] = end;
  if (cache_.rings() > 0) restored_[slot] = end;
}

void Executor::drop(int64_t name) {
  check_idle("drop");
  run_chore({.kind = Chore::kDrop, .name = name});
}

// In an epoch of no rows, by every group of every rank. Other ranks may be at it still when this
// returns: their part of the next epoch comes behind it.
void Executor::run_chore(const Chore& chore) {
  check_failed();
  running_.clear();
  chore_ = chore;
  team_.start([this](int worker) { work_or_fail(worker); });
  team_.join();
  chore_ = {};
  check_failed();
}

void Executor::copy(int source, int target) {
  check_idle("copy");
  const int64_t now = length(source);
  length(target);  // throws where there is no such slot
  if (source == target) {
    throw std::invalid_argument("copy: expected two slots, got " + std::to_string(source) +
                                " twice");
  }
  cache_.reach(target, highest_[source]);
  run_chore({.kind = Chore::kCopy, .slot = source, .target = target, .end = highest_[source]});
  lengths_[target] = now;
  highest_[target] = highest_[source];
  restored_[target] = restored_[source];
  states_.copy(source, target);
}

}  // namespace monolane

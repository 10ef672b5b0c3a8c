// What each slot holds of its sequence: how many tokens, their keys and values, and states; and how
// far back it may go from there.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "abi/plan.h"
#include "state/kv_cache.h"
#include "state/recurrent_states.h"

namespace monolane {

class Sequences {
 public:
  // Of this rank's part of the plan's KV heads.
  Sequences(const Plan& plan, int rank, int ranks, int slots, Format kv_format);

  int slots() const { return static_cast<int>(lengths_.size()); }

  // Tokens of a slot. Throws std::invalid_argument where there is no such slot. The leader changes
  // it; others may look on while it does.
  int64_t length(int slot) const;

  // Whether the slot can be truncated to `length`, or be kept up to there: windowed layers still
  // hold the keys that the next token would see, and states are not beyond it.
  bool resumable(int slot, int64_t length) const { return length >= first_resumable(slot); }
  int64_t first_resumable(int slot) const;

  // Whether the slot waits for the last part of what it is restored from, with its states.
  bool lacks_states(int slot) const { return states.any() && states.position(slot) < 0; }

  // Takes back the tokens of a slot from `length` on. Throws std::invalid_argument if it is not
  // resumable there.
  void truncate(int slot, int64_t length);

  // What of a sequence is kept behind its last position: what rings hold, and states.
  bool has_tails() const { return cache.rings() > 0 || states.any(); }
  int64_t tail_bytes(int slot, int64_t end) const;
  bool takes_tail(int64_t end, int64_t bytes) const;

  // Writes what KvCache says of positions begin .. end - 1 of a slot; `tail` where not null.
  void save(int slot, int64_t begin, int64_t end, char* rows, char* tail) const;

  // Puts `count` positions, of `stride` in each list of rows, behind those of a slot. The last call
  // before the slot is used brings a tail, of so many bytes, where there are tails.
  void restore(int slot, int64_t count, int64_t stride, const char* rows, const char* tail,
               int64_t tail_bytes);

  // Notes that a slot has become the first `end` tokens of what was kept elsewhere.
  void restored(int slot, int64_t end);

  // Notes that the cache's rows of `source` were copied, and copies the rest.
  void copied(int source, int target);

  // One past the highest position that was ever written.
  int64_t highest(int slot) const { return highest_[slot]; }

  // ---- By the leader, while a pass is laid out ----

  void set_length(int slot, int64_t length) {
    lengths_[slot].store(length, std::memory_order_relaxed);
  }
  void note_written(int slot, int64_t end) { highest_[slot] = std::max(highest_[slot], end); }

  KvCache cache;
  RecurrentStates states;

 private:
  std::vector<std::atomic<int64_t>> lengths_;
  std::vector<int64_t> highest_;
  std::vector<int64_t> restored_;  // of each slot: before here its rings lack keys, but for a tail
};

}  // namespace monolane

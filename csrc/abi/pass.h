// A pass: one trip of some rows through all phases, laid out by the leader and read by all workers.
// Plain values, for it may lie in memory that several processes share.
#pragma once

#include <cstdint>

#include "abi/plan_abi.h"

namespace monolane {

struct Row {
  int32_t slot, position, token;
};

// The rows of one sequence in a pass, one behind the other.
struct Run {
  int32_t slot, first, rows;  // rows first .. first + rows - 1 of the pass
  int32_t certain;            // of these, the first ones, which stay; the others may be taken back
  int32_t position;           // of the first row
  int32_t settled;            // tokens that the states of the sequence are of, before the pass
};

// What is to be done with the keys and values of a slot, or of what was kept of one, by each group
// for its own heads (saved_kv.h); the leader says it with the pass that ends an epoch.
struct Chore {
  enum Kind : int32_t { kNone, kCopy, kSave, kRestore, kCut, kDrop };

  Kind kind = kNone;
  int32_t slot = -1;       // copied, saved or restored
  int32_t target = -1;     // the slot that is to hold what `slot` does
  int32_t has_tail = 0;    // 1: with what rings hold before `end`
  int64_t begin = 0;       // positions begin .. end - 1: of the slot, or of what is cut
  int64_t end = 0;         //
  int64_t name = 0;        // of what is kept: made, restored or dropped
  int64_t from = 0;        // what it is cut from
  int64_t tail_from = -1;  // whose tail what is cut has; -1: none
};

// One trip of T rows through the phases; laid out by the leader, read by all.
struct Pass {
  int32_t width = 0;  // 0: the epoch is over
  bool lent = false;  // instead, take part in what the joint drafter does, and come back
  bool help = false;  // instead, help the leader with its draw, and come back
  Row rows[kPlanMixtureWidth];
  int32_t runs = 0;
  Run run[kPlanMaxWidth];
  int32_t wanted = 0;  // rows whose logits are wanted, in order
  int32_t wanted_row[kPlanMaxWidth];
  bool hidden = false;   // instead of logits, what the head reads of every row is wanted
  bool offered = false;  // beside the logits, that is wanted of the same rows
  Chore chore;           // to be done at the end of an epoch
};

}  // namespace monolane

#include "run/pass_check.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace monolane {
namespace {

// `of`: which of a list's; -1: it is no list's.
void within(const char* field, int64_t found, int64_t least, int64_t most, int64_t of = -1) {
  if (found >= least && found <= most) return;
  const std::string index = of < 0 ? "" : " " + std::to_string(of);
  const std::string range = least < most    ? std::to_string(least) + " to " + std::to_string(most)
                            : least == most ? std::to_string(least)
                                            : "none";
  throw std::invalid_argument("pass." + std::string(field) + index + ": expected " + range +
                              ", got " + std::to_string(found));
}

// Of a bool that came as a byte, and is none before this returns.
void check_flag(const char* field, const bool& flag, int most) {
  uint8_t byte;
  std::memcpy(&byte, &flag, 1);
  within(field, byte, 0, most);
}

// The rows of a slot lie together, one position behind the other.
void check_rows(const Pass& pass, const PassBounds& of) {
  const PlanHeader& h = of.plan.header;
  std::vector<bool> seen(static_cast<size_t>(std::max(of.slots, 0)), false);
  for (int32_t t = 0; t < pass.width; ++t) {
    const Row& row = pass.rows[t];
    within("rows.slot", row.slot, 0, of.slots - 1, t);
    within("rows.token", row.token, 0, h.vocab - 1, t);
    within("rows.position", row.position, 0, h.context - 1, t);
    if (t > 0 && pass.rows[t - 1].slot == row.slot) {
      const int64_t next = int64_t{pass.rows[t - 1].position} + 1;
      within("rows.position", row.position, next, next, t);
    } else if (seen[row.slot]) {
      throw std::invalid_argument("pass.rows.slot " + std::to_string(t) +
                                  ": expected all rows of a slot together, got slot " +
                                  std::to_string(row.slot) + " a second time");
    }
    seen[row.slot] = true;
  }
}

// Where there are states, each slot of the pass has one run: its rows.
void check_runs(const Pass& pass, const PassBounds& of) {
  within("runs", pass.runs, 0, of.states ? std::min(pass.width, kPlanMaxWidth) : 0);
  if (!of.states) return;
  int32_t first = 0;
  for (int32_t i = 0; i < pass.runs; ++i) {
    const Run& run = pass.run[i];
    within("run.first", run.first, first, std::min(first, pass.width - 1), i);
    const Row& row = pass.rows[first];
    int32_t end = first + 1;
    while (end < pass.width && pass.rows[end].slot == row.slot) ++end;
    within("run.slot", run.slot, row.slot, row.slot, i);
    within("run.rows", run.rows, end - first, end - first, i);
    within("run.certain", run.certain, 0, run.rows, i);
    within("run.position", run.position, row.position, row.position, i);
    // The inputs of tokens behind the state are kept beside it: ops/recurrent.h.
    within("run.settled", run.settled, std::max(0, run.position - kPlanMaxWidth), run.position, i);
    first = end;
  }
  if (first < pass.width) {
    throw std::invalid_argument("pass.runs: expected one for each slot of the pass, got " +
                                std::to_string(pass.runs) + " of " + std::to_string(first) +
                                " of its " + std::to_string(pass.width) + " rows");
  }
}

// Logits of all rows have no room in a wide pass.
void check_wanted(const Pass& pass, const PassBounds& of) {
  const int32_t most = std::min(pass.width, decode_width(of.plan.header));
  within("wanted", pass.wanted, 0, pass.hidden ? 0 : most);
  int32_t least = 0;
  for (int32_t i = 0; i < pass.wanted; ++i) {
    within("wanted_row", pass.wanted_row[i], least, pass.width - 1, i);
    least = pass.wanted_row[i] + 1;
  }
}

void check_kept(const char* field, int64_t name, const SavedKv& kept) {
  if (kept.positions(name) >= 0) return;
  throw std::invalid_argument("pass." + std::string(field) +
                              ": expected a name that is kept, got " + std::to_string(name));
}

void check_new(int64_t name, const SavedKv& kept) {
  if (name >= 0 && kept.positions(name) < 0) return;
  throw std::invalid_argument("pass.chore.name: expected a name from 0 on that is not kept, got " +
                              std::to_string(name));
}

void check_positions(const Chore& chore, int64_t most) {
  within("chore.end", chore.end, 0, most);
  within("chore.begin", chore.begin, 0, chore.end);
}

void check_restore(const Chore& chore, const PassBounds& of) {
  check_kept("chore.name", chore.name, of.kept);
  check_positions(chore, of.plan.header.context);
  within("chore.begin", chore.begin, chore.end - of.kept.positions(chore.name), chore.end);
  within("chore.has_tail", chore.has_tail, 0, 1);
  if (chore.has_tail == 0) return;
  const int64_t kept = of.kept.tail_bytes(chore.name);
  const int64_t wanted = of.cache.tail_bytes(chore.end, of.heads);
  if (kept == wanted) return;
  throw std::invalid_argument("pass.chore.has_tail: expected 0, or a tail of " +
                              std::to_string(wanted) + " bytes under that name, got " +
                              std::to_string(kept));
}

void check_chore(const Chore& chore, const PassBounds& of) {
  const int64_t context = of.plan.header.context;
  switch (chore.kind) {
    case Chore::kNone:
      return;
    case Chore::kCopy:
      within("chore.slot", chore.slot, 0, of.slots - 1);
      within("chore.target", chore.target, 0, of.slots - 1);
      if (chore.target == chore.slot) {
        throw std::invalid_argument("pass.chore.target: expected another slot than " +
                                    std::to_string(chore.slot) + ", got the same");
      }
      return check_positions(chore, context);
    case Chore::kSave:
      within("chore.slot", chore.slot, 0, of.slots - 1);
      check_positions(chore, context);
      check_new(chore.name, of.kept);
      return within("chore.has_tail", chore.has_tail, 0, of.cache.rings() > 0 ? 1 : 0);
    case Chore::kRestore:
      within("chore.slot", chore.slot, 0, of.slots - 1);
      return check_restore(chore, of);
    case Chore::kCut:
      check_kept("chore.from", chore.from, of.kept);
      check_positions(chore, of.kept.positions(chore.from));
      check_new(chore.name, of.kept);
      if (chore.tail_from != -1) check_kept("chore.tail_from", chore.tail_from, of.kept);
      return;
    case Chore::kDrop:
      return check_kept("chore.name", chore.name, of.kept);
  }
}

}  // namespace

void check_pass(const Pass& pass, const PassBounds& of) {
  within("width", pass.width, 0, of.plan.header.max_width);
  // Workers are lent, help, and offer what joint drafters read, in one process alone.
  check_flag("lent", pass.lent, 0);
  check_flag("help", pass.help, 0);
  check_flag("offered", pass.offered, 0);
  check_flag("hidden", pass.hidden, 1);
  check_rows(pass, of);
  check_runs(pass, of);
  check_wanted(pass, of);
  within("chore.kind", pass.chore.kind, Chore::kNone, pass.width > 0 ? Chore::kNone : Chore::kDrop);
  check_chore(pass.chore, of);
}

}  // namespace monolane

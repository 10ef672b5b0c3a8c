// Follows the copy that an answer makes of an earlier text, across the places where they differ.
//
// Right behind an edit the last tokens of the text match a hundred places, or none. But the copy
// goes on close to where it broke off: there the tracker looks. And once it has, what stood in the
// one text and what in the other is a replacement, which comes up again when a name is changed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "draft/hit_rate.h"
#include "draft/suffix_index.h"

namespace monolane {

// Tokens `from` of the copied text became tokens `to` of the answer; both are places in the index.
struct Replacement {
  uint32_t from, from_count;
  uint32_t to, to_count;
  HitRate rate;  // it happened, of the times that `from` came up
};

class EditTracker {
 public:
  explicit EditTracker(const SuffixIndex& index) : index_(index) {}

  // The model drew a token, which is about to be appended.
  void before(int32_t token);
  // It was appended; `longest` is the longest match now, of 0 tokens if there is none.
  void after(const SuffixMatch& longest);
  void clear();

  // The place where the copy goes on, how many tokens were copied right before, 0 in an edit that
  // may not be over; `at` 0: nothing is copied.
  SuffixMatch next() const;

  // The replacement that begins at a place of the copied text; null: none is likely.
  const Replacement* at(uint32_t place) const;
  // The replacement that the text is within or right behind, and how many of its tokens are there.
  const Replacement* within(uint32_t& done) const;

  uint32_t edited() const { return from_; }  // where it began in the copied text

  uint64_t steps() const { return steps_; }

 private:
  static constexpr uint32_t kAnchor = 8;    // matching tokens that make a copy
  static constexpr uint32_t kResume = 2;    // that end an edit, if they are close to where it began
  static constexpr uint32_t kSure = 4;      // that make a replacement of it
  static constexpr uint32_t kLongest = 48;  // tokens of an edit, in either text
  static constexpr size_t kKept = 16;       // replacements; the oldest goes first

  enum class State { kNone, kCopy, kEdit };

  bool equal(uint32_t one, uint32_t other, uint32_t count) const;
  SuffixMatch resume() const;
  void keep_replacement();

  const SuffixIndex& index_;
  State state_ = State::kNone;
  uint32_t place_ = 0;  // kCopy: what comes next
  uint32_t run_ = 0;    // kCopy: tokens copied, since the last edit
  uint32_t from_ = 0;   // where the last edit began in the copied text
  uint32_t to_ = 0;     // and in the answer; 0: there was none
  Replacement pending_ = {};
  std::vector<Replacement> kept_;
  mutable uint64_t steps_ = 0;
};

}  // namespace monolane

// Where the last tokens of a text stood before: what a drafter copies from.
//
// A ring of the newest tokens. For each of a few orders k, all places that follow the same k tokens
// form a chain, newest first, entered by a rolling hash, as in LZ77. Why not a suffix automaton or
// a tree: those cannot forget their oldest tokens, take five times the memory, and their work for
// one token is bounded only on average. Here each token costs the same and the ring forgets by
// itself. The price: of very many places that follow the same k tokens only the newest are looked
// at, so that for a while the longest match may be missed; it is found when the next order is full.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "draft/drafter.h"

namespace monolane {

// A place in the text, and how many tokens before it equal the last ones of the text.
struct SuffixMatch {
  uint32_t at;     // the token here followed the match
  uint32_t count;  // at most SuffixIndex::kDeepest
};

class SuffixIndex {
 public:
  static constexpr std::array<uint32_t, 4> kOrders = {1, 3, 7, 16};
  static constexpr size_t kWalk = 8;        // places looked at in the chain of each order
  static constexpr uint32_t kDeepest = 64;  // matches are not counted beyond

  using Matches = std::array<SuffixMatch, kOrders.size() * kWalk>;

  // `max_tokens` is rounded up to a power of two.
  explicit SuffixIndex(size_t max_tokens);

  void append(int32_t token);  // kTextEnd: equals nothing, not even itself
  void clear();

  // Fills in places that follow what the text ends with, the longest match first and of equal ones
  // the newest; returns how many. At most kWalk * kOrders.size() chain steps.
  size_t find(Matches& matches) const;

  // How many tokens before `at` equal the last ones of the text.
  uint32_t match(uint32_t at) const;

  uint32_t end() const { return end_; }  // where the next token will stand
  uint32_t begin() const { return end_ > mask_ ? end_ - mask_ - 1 : 0; }  // the oldest token
  int32_t token(uint32_t at) const { return text_[at & mask_]; }
  bool has(uint32_t at) const { return at >= begin() && at < end_; }

  size_t bytes() const;                      // 4 + 8 * kOrders.size() for each token of the ring
  uint64_t steps() const { return steps_; }  // chain entries and tokens looked at, ever

 private:
  struct Order {
    uint64_t hash = 0;
    uint64_t drop = 1;                   // what the oldest of the k tokens counts in the hash
    std::vector<uint32_t> newest = {};   // [ring] by hash: the place that follows, 0: none
    std::vector<uint32_t> earlier = {};  // [ring] by place: the one before it in the chain
  };

  uint32_t mask_;
  uint32_t shift_;  // of a hash, to an index
  uint32_t end_ = 0;
  std::vector<int32_t> text_;  // [ring]
  std::array<Order, kOrders.size()> orders_;
  mutable uint64_t steps_ = 0;
};

}  // namespace monolane

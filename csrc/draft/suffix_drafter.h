// Guesses the next tokens from what the text ends with: whatever followed the same tokens before.
//
// An answer that edits a file repeats most of it. The drafter follows the place with the longest
// match, and says for each token how likely it is to be the one that the model will draw. These
// chances are not assumed: they are counted, by the length of the match and by whether other places
// agree, over the tokens that the model drew, so that a caller can weigh them against what a wider
// pass costs.
//
// Beyond matches it knows where the answer's own copying was: see edit_tracker.h.
//
// Not for several threads at once: one for each sequence.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "draft/drafter.h"
#include "draft/edit_tracker.h"
#include "draft/hit_rate.h"
#include "draft/suffix_index.h"

namespace monolane {

class SuffixDrafter final : public Drafter {
 public:
  static constexpr size_t kLengths = 8;     // classes of match lengths
  static constexpr size_t kAgreements = 3;  // alone, others agree, some do not

  // Remembers the newest `max_tokens` tokens, rounded up to a power of two. Throws
  // std::invalid_argument if that is less than 128.
  explicit SuffixDrafter(size_t max_tokens);

  // The text goes on with tokens that nobody drew: a prompt.
  void append(const int32_t* tokens, size_t count) override;

  // The text goes on with tokens that the model drew, drafted before or not: the drafter learns.
  void observe(const int32_t* tokens, size_t count) override;

  void add_texts(const int32_t* tokens, size_t count) override;
  void add_text(const int32_t* tokens, size_t count);  // a whole one, without its end

  // Writes the tokens that may come next, at most `most`, and of each the chance that the model
  // draws it if it draws all those before it; returns how many.
  size_t draft(size_t most, int32_t* tokens, float* chances) const override;

  // Tokens of the sequence since `clear`, forgotten ones included.
  size_t length() const override { return length_; }
  void clear() override;  // forgets the texts, not the chances
  size_t bytes() const { return index_.bytes(); }
  uint64_t steps() const { return index_.steps() + tracker_.steps() + steps_; }

 private:
  // A place to draft from, and other places that a draft may agree with.
  struct Source {
    uint32_t at = 0;
    uint32_t count = 0;    // tokens that match before it; 0: there is no place
    bool resumed = false;  // named by the tracker, not by a match
    size_t places = 0;
    SuffixIndex::Matches matches;  // the first `places`: those that may agree
  };

  static size_t length_class(uint32_t match);
  const HitRate& rate(const Source& source, uint32_t match, size_t agreed) const;
  Source longest() const;
  Source choose() const;
  size_t agreement(Source& source, uint32_t at, int32_t token) const;
  void learn(int32_t token);

  SuffixIndex index_;
  EditTracker tracker_{index_};
  size_t length_ = 0;
  std::array<std::array<HitRate, kAgreements>, kLengths> rates_;
  std::array<HitRate, kLengths + 1> resumed_;  // where the tracker leads; the last: within an edit
  mutable uint64_t steps_ = 0;
};

}  // namespace monolane

#include "suffix_drafter.h"

#include <algorithm>

namespace monolane {
namespace {

// Begins of the classes of match lengths: chances rise quickly at first.
constexpr std::array<uint32_t, SuffixDrafter::kLengths> kClasses = {1, 2, 3, 5, 8, 13, 24, 48};
// What the chances are before anything was counted, and how many guesses that is worth.
constexpr std::array<float, SuffixDrafter::kLengths> kFirstChances = {.25f, .45f, .6f,  .75f,
                                                                      .85f, .9f,  .94f, .96f};
constexpr float kFirstGuesses = 4.0f;

}  // namespace

SuffixDrafter::SuffixDrafter(size_t max_tokens) : index_(max_tokens) {
  for (size_t i = 0; i < kLengths; ++i) {
    rates_[i].fill({kFirstChances[i] * kFirstGuesses, kFirstGuesses});
  }
}

void SuffixDrafter::clear() {
  index_.clear();
  length_ = 0;
}

void SuffixDrafter::append(const int32_t* tokens, size_t count) {
  for (size_t i = 0; i < count; ++i) index_.append(tokens[i]);
  length_ += count;
}

void SuffixDrafter::add_text(const int32_t* tokens, size_t count) {
  append(tokens, count);
  index_.append(SuffixIndex::kEnd);
}

void SuffixDrafter::observe(const int32_t* tokens, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    learn(tokens[i]);
    append(tokens + i, 1);
  }
}

size_t SuffixDrafter::length_class(uint32_t match) {
  const auto* above = std::upper_bound(kClasses.begin(), kClasses.end(), match);
  return static_cast<size_t>(above - kClasses.begin()) - 1;
}

SuffixDrafter::Source SuffixDrafter::find() const {
  Source source;
  source.count = index_.find(source.matches);
  return source;
}

// Drops the places where another token comes `offset` tokens on, and says whether there were any.
size_t SuffixDrafter::agreement(Source& source, uint32_t offset, int32_t token) const {
  if (source.count == 1) return 0;
  size_t kept = 1;
  for (size_t i = 1; i < source.count; ++i) {
    const uint32_t at = source.matches[i].at + offset;
    if (index_.has(at) && index_.token(at) == token) source.matches[kept++] = source.matches[i];
  }
  steps_ += source.count;
  const bool all = kept == source.count;
  source.count = kept;
  return all ? 1 : 2;
}

void SuffixDrafter::learn(int32_t token) {
  Source source = find();
  if (source.count == 0) return;
  const SuffixMatch lead = source.matches[0];
  const int32_t guess = index_.token(lead.at);
  const size_t agreed = agreement(source, 0, guess);
  rates_[length_class(lead.count)][agreed].count(guess == token);
}

size_t SuffixDrafter::draft(size_t most, int32_t* tokens, float* chances) const {
  Source source = find();
  if (source.count == 0) return 0;
  const SuffixMatch lead = source.matches[0];
  size_t count = 0;
  while (count < most) {
    const uint32_t offset = static_cast<uint32_t>(count), at = lead.at + offset;
    // Behind the end of the text stands the draft itself: a text that repeats goes on repeating.
    const int32_t token = index_.has(at) ? index_.token(at) : tokens[at - index_.end()];
    if (token == SuffixIndex::kEnd) break;
    const size_t agreed = agreement(source, offset, token);
    const uint32_t match = std::min(lead.count + offset, SuffixIndex::kDeepest);
    tokens[count] = token;
    chances[count++] = rates_[length_class(match)][agreed].chance();
  }
  return count;
}

}  // namespace monolane

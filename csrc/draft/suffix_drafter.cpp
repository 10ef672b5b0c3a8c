#include "draft/suffix_drafter.h"

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
    resumed_[i] = {kFirstChances[i] * kFirstGuesses, kFirstGuesses};
  }
  resumed_[kLengths] = {0.2f * kFirstGuesses, kFirstGuesses};
}

void SuffixDrafter::clear() {
  index_.clear();
  tracker_.clear();
  length_ = 0;
}

void SuffixDrafter::append(const int32_t* tokens, size_t count) {
  for (size_t i = 0; i < count; ++i) index_.append(tokens[i]);
  length_ += count;
}

void SuffixDrafter::add_texts(const int32_t* tokens, size_t count) {
  for (size_t i = 0; i < count; ++i) index_.append(tokens[i]);
}

void SuffixDrafter::add_text(const int32_t* tokens, size_t count) {
  add_texts(tokens, count);
  index_.append(kTextEnd);
}

void SuffixDrafter::observe(const int32_t* tokens, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    learn(tokens[i]);
    tracker_.before(tokens[i]);
    append(tokens + i, 1);
    const Source source = longest();
    tracker_.after({source.at, source.count});
  }
}

size_t SuffixDrafter::length_class(uint32_t match) {
  const auto* above = std::upper_bound(kClasses.begin(), kClasses.end(), match);
  return static_cast<size_t>(above - kClasses.begin()) - 1;
}

const HitRate& SuffixDrafter::rate(const Source& source, uint32_t match, size_t agreed) const {
  if (!source.resumed) return rates_[length_class(match)][agreed];
  return resumed_[match == 0 ? kLengths : length_class(match)];
}

SuffixDrafter::Source SuffixDrafter::longest() const {
  Source source;
  source.places = index_.find(source.matches);
  if (source.places > 0) source.at = source.matches[0].at, source.count = source.matches[0].count;
  return source;
}

// Drops the places that another token follows than the draft's, and says whether there were any.
// `offset`: tokens drafted so far.
size_t SuffixDrafter::agreement(Source& source, uint32_t offset, int32_t token) const {
  if (source.places <= 1) return 0;
  size_t kept = 1;
  for (size_t i = 1; i < source.places; ++i) {
    const uint32_t at = source.matches[i].at + offset;
    if (index_.has(at) && index_.token(at) == token) source.matches[kept++] = source.matches[i];
  }
  steps_ += source.places;
  const bool all = kept == source.places;
  source.places = kept;
  return all ? 1 : 2;
}

// The longest match, or where the tracker leads if that has been right more often.
SuffixDrafter::Source SuffixDrafter::choose() const {
  Source source = longest();
  const SuffixMatch next = tracker_.next();
  if (next.at == source.at || !index_.has(next.at)) return source;
  Source resumed;
  resumed.at = next.at, resumed.count = next.count, resumed.resumed = true;
  if (source.count == 0) return resumed;
  Source tried = source;
  const size_t agreed = agreement(tried, 0, index_.token(source.at));
  const float chance = rate(source, source.count, agreed).chance();
  return rate(resumed, resumed.count, 0).chance() > chance ? resumed : source;
}

void SuffixDrafter::learn(int32_t token) {
  Source source = longest();
  if (source.count > 0) {
    const int32_t guess = index_.token(source.at);
    const size_t agreed = agreement(source, 0, guess);
    rates_[length_class(source.count)][agreed].count(guess == token);
  }
  const SuffixMatch next = tracker_.next();
  if (next.at != source.at && index_.has(next.at)) {
    HitRate& rate = resumed_[next.count == 0 ? kLengths : length_class(next.count)];
    rate.count(index_.token(next.at) == token);
  }
}

size_t SuffixDrafter::draft(size_t most, int32_t* tokens, float* chances) const {
  constexpr float kWithin = 0.97f;  // that a replacement goes on, once it has begun
  Source source = choose();
  size_t count = 0;
  uint32_t at = source.at, match = source.count;
  const auto replace = [&](const Replacement& r, uint32_t done, float first) {
    for (uint32_t i = done; i < r.to_count && count < most; ++i) {
      tokens[count] = index_.token(r.to + i);
      chances[count++] = i == done ? first : kWithin;
    }
    source.places = 0;  // the places of the longest match are elsewhere now
    source.resumed = true;
  };
  uint32_t done = 0;
  if (const Replacement* r = tracker_.within(done); r != nullptr) {
    replace(*r, done, r->rate.chance());
    at = tracker_.edited() + r->from_count;
    match = 1;
  } else if (at == 0) {
    return 0;
  }
  while (count < most) {
    const Replacement* r = tracker_.at(at);
    if (r != nullptr) {
      replace(*r, 0, r->rate.chance());
      at += r->from_count;
      continue;
    }
    // Behind the end of the text stands the draft itself: a text that repeats goes on repeating.
    if (at >= index_.end() + count) break;
    const int32_t token = index_.has(at) ? index_.token(at) : tokens[at - index_.end()];
    if (token == kTextEnd) break;
    const size_t agreed = agreement(source, static_cast<uint32_t>(count), token);
    tokens[count] = token;
    chances[count++] = rate(source, match, agreed).chance();
    match = std::min(match + 1, SuffixIndex::kDeepest);
    ++at;
  }
  return count;
}

}  // namespace monolane

#include "sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sample/gumbel.h"
#include "sample/logit_scan.h"
#include "sample/token_order.h"

namespace monolane {
namespace {

// -log(-log(u)) of the largest u, 1 - 2^-25, rounded up: no noise is larger.
constexpr float kLargestNoise = 17.33f;
constexpr float kNever = -std::numeric_limits<float>::infinity();  // the logit of a banned token

// A loop over the vocabulary is cut into slices for those who help, always the same, so that sums
// of slices do not depend on how many do.
#ifndef MONOLANE_SLICE  // less in builds under a sanitizer: csrc/tests/CMakeLists.txt
#define MONOLANE_SLICE 4096
#endif
constexpr int32_t kSlice = MONOLANE_SLICE;
int32_t slices_of(int32_t count) { return (count + kSlice - 1) / kSlice; }

// Calls each(slice, first, count of it), by all who help.
template <class Each>
void for_slices(int32_t count, ParallelFor& parallel, const Each& each) {
  parallel.each(slices_of(count), [&](int32_t slice) {
    const int32_t first = slice * kSlice;
    each(slice, first, std::min(kSlice, count - first));
  });
}

int32_t largest(const float* x, int32_t count) {
  const int32_t found = find_equal(x, 0, count, peak_of(x, count, x[0]));
  return found < count ? found : 0;  // there is NaN
}

// The same of a row as the model made it, if its peak is a finite number.
int32_t largest_finite(const float* logits, int32_t vocab) {
  const float peak = peak_of(logits, vocab, logits[0]);
  return std::isfinite(peak) ? find_equal(logits, 0, vocab, peak) : kNoToken;
}

// Tokens that come first by rank: those of a larger scaled logit than `least`, and of those that
// have it the ids up to `last`; and of these the ones at least `min_p` times as probable as the
// first.
struct Front {
  float peak;
  float least = kNever;
  int32_t last = std::numeric_limits<int32_t>::max();
  double min_p = 0;

  bool has(float scaled, int32_t id) const {
    if (!(scaled > least || (scaled == least && id <= last))) return false;
    return min_p <= 0 || std::exp(static_cast<double>(scaled - peak)) >= min_p;
  }
};

// The largest scaled + noise; of equals the first wins.
struct Winner {
  const float* scaled;
  uint64_t seed;
  uint32_t position;
  int32_t id;
  float best;

  Winner(const float* scaled, int32_t first, uint64_t seed, uint32_t position)
      : scaled(scaled), seed(seed), position(position), id(first) {
    best = scaled[first] + gumbel(word_of(first));
  }

  // Float sums keep the order of what is added, so no bound passes over one that would win.
  void meet(int32_t other) {
    const uint32_t word = word_of(other);
    if (scaled[other] + gumbel_bound(word) < best) return;
    meet(other, scaled[other] + gumbel(word));
  }

  void meet(int32_t other, float value) {
    if (value > best || (value == best && other < id)) {
      best = value;
      id = other;
    }
  }

  uint32_t word_of(int32_t token) const {
    return philox_word(seed, position, static_cast<uint32_t>(token));
  }
};

// Begins with the most probable one, which few others reach. Tokens are passed over by blocks:
// those that are not in the front; those that no noise lifts so far; those that their own does not.
int32_t draw_from(const Front& front, const Winner& first, int32_t vocab, SamplerScratch& scratch) {
  scratch.winners.resize(slices_of(vocab));
  for_slices(vocab, scratch.parallel, [&](int32_t slice, int32_t begin, int32_t length) {
    Winner winner = first;
    float bounds[kScanBlock];
    for (int32_t at = begin; at < begin + length; at += kScanBlock) {
      const float* x = winner.scaled + at;
      const int32_t count = std::min(kScanBlock, begin + length - at);
      if (!any_reaches(x, count, 0.0f, front.least)) continue;
      if (!any_reaches(x, count, kLargestNoise, winner.best)) continue;
      bound_noise(winner.seed, winner.position, static_cast<uint32_t>(at), bounds);
      if (!any_reaches(x, count, bounds, winner.best)) continue;
      for (int32_t i = 0; i < count; ++i) {
        if (x[i] + bounds[i] < winner.best || !front.has(x[i], at + i)) continue;
        winner.meet(at + i);
      }
    }
    scratch.winners[slice] = {winner.id, winner.best};
  });
  Winner winner = first;
  for (const Candidate& other : scratch.winners) winner.meet(other.id, other.value);
  return winner.id;
}

// How far below the peak tokens are looked for, doubled until enough are found, then without end.
constexpr float kFirstDepth = 2, kLastDepth = 64;

float deeper(float depth) { return depth < kLastDepth ? 2 * depth : -kNever; }

// Leaves in `ranked` the ids of low <= x[i] <= high that may come at all, ascending.
void gather(const float* x, int32_t vocab, float low, float high, SamplerScratch& scratch) {
  scratch.found.resize(vocab);
  low = std::max(low, std::numeric_limits<float>::lowest());
  const int32_t count = collect(x, vocab, low, high, scratch.found.data());
  scratch.ranked.assign(scratch.found.begin(), scratch.found.begin() + count);
}

// Leaves in `ranked` the first `count` ids by rank; fewer if fewer may come.
void rank_first(const float* x, int32_t vocab, float peak, size_t count, SamplerScratch& scratch) {
  std::vector<int32_t>& ranked = scratch.ranked;
  float depth = kFirstDepth;
  gather(x, vocab, peak - depth, peak, scratch);
  while (ranked.size() < count && depth < -kNever) {
    depth = deeper(depth);
    gather(x, vocab, peak - depth, peak, scratch);
  }
  if (ranked.size() > count) {
    std::nth_element(ranked.begin(), ranked.begin() + count, ranked.end(), Before{x});
    ranked.resize(count);
  }
  std::sort(ranked.begin(), ranked.end(), Before{x});
}

// How far x lies below the peak, in eighths; what lies further than all of them is in the last.
constexpr int32_t kBuckets = 512;
int32_t bucket_of(float x, float peak) {
  const float depth = (peak - x) * 8;
  return depth < kBuckets - 1 ? static_cast<int32_t>(depth) : kBuckets - 1;
}

// Fills in probabilities, and leaves their sums in `mass`: [buckets], token i in bucket_of(x[i]).
template <class BucketOf>
void add_up(const float* x, int32_t vocab, float peak, int32_t buckets, const BucketOf& bucket_of,
            SamplerScratch& scratch) {
  scratch.probability.resize(vocab);
  scratch.mass.resize(slices_of(vocab) * buckets);
  for_slices(vocab, scratch.parallel, [&](int32_t slice, int32_t begin, int32_t length) {
    double* probability = scratch.probability.data() + begin;
    double* mass = scratch.mass.data() + slice * buckets;
    std::fill(mass, mass + buckets, 0.0);
    exp_below(x + begin, length, peak, probability);
    for (int32_t i = 0; i < length; ++i) mass[bucket_of(x[begin + i])] += probability[i];
  });
  for (int32_t slice = 1; slice < slices_of(vocab); ++slice) {
    for (int32_t i = 0; i < buckets; ++i) scratch.mass[i] += scratch.mass[slice * buckets + i];
  }
}

// Returns the shortest front of all tokens by rank whose share of the probability is `share`.
// Tokens are added up in buckets; of those that do not fit in whole, the one where the front ends
// is ranked.
Front front_of(const float* x, int32_t vocab, float peak, double share, SamplerScratch& scratch) {
  add_up(x, vocab, peak, kBuckets, [peak](float value) { return bucket_of(value, peak); }, scratch);
  const double* mass = scratch.mass.data();
  const double least = share * std::accumulate(mass, mass + kBuckets, 0.0);
  double sum = 0;
  int32_t end = 0;  // the bucket
  while (end + 1 < kBuckets && sum + mass[end] < least) sum += mass[end++];

  std::vector<int32_t>& ranked = scratch.ranked;
  const float low = end + 1 < kBuckets ? peak - (end + 2) / 8.0f : kNever;
  gather(x, vocab, low, peak - (end - 1) / 8.0f, scratch);
  std::erase_if(ranked, [&](int32_t id) { return bucket_of(x[id], peak) != end; });
  std::sort(ranked.begin(), ranked.end(), Before{x});
  Front front{.peak = peak};
  for (const int32_t id : ranked) {
    if (sum >= least && id != ranked.front()) break;
    front.least = x[id];
    front.last = id;
    sum += scratch.probability[id];
  }
  return front;
}

// Returns those that pass top-p and min-p.
Front allowed(const Draw& draw, const float* scaled, int32_t vocab, float peak,
              SamplerScratch& scratch) {
  Front front{.peak = peak};
  if (draw.top_p < 1) front = front_of(scaled, vocab, peak, draw.top_p, scratch);
  if (draw.min_p <= 0) return front;
  front.min_p = draw.min_p;
  const auto depth = static_cast<float>(1 - std::log(draw.min_p));  // 1 for the rounding
  if (front.least < peak - depth) front.least = peak - depth;
  return front;
}

// Leaves in `ranked` the ids that pass top-k, top-p and min-p.
void rank_allowed(const Draw& draw, const float* scaled, int32_t vocab, float peak,
                  SamplerScratch& scratch) {
  rank_first(scaled, vocab, peak, draw.top_k, scratch);
  std::vector<int32_t>& ranked = scratch.ranked;
  // In double, so that no two executors differ at the edge of a front by the rounding of a sum.
  const auto probability = [&](int32_t id) {
    return std::exp(static_cast<double>(scaled[id] - peak));
  };
  if (draw.top_p < 1) {
    double total = 0, front = 0;
    for (const int32_t id : ranked) total += probability(id);
    size_t keep = 0;
    while (keep < ranked.size() && front < draw.top_p * total) front += probability(ranked[keep++]);
    ranked.resize(std::min(std::max<size_t>(keep, 1), ranked.size()));
  }
  if (draw.min_p > 0)
    std::erase_if(ranked, [&](int32_t id) { return probability(id) < draw.min_p; });
}

bool allows(const uint32_t* mask, int32_t token) { return mask[token / 32] >> (token % 32) & 1; }

// Leaves in `limited` what the request and its mask make of the logits.
void limit(const float* logits, int32_t vocab, std::span<const LogitBias> biases,
           const TokenCounts& seen, const uint32_t* mask, std::vector<float>& limited) {
  limited.assign(logits, logits + vocab);
  for (const LogitBias& bias : biases) limited[bias.token] += bias.value;
  seen.penalise(limited.data());
  if (mask == nullptr) return;
  for (int32_t word = 0; word < mask_words(vocab); ++word) {
    if (mask[word] == ~uint32_t{0}) continue;
    const int32_t end = std::min(vocab, word * 32 + 32);
    if (mask[word] == 0) {
      std::fill(limited.begin() + word * 32, limited.begin() + end, kNever);
      continue;
    }
    for (int32_t i = word * 32; i < end; ++i) {
      if (!allows(mask, i)) limited[i] = kNever;
    }
  }
}

// Returns the logits divided by the temperature, [V], and their peak.
const float* scale(const float* logits, int32_t vocab, float temperature, SamplerScratch& scratch,
                   float& peak) {
  const bool as_they_are = temperature == 1;
  scratch.scaled.resize(vocab);
  scratch.peaks.resize(slices_of(vocab));
  const float* scaled = as_they_are ? logits : scratch.scaled.data();
  const float start = logits[0] / temperature;
  for_slices(vocab, scratch.parallel, [&](int32_t slice, int32_t begin, int32_t length) {
    if (!as_they_are) {
      divide_by(logits + begin, temperature, length, scratch.scaled.data() + begin);
    }
    scratch.peaks[slice] = peak_of(scaled + begin, length, start);
  });
  peak = peak_of(scratch.peaks.data(), slices_of(vocab), start);
  return scaled;
}

}  // namespace

int32_t choose(const float* logits, int32_t vocab, const Draw& draw,
               std::span<const LogitBias> biases, const TokenCounts& seen, uint32_t position,
               const uint32_t* mask, SamplerScratch& scratch) {
  const bool limited = mask != nullptr || !biases.empty() || seen.penalises();
  if (limited) {
    if (!std::isfinite(peak_of(logits, vocab, logits[0]))) return kNoToken;
    limit(logits, vocab, biases, seen, mask, scratch.limited);
    logits = scratch.limited.data();
    if (logits[largest(logits, vocab)] == kNever) {  // every token that may come is banned
      int32_t first = 0;
      while (mask != nullptr && first < vocab - 1 && !allows(mask, first)) ++first;
      return first;
    }
  }
  const auto best = [&] {
    return limited ? largest(logits, vocab) : largest_finite(logits, vocab);
  };
  if (draw.temperature == 0) return best();
  float peak;
  const float* scaled = scale(logits, vocab, draw.temperature, scratch, peak);
  if (!std::isfinite(peak)) return best();  // nothing to add noise to
  const Winner first(scaled, find_equal(scaled, 0, vocab, peak), draw.seed, position);
  if (draw.top_k == 0 || draw.top_k >= static_cast<uint32_t>(vocab)) {
    return draw_from(allowed(draw, scaled, vocab, peak, scratch), first, vocab, scratch);
  }
  rank_allowed(draw, scaled, vocab, peak, scratch);
  Winner winner = first;
  for (const int32_t id : scratch.ranked) winner.meet(id);
  return winner.id;
}

void report_logprobs(const float* logits, int32_t vocab, int32_t count, SamplerScratch& scratch,
                     TokenEvent& event) {
  const float peak = peak_of(logits, vocab, logits[0]);
  add_up(logits, vocab, peak, 1, [](float) { return 0; }, scratch);
  const double norm = peak + std::log(scratch.mass[0]);
  event.logprob = static_cast<float>(logits[event.token] - norm);
  const int32_t wanted = std::min({count, vocab, static_cast<int32_t>(kMaxLogprobs)});
  std::vector<int32_t>& ids = scratch.ranked;
  ids.clear();
  if (wanted > 0) rank_first(logits, vocab, peak, wanted, scratch);
  event.top_count = static_cast<int32_t>(ids.size());
  for (int32_t i = 0; i < event.top_count; ++i) {
    event.top_token[i] = ids[i];
    event.top_logprob[i] = static_cast<float>(logits[ids[i]] - norm);
  }
}

}  // namespace monolane

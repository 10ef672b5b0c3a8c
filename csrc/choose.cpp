#include "choose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "gumbel.h"
#include "logit_scan.h"

namespace monolane {
namespace {

// -log(-log(u)) of the largest u, 1 - 2^-25, rounded up: no noise is larger.
constexpr float kLargestNoise = 17.33f;
constexpr float kNever = -std::numeric_limits<float>::infinity();  // the logit of a banned token

int32_t largest(const float* x, int32_t count) {
  const int32_t found = find_equal(x, 0, count, peak_of(x, count));
  return found < count ? found : 0;  // the first is NaN
}

// The largest scaled + noise; of equals the first wins.
struct Winner {
  int32_t id;
  float best;

  Winner(const float* scaled, int32_t first, uint64_t seed, uint32_t position)
      : id(first), best(perturbed(scaled, first, seed, position)) {}

  void meet(const float* scaled, int32_t other, uint64_t seed, uint32_t position) {
    const float value = perturbed(scaled, other, seed, position);
    if (value > best || (value == best && other < id)) {
      best = value;
      id = other;
    }
  }

  static float perturbed(const float* scaled, int32_t id, uint64_t seed, uint32_t position) {
    return scaled[id] + gumbel(philox_word(seed, position, static_cast<uint32_t>(id)));
  }
};

// Begins with the most probable one, which few others reach. Those that no noise lifts so far are
// passed over by blocks; of the rest, those that their own noise does not, before its logarithms
// are taken. Float sums keep the order of what is added, so neither drops one that would win.
int32_t draw_among_all(const float* scaled, int32_t vocab, uint64_t seed, uint32_t position) {
  Winner winner(scaled, largest(scaled, vocab), seed, position);
  float bounds[kScanBlock];
  for (int32_t first = 0; first < vocab; first += kScanBlock) {
    const int32_t count = std::min(kScanBlock, vocab - first);
    if (!any_reaches(scaled + first, count, kLargestNoise, winner.best)) continue;
    bound_noise(seed, position, static_cast<uint32_t>(first), bounds);
    for (int32_t i = 0; i < count; ++i) {
      if (scaled[first + i] + bounds[i] < winner.best) continue;
      winner.meet(scaled, first + i, seed, position);
    }
  }
  return winner.id;
}

int32_t draw_among(const float* scaled, std::span<const int32_t> ids, uint64_t seed,
                   uint32_t position) {
  Winner winner(scaled, ids.front(), seed, position);
  for (const int32_t id : ids.subspan(1)) {
    if (scaled[id] + kLargestNoise < winner.best) continue;
    winner.meet(scaled, id, seed, position);
  }
  return winner.id;
}

// How far below the peak tokens are looked for, doubled until enough are found, then without end.
constexpr float kFirstDepth = 2, kLastDepth = 64;

float deeper(float depth) { return depth < kLastDepth ? 2 * depth : -kNever; }

// Leaves in `ranked` the ids of x[i] >= peak - depth that may come at all, ascending.
void gather(const float* x, int32_t vocab, float peak, float depth, std::vector<int32_t>& ranked) {
  const float floor = std::max(peak - depth, std::numeric_limits<float>::lowest());
  ranked.clear();
  for (int32_t i = 0; (i = find_reaching(x, i, vocab, floor)) < vocab; ++i) ranked.push_back(i);
}

// Whether one token ranks before another.
struct Before {
  const float* x;
  bool operator()(int32_t a, int32_t b) const { return x[a] != x[b] ? x[a] > x[b] : a < b; }
};

// Leaves the first `count` ids by rank; fewer if fewer may come.
void rank_first(const float* x, int32_t vocab, float peak, size_t count,
                std::vector<int32_t>& ranked) {
  float depth = kFirstDepth;
  gather(x, vocab, peak, depth, ranked);
  while (ranked.size() < count && depth < -kNever) {
    depth = deeper(depth);
    gather(x, vocab, peak, depth, ranked);
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

// Leaves the shortest front of all tokens by rank whose share of the probability is `share`,
// ascending. Tokens are added up in buckets; of those that do not fit in whole, the one where the
// front ends is ranked.
void keep_front(const float* x, int32_t vocab, float peak, double share, ChooseScratch& scratch) {
  std::vector<double>& probability = scratch.probability;
  std::vector<int32_t>& kept = scratch.ranked;
  probability.resize(vocab);
  exp_below(x, vocab, peak, probability.data());
  double mass[kBuckets] = {};
  for (int32_t i = 0; i < vocab; ++i) mass[bucket_of(x[i], peak)] += probability[i];
  const double least = share * std::accumulate(mass, mass + kBuckets, 0.0);
  double front = 0;
  int32_t last = 0;
  while (last + 1 < kBuckets && front + mass[last] < least) front += mass[last++];

  gather(x, vocab, peak, last + 1 < kBuckets ? (last + 2) / 8.0f : -kNever, kept);
  const auto whole = std::stable_partition(
      kept.begin(), kept.end(), [&](int32_t id) { return bucket_of(x[id], peak) < last; });
  std::sort(whole, kept.end(), Before{x});
  auto end = whole;
  while (end != kept.end() && (front < least || end == kept.begin())) front += probability[*end++];
  std::sort(whole, end);
  std::inplace_merge(kept.begin(), whole, end);
  kept.erase(end, kept.end());
}

// Leaves in `ranked` the ids that pass top-k, top-p and min-p, in ascending order. Only the few
// whose order matters are sorted.
void allow(const Draw& draw, const float* scaled, int32_t vocab, ChooseScratch& scratch) {
  std::vector<int32_t>& ranked = scratch.ranked;
  const float peak = peak_of(scaled, vocab);
  // In double, so that no two executors differ at the edge of a front by the rounding of a sum.
  const auto probability = [&](int32_t id) {
    return std::exp(static_cast<double>(scaled[id] - peak));
  };
  if (draw.top_k > 0 && draw.top_k < static_cast<uint32_t>(vocab)) {
    rank_first(scaled, vocab, peak, draw.top_k, ranked);
    if (draw.top_p < 1) {
      double total = 0, front = 0;
      for (const int32_t id : ranked) total += probability(id);
      size_t keep = 0;
      while (keep < ranked.size() && front < draw.top_p * total)
        front += probability(ranked[keep++]);
      ranked.resize(std::min(std::max<size_t>(keep, 1), ranked.size()));
    }
    std::sort(ranked.begin(), ranked.end());
  } else if (draw.top_p < 1) {
    keep_front(scaled, vocab, peak, draw.top_p, scratch);
  } else {  // 1 for the rounding of a logarithm
    const double depth = draw.min_p > 0 ? 1 - std::log(draw.min_p) : HUGE_VAL;
    gather(scaled, vocab, peak, static_cast<float>(depth), ranked);
  }
  if (draw.min_p > 0)
    std::erase_if(ranked, [&](int32_t id) { return probability(id) < draw.min_p; });
  if (ranked.empty()) ranked.push_back(0);  // no logit is a number
}

bool allows(const uint32_t* mask, int32_t token) { return mask[token / 32] >> (token % 32) & 1; }

// Leaves in `limited` what the request and its mask make of the logits.
void limit(const float* logits, int32_t vocab, std::span<const LogitBias> biases, const Seen& seen,
           const uint32_t* mask, std::vector<float>& limited) {
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

}  // namespace

int32_t choose(const float* logits, int32_t vocab, const Draw& draw,
               std::span<const LogitBias> biases, const Seen& seen, uint32_t position,
               const uint32_t* mask, ChooseScratch& scratch) {
  if (mask != nullptr || !biases.empty() || seen.penalises()) {
    limit(logits, vocab, biases, seen, mask, scratch.limited);
    logits = scratch.limited.data();
    if (logits[largest(logits, vocab)] == kNever) {  // every token that may come is banned
      int32_t first = 0;
      while (mask != nullptr && first < vocab - 1 && !allows(mask, first)) ++first;
      return first;
    }
  }
  if (draw.temperature == 0) return largest(logits, vocab);
  scratch.scaled.resize(vocab);
  float* scaled = scratch.scaled.data();
  divide_by(logits, draw.temperature, vocab, scaled);
  if (draw.top_k == 0 && draw.top_p >= 1 && draw.min_p <= 0) {
    return draw_among_all(scaled, vocab, draw.seed, position);
  }
  allow(draw, scaled, vocab, scratch);
  return draw_among(scaled, scratch.ranked, draw.seed, position);
}

void report_logprobs(const float* logits, int32_t vocab, int32_t count, TokenEvent& event) {
  const float peak = peak_of(logits, vocab);
  std::vector<double> probability(vocab);
  exp_below(logits, vocab, peak, probability.data());
  const double total = std::accumulate(probability.begin(), probability.end(), 0.0);
  const double norm = peak + std::log(total);
  event.logprob = static_cast<float>(logits[event.token] - norm);
  const int32_t wanted = std::min({count, vocab, static_cast<int32_t>(kMaxLogprobs)});
  std::vector<int32_t> ids;
  if (wanted > 0) rank_first(logits, vocab, peak, wanted, ids);
  event.top_count = static_cast<int32_t>(ids.size());
  for (int32_t i = 0; i < event.top_count; ++i) {
    event.top_token[i] = ids[i];
    event.top_logprob[i] = static_cast<float>(logits[ids[i]] - norm);
  }
}

}  // namespace monolane

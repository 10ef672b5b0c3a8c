#include "choose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "gumbel.h"

namespace monolane {
namespace {

// -log(-log(u)) of the largest u, 1 - 2^-25, rounded up: no noise is larger.
constexpr float kLargestNoise = 17.33f;
constexpr float kNever = -std::numeric_limits<float>::infinity();  // the logit of a banned token

int32_t largest(const float* x, int32_t count) {
  int32_t best = 0;
  for (int32_t i = 1; i < count; ++i) {
    if (x[i] > x[best]) best = i;
  }
  return best;
}

// The largest scaled + noise; ids come in ascending order, so the first of equals wins. A token
// whose scaled logit lies further below the best than any noise reaches is not drawn for: a draw
// takes ten rounds of Philox and two logarithms, the comparison neither.
template <typename IdAt>
int32_t draw_among(const float* scaled, int32_t count, IdAt id_at, uint64_t seed,
                   uint32_t position) {
  float best = kNever;
  int32_t winner = -1;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t id = id_at(i);
    if (winner >= 0 && scaled[id] + kLargestNoise < best) continue;
    const float value = scaled[id] + gumbel(philox_word(seed, position, static_cast<uint32_t>(id)));
    if (winner < 0 || value > best) {
      best = value;
      winner = id;
    }
  }
  return winner;
}

// Leaves in `ranked` the ids that pass top-k, top-p and min-p, in ascending order.
void allow(const Draw& draw, int32_t vocab, ChooseScratch& scratch) {
  std::vector<float>& scaled = scratch.scaled;
  std::vector<int32_t>& ranked = scratch.ranked;
  ranked.resize(vocab);
  std::iota(ranked.begin(), ranked.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    return scaled[a] != scaled[b] ? scaled[a] > scaled[b] : a < b;
  };
  if (draw.top_k > 0 && draw.top_k < static_cast<uint32_t>(vocab)) {
    std::nth_element(ranked.begin(), ranked.begin() + draw.top_k, ranked.end(), before);
    ranked.resize(draw.top_k);
  }
  std::sort(ranked.begin(), ranked.end(), before);

  // In double, so that no two executors differ at the edge of a front by the rounding of a sum.
  std::vector<double>& probability = scratch.probability;
  probability.resize(ranked.size());
  double total = 0;
  for (size_t i = 0; i < ranked.size(); ++i) {
    probability[i] = std::exp(static_cast<double>(scaled[ranked[i]] - scaled[ranked[0]]));
    total += probability[i];
  }
  size_t keep = ranked.size();
  if (draw.top_p < 1) {
    double front = 0;
    for (keep = 0; keep < ranked.size() && front < draw.top_p * total; ++keep) {
      front += probability[keep];
    }
    keep = std::max<size_t>(keep, 1);
  }
  if (draw.min_p > 0) {
    while (keep > 1 && probability[keep - 1] < draw.min_p) --keep;
  }
  ranked.resize(keep);
  std::sort(ranked.begin(), ranked.end());
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
    for (int32_t i = word * 32; i < std::min(vocab, word * 32 + 32); ++i) {
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
  for (int32_t i = 0; i < vocab; ++i) scaled[i] = logits[i] / draw.temperature;
  if (draw.top_k == 0 && draw.top_p >= 1 && draw.min_p <= 0) {
    return draw_among(scaled, vocab, [](int32_t i) { return i; }, draw.seed, position);
  }
  allow(draw, vocab, scratch);
  const std::vector<int32_t>& ranked = scratch.ranked;
  return draw_among(
      scaled, static_cast<int32_t>(ranked.size()), [&](int32_t i) { return ranked[i]; }, draw.seed,
      position);
}

void report_logprobs(const float* logits, int32_t vocab, int32_t count, TokenEvent& event) {
  const float peak = logits[largest(logits, vocab)];
  double total = 0;
  for (int32_t i = 0; i < vocab; ++i) total += std::exp(static_cast<double>(logits[i]) - peak);
  const double norm = peak + std::log(total);
  event.logprob = static_cast<float>(logits[event.token] - norm);
  std::vector<int32_t> ids(vocab);
  std::iota(ids.begin(), ids.end(), 0);
  event.top_count = std::min({count, vocab, static_cast<int32_t>(kMaxLogprobs)});
  std::partial_sort(ids.begin(), ids.begin() + event.top_count, ids.end(), [&](int a, int b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (int32_t i = 0; i < event.top_count; ++i) {
    event.top_token[i] = ids[i];
    event.top_logprob[i] = static_cast<float>(logits[ids[i]] - norm);
  }
}

}  // namespace monolane

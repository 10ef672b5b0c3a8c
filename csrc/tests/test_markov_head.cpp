// A DSpark drafter's head over another's rows: which token is drawn, and what chance is stated.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "draft/joint_drafter.h"
#include "draft/markov_head.h"
#include "expect.h"
#include "tests.h"

namespace monolane {
namespace {

constexpr int64_t kMarkovTokens = 700, kMarkovRead = 40, kMarkovColumns = 6;
constexpr size_t kMarkovBest = 256;  // tokens of a row that may be drawn

std::vector<float> waves(int64_t count, float step) {
  std::vector<float> x;
  for (int64_t i = 0; i < count; ++i) x.push_back(std::sin(step * static_cast<float>(i + 1)));
  return x;
}

struct ExpectedDraw {
  int32_t token;
  double chance;     // as the confidence has it
  float by_numbers;  // as the moved logits have it
};

// By the definition, in double but for the logits, whose order decides.
ExpectedDraw expected_draw(const std::vector<float>& logits, const std::vector<float>& read,
                           int32_t before, const std::vector<float>& in,
                           const std::vector<float>& out, const std::vector<float>& confidence) {
  std::vector<int32_t> order(kMarkovTokens);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  order.resize(kMarkovBest);
  std::ranges::sort(order);
  std::vector<float> moved;
  for (const int32_t token : order) {
    double sum = logits[token];
    for (int64_t i = 0; i < kMarkovColumns; ++i)
      sum += out[token * kMarkovColumns + i] * in[before * kMarkovColumns + i];
    moved.push_back(static_cast<float>(sum));
  }
  const auto best = std::ranges::max_element(moved) - moved.begin();
  double sum = confidence[kMarkovRead + kMarkovColumns];
  for (int64_t i = 0; i < kMarkovRead; ++i) sum += confidence[i] * read[i];
  for (int64_t i = 0; i < kMarkovColumns; ++i)
    sum += confidence[kMarkovRead + i] * in[before * kMarkovColumns + i];
  return {order[best], 1 / (1 + std::exp(-sum)),
          chance_of(moved.data(), static_cast<int32_t>(moved.size()), static_cast<int32_t>(best))};
}

}  // namespace

void test_markov_head() {
  const auto in = waves(kMarkovTokens * kMarkovColumns, 0.7f),
             out = waves(kMarkovTokens * kMarkovColumns, 1.3f);
  const auto confidence = waves(kMarkovRead + kMarkovColumns + 1, 2.1f);
  MarkovWeights weights{kMarkovColumns,
                        kMarkovTokens,
                        {in.data(), Format::kF32},
                        {out.data(), Format::kF32},
                        confidence.data()};
  MarkovHead sure(select_kernels(best_isa()), weights, kMarkovTokens, kMarkovRead);
  weights.confidence = nullptr;
  MarkovHead plain(select_kernels(best_isa()), weights, kMarkovTokens, kMarkovRead);
  DraftChoice choice({}, kMarkovTokens);
  Draw greedy = {};
  greedy.top_p = greedy.repetition_penalty = 1;
  double least = 1, most = 0;
  for (int32_t before = 0; before < kMarkovTokens; before += 23) {
    const auto logits = waves(kMarkovTokens, 0.9f + 0.01f * static_cast<float>(before));
    const auto read = waves(kMarkovRead, 0.3f + 0.02f * static_cast<float>(before));
    const ExpectedDraw expected = expected_draw(logits, read, before, in, out, confidence);
    const auto drawn = sure.draw(logits.data(), read.data(), before, greedy, 5, choice);
    EXPECT(drawn.token == expected.token);
    EXPECT(std::abs(drawn.stated - expected.chance) < 1e-5);
    const auto by_numbers = plain.draw(logits.data(), read.data(), before, greedy, 5, choice);
    EXPECT(by_numbers.token == expected.token);
    EXPECT(std::abs(by_numbers.stated - expected.by_numbers) < 1e-5f);
    least = std::min(least, expected.chance), most = std::max(most, expected.chance);
  }
  EXPECT(least < 0.3 && most > 0.7);  // else nothing was told apart
}

}  // namespace monolane

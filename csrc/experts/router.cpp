#include "experts/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/elementwise.h"

namespace monolane {

namespace {

// By the branch that cannot overflow.
float sigmoid(float x) {
  const float e = std::exp(-std::abs(x));
  return (x >= 0 ? 1.0f : e) / (1.0f + e);
}

// The largest of `count` numbers, of equal ones the first.
int64_t largest(const float* x, int64_t count) { return std::max_element(x, x + count) - x; }

constexpr float kOut = -std::numeric_limits<float>::infinity();  // ranks behind everything

}  // namespace

void Router::fit(const PlanExperts& experts) {
  plan_ = experts;
  ranked_.resize(experts.count);
  best_.resize(experts.groups);
  open_.resize(experts.groups);
  left_.resize(experts.count / experts.groups);
  const size_t uses = shared_.size() * experts.chosen;
  expert_.resize(uses);
  weight_.resize(uses);
  begin_.resize(experts.count + 1);
  uses_.resize(uses);
}

void Router::choose(const PlanExperts& experts, const float* logits, const float* correction,
                    const float* scales, int64_t width) {
  fit(experts);
  for (int64_t t = 0; t < width; ++t) {
    choose_token(logits + t * plan_.count, correction, static_cast<int32_t>(t));
  }
  for (int64_t i = 0; scales != nullptr && i < width * plan_.chosen; ++i) {
    weight_[i] *= scales[expert_[i]];
  }
  std::fill(begin_.begin(), begin_.end(), 0);
  for (int64_t i = 0; i < width * plan_.chosen; ++i) ++begin_[expert_[i] + 1];
  for (int64_t e = 0; e < plan_.count; ++e) begin_[e + 1] += begin_[e];
  for (int64_t i = 0; i < width * plan_.chosen; ++i) {  // moves each beginning to its end
    const int32_t token = static_cast<int32_t>(i / plan_.chosen);
    const int32_t place = static_cast<int32_t>(i % plan_.chosen);
    uses_[begin_[expert_[i]]++] = {token, place, weight_[i]};
  }
  std::copy_backward(begin_.begin(), begin_.end() - 1, begin_.end());
  begin_[0] = 0;
}

void Router::choose_token(const float* logits, const float* correction, int32_t token) {
  const bool by_sigmoid = plan_.scores == ExpertScores::kSigmoid;
  const float peak = *std::max_element(logits, logits + plan_.count);
  const auto score = [&](int64_t e) {
    return by_sigmoid ? sigmoid(logits[e]) : std::exp(logits[e] - peak);
  };
  float served = 0, all = 0;
  // Of softmax a correction is of the shares of all experts; sigmoids are shares as they are.
  if (!by_sigmoid && (correction != nullptr || !plan_.normalised)) {
    for (int64_t e = 0; e < plan_.count; ++e) all += score(e);
  }
  const float whole = by_sigmoid ? 1.0f : all;
  const bool by_scores = correction != nullptr || plan_.group_best > 1;
  for (int64_t e = 0; e < plan_.count; ++e) {
    ranked_[e] = by_scores ? score(e) / whole : logits[e];
    if (correction != nullptr) ranked_[e] += correction[e];
  }
  if (plan_.chosen_groups < plan_.groups) leave_groups();
  int32_t* expert = expert_.data() + token * plan_.chosen;
  float* weight = weight_.data() + token * plan_.chosen;
  choose_ranked(expert);
  for (int64_t i = 0; i < plan_.chosen; ++i) served += weight[i] = score(expert[i]);
  // Sigmoids may all be zero. Beside other sums 1e-20 is none, in float32.
  const float total = plan_.normalised ? served + 1e-20f : whole;
  for (int64_t i = 0; i < plan_.chosen; ++i) weight[i] = weight[i] / total * plan_.scale;
}

// The experts that rank highest, ascending. In one walk, in which an expert seldom gets among the
// best of those before it: of 128 some 30 do.
void Router::choose_ranked(int32_t* chosen) const {
  int64_t count = 0;  // in `chosen`, the best first, of equal ones the first
  for (int64_t e = 0; e < plan_.count; ++e) {
    const float rank = ranked_[e];
    if (count == plan_.chosen && !(rank > ranked_[chosen[count - 1]])) continue;
    if (count < plan_.chosen) ++count;
    int64_t at = count - 1;
    for (; at > 0 && rank > ranked_[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = static_cast<int32_t>(e);
  }
  std::sort(chosen, chosen + count);
}

void Router::weigh_shared(const float* x, const float* gate, int64_t hidden, int64_t width) {
  for (int64_t t = 0; t < width; ++t) {
    shared_[t] = gate == nullptr ? 1.0f : sigmoid(dot(x + t * hidden, gate, hidden));
  }
}

// Ranks the experts of all groups but the chosen ones behind everything.
void Router::leave_groups() {
  const int64_t groups = plan_.groups, each = plan_.count / groups;
  for (int64_t g = 0; g < groups; ++g) {
    std::copy_n(ranked_.data() + g * each, each, left_.data());
    best_[g] = 0;
    for (int32_t i = 0; i < plan_.group_best; ++i) {
      const int64_t at = largest(left_.data(), each);
      best_[g] += left_[at];
      left_[at] = kOut;
    }
  }
  std::fill(open_.begin(), open_.end(), 0);
  for (int32_t i = 0; i < plan_.chosen_groups; ++i) {
    const int64_t group = largest(best_.data(), groups);
    open_[group] = 1;
    best_[group] = kOut;
  }
  for (int64_t e = 0; e < plan_.count; ++e) {
    if (!open_[e / each]) ranked_[e] = kOut;
  }
}

}  // namespace monolane

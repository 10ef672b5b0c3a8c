#include "routing.h"

#include <algorithm>
#include <cmath>

namespace monolane {

Routing::Routing(int64_t experts, int64_t chosen, bool normalised, int64_t max_width)
    : experts_(experts),
      chosen_(chosen),
      normalised_(normalised),
      taken_(experts),
      expert_(max_width * chosen),
      weight_(max_width * chosen),
      begin_(experts + 1),
      uses_(max_width * chosen) {}

void Routing::choose(const float* logits, int64_t width) {
  for (int64_t t = 0; t < width; ++t) {
    choose_token(logits + t * experts_, static_cast<int32_t>(t));
  }
  std::fill(begin_.begin(), begin_.end(), 0);
  for (int64_t i = 0; i < width * chosen_; ++i) ++begin_[expert_[i] + 1];
  for (int64_t e = 0; e < experts_; ++e) begin_[e + 1] += begin_[e];
  for (int64_t i = 0; i < width * chosen_; ++i) {  // moves each beginning to its end
    const int32_t token = static_cast<int32_t>(i / chosen_);
    const int32_t place = static_cast<int32_t>(i % chosen_);
    uses_[begin_[expert_[i]]++] = {token, place, weight_[i]};
  }
  std::copy_backward(begin_.begin(), begin_.end() - 1, begin_.end());
  begin_[0] = 0;
}

void Routing::choose_token(const float* logits, int32_t token) {
  std::fill(taken_.begin(), taken_.end(), 0);
  for (int64_t i = 0; i < chosen_; ++i) {
    int64_t best = -1;
    for (int64_t e = 0; e < experts_; ++e) {
      if (!taken_[e] && (best < 0 || logits[e] > logits[best])) best = e;
    }
    taken_[best] = 1;
  }
  const float peak = *std::max_element(logits, logits + experts_);
  float all = 0, served = 0;
  int32_t* expert = expert_.data() + token * chosen_;
  float* weight = weight_.data() + token * chosen_;
  for (int64_t e = 0; e < experts_; ++e) {
    const float part = std::exp(logits[e] - peak);
    all += part;
    if (!taken_[e]) continue;
    *expert++ = static_cast<int32_t>(e);
    *weight++ = part;
    served += part;
  }
  const float total = normalised_ ? served : all;
  for (float* w = weight - chosen_; w != weight; ++w) *w /= total;
}

}  // namespace monolane

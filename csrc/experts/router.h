// Which experts serve which tokens of a pass: the choice of a layer's router. Each worker makes it
// for itself from the same logits, which costs about a microsecond a token: less than a wait would.
//
// Shape legend: T tokens, E experts, k chosen of them for a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "abi/plan_abi.h"

namespace monolane {

class Router {
 public:
  // A token that an expert serves.
  struct Use {
    int32_t token;
    int32_t place;  // of the expert among those of the token, in ascending order
    float weight;
  };

  // Of passes of so many tokens at most.
  explicit Router(int64_t max_width) : shared_(max_width, 1.0f) {}

  // Of logits [T, E] the k largest of each token, of equal ones the lowest index. Weights are of
  // the softmax over all E, in float32, summed in the order of the experts: the same for a token
  // whatever tokens are beside it. Or by sigmoids, by groups: src/monolane/ops/experts/spec.py.
  // `correction` [E], of the router, and `scales` [E], of the weights of each, or null.
  void choose(const PlanExperts& experts, const float* logits, const float* correction,
              const float* scales, int64_t width);

  // How much of what all tokens share is added to each: all, or where there is a `gate` [D] the
  // sigmoid of its product with what the router read, x [T, D].
  void weigh_shared(const float* x, const float* gate, int64_t hidden, int64_t width);
  float shared(int64_t token) const { return shared_[token]; }

  // The tokens that an expert serves, in ascending order.
  std::span<const Use> of(int64_t expert) const {
    return {uses_.data() + begin_[expert], uses_.data() + begin_[expert + 1]};
  }

 private:
  void fit(const PlanExperts& experts);
  void choose_token(const float* logits, const float* correction, int32_t token);
  void choose_ranked(int32_t* chosen) const;
  void leave_groups();

  PlanExperts plan_ = {};        // of the layer whose choice was made last
  std::vector<float> ranked_;    // [E]: the largest are chosen
  std::vector<float> best_;      // [groups]: the sum of a group's best
  std::vector<char> open_;       // [groups]: those that are chosen
  std::vector<float> left_;      // [E / groups]
  std::vector<int32_t> expert_;  // [T, k]
  std::vector<float> weight_;    // [T, k]
  std::vector<int32_t> begin_;   // [E + 1], of an expert's uses
  std::vector<Use> uses_;        // [T * k]
  std::vector<float> shared_;    // [T]
};

}  // namespace monolane

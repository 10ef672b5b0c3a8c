// Which experts serve which tokens of a pass: the choice of a layer's router. Each worker makes it
// for itself from the same logits, which costs about a microsecond a token: less than a wait would.
//
// Shape legend: T tokens, E experts, k chosen of them for a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace monolane {

class Routing {
 public:
  // A token that an expert serves.
  struct Use {
    int32_t token;
    int32_t place;  // of the expert among those of the token, in ascending order
    float weight;
  };

  // No experts: nothing is ever chosen. `normalised`: the weights of a token add up to 1.
  Routing(int64_t experts, int64_t chosen, bool normalised, int64_t max_width);

  // Of logits [T, E] the k largest of each token, of equal ones the lowest index. Weights are of
  // the softmax over all E, in float32, summed in the order of the experts: the same for a token
  // whatever tokens are beside it.
  void choose(const float* logits, int64_t width);

  // The tokens that an expert serves, in ascending order.
  std::span<const Use> of(int64_t expert) const {
    return {uses_.data() + begin_[expert], uses_.data() + begin_[expert + 1]};
  }

 private:
  void choose_token(const float* logits, int32_t token);

  const int64_t experts_, chosen_;
  const bool normalised_;
  std::vector<char> taken_;      // [E], of a token
  std::vector<int32_t> expert_;  // [T, k]
  std::vector<float> weight_;    // [T, k]
  std::vector<int32_t> begin_;   // [E + 1], of an expert's uses
  std::vector<Use> uses_;        // [T * k]
};

}  // namespace monolane

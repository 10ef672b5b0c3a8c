// Which tokens a sequence has had, for the penalties that docs/sampling.md defines. A list beside
// an index by token: a draw touches what was seen, not the vocabulary, and a note costs one look.
#pragma once

#include <cstdint>
#include <vector>

#include "abi/epoch_abi.h"

namespace monolane {

class TokenCounts {
 public:
  TokenCounts() = default;  // of a draw without penalties

  TokenCounts(const Draw& draw, int32_t vocab)
      : repetition_(draw.repetition_penalty),
        frequency_(draw.frequency_penalty),
        presence_(draw.presence_penalty) {
    const bool counts = frequency_ != 0 || presence_ != 0;
    if (counts || repetition_ != 1) place_.resize(vocab);
  }

  // Whether there are penalties: then tokens are to be noted.
  bool penalises() const { return !place_.empty(); }

  // Takes note of a token; `drawn`: not one that the caller gave.
  void note(int32_t token, bool drawn) {
    if (!drawn && repetition_ == 1) return;  // the other penalties do not look at it
    if (place_[token] == 0) {
      tokens_.push_back({token, 0});
      place_[token] = static_cast<uint32_t>(tokens_.size());
    }
    tokens_[place_[token] - 1].drawn += drawn;
  }

  // Puts the penalties upon logits, [V].
  void penalise(float* logits) const {
    for (const Token& seen : tokens_) {
      float value = logits[seen.token];
      value = value < 0 ? value * repetition_ : value / repetition_;
      if (seen.drawn > 0) {
        value = static_cast<float>(value - (frequency_ * seen.drawn + presence_));
      }
      logits[seen.token] = value;
    }
  }

 private:
  struct Token {
    int32_t token;
    uint32_t drawn;  // how often; 0: it was only given
  };

  float repetition_ = 1;
  double frequency_ = 0, presence_ = 0;
  std::vector<uint32_t> place_ = {};  // [V] one past a token's place in the list; 0: not seen
  std::vector<Token> tokens_ = {};
};

}  // namespace monolane

// Draws a drafted token as a sequence would draw it, with its own noise of the position.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/advance.h"
#include "sample/gumbel.h"
#include "sample/token_order.h"

namespace monolane {

// Where each row of logits is the token of its number.
inline std::vector<int32_t> all_tokens(int64_t vocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(vocab));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

class DraftChoice {
 public:
  // `tokens` [R]: the model's id of each row of logits. Throws std::invalid_argument if one is none
  // of its `vocab`.
  DraftChoice(std::vector<int32_t> tokens, int64_t vocab) : tokens_(std::move(tokens)) {
    for (const int32_t token : tokens_) {
      if (token >= 0 && token < vocab) continue;
      throw std::invalid_argument("heads: expected tokens from 0 to " + std::to_string(vocab - 1) +
                                  ", got " + std::to_string(token));
    }
  }

  int32_t token(int32_t row) const { return tokens_[row]; }
  const std::vector<int32_t>& tokens() const { return tokens_; }

  // The row of `logits` [R] that a sequence would draw, of the best ones, as docs/sampling.md has
  // it; it knows nothing of penalties, biases and masks.
  int32_t draw(const float* logits, const Draw& draw, uint32_t position) {
    return this->draw(logits, tokens_, draw, position);
  }

  // The same of other rows: `tokens` [R].
  int32_t draw(const float* logits, const std::vector<int32_t>& tokens, const Draw& draw,
               uint32_t position) {
    constexpr size_t kMostRanked = 64;  // that a draw looks at: hardly any goes beyond
    const size_t drafted = tokens.size();
    const int32_t best = static_cast<int32_t>(std::max_element(logits, logits + drafted) - logits);
    if (draw.temperature <= 0) return best;
    size_t count = std::min(kMostRanked, drafted);
    if (draw.top_k > 0) count = std::min<size_t>(count, draw.top_k);
    ranked_.resize(drafted);
    std::iota(ranked_.begin(), ranked_.end(), 0);
    const Before before_other{logits};
    std::nth_element(ranked_.begin(), ranked_.begin() + (count - 1), ranked_.end(), before_other);
    std::sort(ranked_.begin(), ranked_.begin() + count, before_other);
    const auto weight = [&](size_t rank) {
      return std::exp((logits[ranked_[rank]] - logits[best]) / draw.temperature);
    };
    double all = 0, before = 0;
    for (size_t i = 0; i < count; ++i) all += weight(i);
    int32_t drawn = best;
    float most = 0;
    for (size_t i = 0; i < count; ++i) {
      const double mine = weight(i);
      if (i > 0 && (before >= draw.top_p * all || mine < draw.min_p)) break;
      const uint32_t id = static_cast<uint32_t>(tokens[ranked_[i]]);
      const float noisy =
          logits[ranked_[i]] / draw.temperature + gumbel(philox_word(draw.seed, position, id));
      if (i == 0 || noisy > most) drawn = ranked_[i];
      if (i == 0 || noisy > most) most = noisy;
      before += mine;
    }
    return drawn;
  }

 private:
  std::vector<int32_t> tokens_;
  std::vector<int32_t> ranked_ = {};  // scratch
};

}  // namespace monolane

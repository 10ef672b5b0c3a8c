#include "draft/markov_head.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "draft/joint_drafter.h"
#include "kernels/elementwise.h"

namespace monolane {
namespace {

constexpr size_t kBest = 256;  // tokens of a row that may be drawn

int64_t checked_vocab(const MarkovWeights& weights, int64_t vocab) {
  if (weights.vocab == vocab) return vocab;
  throw std::invalid_argument("heads: expected a Markov head of " + std::to_string(vocab) +
                              " tokens, got one of " + std::to_string(weights.vocab));
}

}  // namespace

MarkovHead::MarkovHead(const Kernels& kernels, const MarkovWeights& weights, int64_t vocab,
                       int64_t hidden)
    : kernels_(kernels),
      vocab_(checked_vocab(weights, vocab)),
      hidden_(hidden),
      rank_(weights.rank),
      in_(copied(weights.in, vocab, rank_)),
      out_(copied(weights.out, vocab, rank_)),
      confidence_(
          weights.confidence == nullptr
              ? std::vector<float>()
              : std::vector<float>(weights.confidence, weights.confidence + hidden + rank_ + 1)),
      state_(rank_),
      row_(rank_) {}

MarkovHead::Rows MarkovHead::copied(const StoredMatrix& stored, int64_t rows, int64_t columns) {
  const auto bytes = static_cast<size_t>(rows * row_bytes(stored.format, columns));
  Rows found{std::make_unique<Arena>(bytes), {}};
  std::memcpy(found.data->as<char>(), stored.values, bytes);
  found.matrix = {found.data->as<char>(), nullptr, rows, columns, stored.format};
  return found;
}

// Those of the highest logits, of equal ones those that come first. One walk over the row: what
// does not reach the least of the best so far, which rises, is not kept.
void MarkovHead::choose_best(const float* logits) {
  const auto keep_best = [&] {
    std::nth_element(best_.begin(), best_.begin() + (kBest - 1), best_.end(), Before{logits});
    best_.resize(kBest);
  };
  best_.clear();
  float least = -INFINITY;
  for (int32_t token = 0; token < vocab_; ++token) {
    if (!(logits[token] > least) && best_.size() >= kBest) continue;
    best_.push_back(token);
    if (best_.size() < 2 * kBest) continue;
    keep_best();
    least = logits[best_[kBest - 1]];
  }
  if (best_.size() > kBest) keep_best();
  std::ranges::sort(best_);
}

float MarkovHead::confidence_of(const float* read) const {
  const float* own = confidence_.data();
  const float sum =
      dot(own, read, hidden_) + dot(own + hidden_, state_.data(), rank_) + own[hidden_ + rank_];
  return 1 / (1 + std::exp(-sum));
}

MarkovHead::Drawn MarkovHead::draw(const float* logits, const float* read, int32_t before,
                                   const Draw& draw, uint32_t position, DraftChoice& choice) {
  choose_best(logits);
  kernels_.widen(in_.matrix, before, state_.data());
  moved_.clear();
  for (const int32_t token : best_) {
    kernels_.widen(out_.matrix, token, row_.data());
    moved_.push_back(logits[token] + dot(row_.data(), state_.data(), rank_));
  }
  const int32_t drawn = choice.draw(moved_.data(), best_, draw, position);
  const float stated = confidence_.empty()
                           ? chance_of(moved_.data(), static_cast<int32_t>(moved_.size()), drawn)
                           : confidence_of(read);
  return {best_[drawn], stated};
}

}  // namespace monolane

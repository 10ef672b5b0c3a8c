// What a DSpark drafter adds to DFlash's (github.com/deepseek-ai/DeepSpec): the tokens of a block
// are drawn one behind the other, each by logits that the one before it has moved.
//
//   logits'(v) = logits(v) + out[v] . in[token before]
//   chance     = sigmoid(confidence . [what the head read | in[token before]]), if it has that
//
// Of a row the best tokens alone are moved, and one of them is drawn: all of `out` would be as much
// to read as a head of r columns, for each token of a block.
//
// Shape legend: V vocabulary, D hidden, r rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "draft/draft_choice.h"
#include "draft/draft_layers.h"
#include "kernels/kernels.h"
#include "memory/arena.h"

namespace monolane {

// As a loader hands it over; what it points to is read once.
struct MarkovWeights {
  int64_t rank = 0;         // r; 0: there is none
  int64_t vocab = 0;        // V
  StoredMatrix in, out;     // [V, r]
  const float* confidence;  // [D + r + 1], the last one added; null: logits tell the chance
};

class MarkovHead {
 public:
  // Throws std::invalid_argument if the weights are of another vocabulary.
  MarkovHead(const Kernels& kernels, const MarkovWeights& weights, int64_t vocab, int64_t hidden);

  struct Drawn {
    int32_t token;
    float stated;  // its chance
  };

  // Draws behind `before` from logits [V], of which the head read `read` [D].
  Drawn draw(const float* logits, const float* read, int32_t before, const Draw& draw,
             uint32_t position, DraftChoice& choice);

 private:
  struct Rows {  // as they were stored
    std::unique_ptr<Arena> data;
    Matrix matrix;
  };
  static Rows copied(const StoredMatrix& stored, int64_t rows, int64_t columns);
  void choose_best(const float* logits);
  float confidence_of(const float* read) const;

  const Kernels& kernels_;
  const int64_t vocab_, hidden_, rank_;
  const Rows in_, out_;
  const std::vector<float> confidence_;  // [D + r + 1], or none
  std::vector<int32_t> best_;            // of a row, ascending
  std::vector<float> moved_;             // [best]
  std::vector<float> state_, row_;       // [r]
};

}  // namespace monolane

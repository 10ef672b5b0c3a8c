// Drafters with layers of their own as Python hands them over: lists of matrices and vectors, of
// which each is checked to have the size that it is said to have.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bind/weight_table.h"
#include "draft/dflash_drafter.h"
#include "draft/eagle_drafter.h"

namespace monolane {

using DraftTokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// What is listed, one behind the other.
class DraftParts {
 public:
  using Matrices = std::vector<std::pair<Bytes, int>>;  // with the codes of their formats
  using Vectors = std::vector<Floats>;

  DraftParts(const Matrices& matrices, const Vectors& vectors)
      : matrices_(matrices), vectors_(vectors) {}

  StoredMatrix matrix(int64_t rows, int64_t columns) {
    if (matrix_ == matrices_.size()) refuse("heads: expected more matrices");
    const auto& [values, code] = matrices_[matrix_++];
    const Format format = static_cast<Format>(code);
    if (code < 0 || code > static_cast<int>(Format::kF16) || is_coded(format) ||
        static_cast<int64_t>(values.size()) != row_bytes(format, rows * columns)) {
      refuse("heads: expected matrices of plain numbers, of the sizes that are said");
    }
    return {values.data(), format};
  }

  const float* vector(int64_t count) {
    if (vector_ == vectors_.size() || static_cast<int64_t>(vectors_[vector_].size()) != count) {
      refuse("heads: expected a vector of " + std::to_string(count) + " numbers");
    }
    return vectors_[vector_++].data();
  }

  void check_end() const {
    if (matrix_ == matrices_.size() && vector_ == vectors_.size()) return;
    refuse("heads: expected " + std::to_string(matrix_) + " matrices and " +
           std::to_string(vector_) + " vectors, got more");
  }

 private:
  const Matrices& matrices_;
  const Vectors& vectors_;
  size_t matrix_ = 0, vector_ = 0;
};

// `sizes`: D, F, H, K, h.
inline DraftShape draft_shape_of(const std::vector<int>& sizes, int64_t input, int64_t widest,
                                 float norm_eps, float amplitude) {
  const DraftShape shape = {.hidden = sizes[0],
                            .input = input,
                            .inner = sizes[1],
                            .heads = sizes[2],
                            .kv_heads = sizes[3],
                            .head_dim = sizes[4],
                            .widest = widest,
                            .frequencies = nullptr,
                            .norm_eps = norm_eps,
                            .amplitude = amplitude};
  if (shape.hidden < 1 || shape.inner < 1 || shape.kv_heads < 1 ||
      shape.heads % shape.kv_heads != 0 || shape.head_dim < 2) {
    refuse("heads: expected sizes from 1 on, and query heads in whole groups");
  }
  return shape;
}

inline DraftLayerWeights draft_layer_of(DraftParts& parts, const DraftShape& s) {
  const int64_t wide = s.heads * s.head_dim, narrow = s.kv_heads * s.head_dim;
  DraftLayerWeights layer = {};
  layer.q = parts.matrix(wide, s.input);
  layer.k = parts.matrix(narrow, s.input);
  layer.v = parts.matrix(narrow, s.input);
  layer.o = parts.matrix(s.hidden, wide);
  layer.gate = parts.matrix(s.inner, s.hidden);
  layer.up = parts.matrix(s.inner, s.hidden);
  layer.down = parts.matrix(s.hidden, s.inner);
  return layer;
}

// Matrices fc, those of the layer, and head; norms of a token, a state, the MLP and the head, and
// frequencies; sizes D, F, H, K, h and R.
inline EagleWeights eagle_of(const DraftParts::Matrices& matrices,
                             const DraftParts::Vectors& vectors, const DraftTokens& tokens,
                             const std::vector<int>& sizes, float norm_eps, float amplitude,
                             bool norm_joins) {
  if (sizes.size() != 6) refuse("heads: expected 6 sizes of an EAGLE-3 drafter");
  const int64_t hidden = sizes[0], drafted = sizes[5], given = kEagleStreams * hidden;
  if (static_cast<int64_t>(tokens.size()) != drafted || drafted == 0) {
    refuse("heads: expected tokens [R]");
  }
  DraftParts parts(matrices, vectors);
  EagleWeights found = {};
  found.shape = draft_shape_of(sizes, 2 * hidden, given, norm_eps, amplitude);
  found.fc = parts.matrix(hidden, given);
  found.layer = draft_layer_of(parts, found.shape);
  found.head = parts.matrix(drafted, hidden);
  found.token_norm = parts.vector(hidden);
  found.state_norm = parts.vector(hidden);
  found.layer.mlp_norm = parts.vector(hidden);
  found.final_norm = parts.vector(hidden);
  found.shape.frequencies = parts.vector(found.shape.head_dim / 2);
  parts.check_end();
  found.drafted = drafted;
  found.tokens = tokens.data();
  found.norm_joins = norm_joins;
  return found;
}

// Matrices fc, and those of each layer; norms of what is read and of the head, frequencies, and of
// each layer norms of the stream, the MLP, queries and keys; sizes D, F, H, K, h, n, B and the
// mask's token, and of DSpark V, r and whether there is a confidence; of each layer its window or
// 0. Of DSpark behind them the matrices in and out [V, r], and the confidence [D + r + 1].
inline DflashWeights dflash_of(const DraftParts::Matrices& matrices,
                               const DraftParts::Vectors& vectors, const std::vector<int>& sizes,
                               const std::vector<int>& windows, float norm_eps, float amplitude,
                               bool causal) {
  if (sizes.size() != 11 || windows.empty()) {
    refuse("heads: expected 11 sizes and some layers of a DFlash drafter");
  }
  const int64_t hidden = sizes[0], given = sizes[5] * hidden;
  DraftParts parts(matrices, vectors);
  DflashWeights found = {};
  found.shape = draft_shape_of(sizes, hidden, given, norm_eps, amplitude);
  found.fc = parts.matrix(hidden, given);
  found.context_norm = parts.vector(hidden);
  found.final_norm = parts.vector(hidden);
  found.shape.frequencies = parts.vector(found.shape.head_dim / 2);
  found.streams = sizes[5];
  found.block = sizes[6];
  found.mask = sizes[7];
  found.causal = causal;
  for (const int window : windows) {
    DraftLayerWeights layer = draft_layer_of(parts, found.shape);
    found.input_norms.push_back(parts.vector(hidden));
    layer.mlp_norm = parts.vector(hidden);
    layer.query_norm = parts.vector(found.shape.head_dim);
    layer.key_norm = parts.vector(found.shape.head_dim);
    layer.window = window;
    found.layers.push_back(layer);
  }
  if (const int64_t vocab = sizes[8], rank = sizes[9]; rank > 0) {
    found.markov = {.rank = rank,
                    .vocab = vocab,
                    .in = parts.matrix(vocab, rank),
                    .out = parts.matrix(vocab, rank),
                    .confidence = sizes[10] != 0 ? parts.vector(hidden + rank + 1) : nullptr};
  }
  parts.check_end();
  return found;
}

}  // namespace monolane

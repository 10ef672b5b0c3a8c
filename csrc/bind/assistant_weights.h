// An assistant as Python hands it over: checked, as far as the core cannot.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/weight_table.h"
#include "draft/assistant_drafter.h"

namespace monolane {

using AssistantTokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Bytes of a matrix, its rows, and its columns.
using AssistantMatrix = std::tuple<Bytes, int64_t, int64_t>;
// Matrices q, o, gate, up, down; vectors: norms before and behind attention, before and behind the
// MLP, of queries, and frequencies; sizes H, K, h, the layer whose keys are read, and its window;
// amplitude and scale.
using AssistantParts = std::tuple<std::vector<AssistantMatrix>, std::vector<Floats>,
                                  std::vector<int64_t>, std::vector<float>>;

inline std::vector<float> copy_of(const Floats& x) {
  return std::vector<float>(x.data(), x.data() + x.size());
}

inline std::vector<float> copy_of(const Floats& one, const Floats& other) {
  std::vector<float> both = copy_of(one);
  both.insert(both.end(), other.data(), other.data() + other.size());
  return both;
}

inline Matrix matrix_of(const AssistantMatrix& given, Format format) {
  const auto& [values, rows, columns] = given;
  if (rows < 1 || columns < 1 ||
      static_cast<int64_t>(values.size()) != rows * row_bytes(format, columns)) {
    refuse("assistant: expected a matrix of " + std::to_string(rows) + " rows and " +
           std::to_string(columns) + " columns, got " + std::to_string(values.size()) + " bytes");
  }
  return {values.data(), nullptr, rows, columns, format};
}

inline AssistantLayer layer_of(const AssistantParts& parts, Format format) {
  const auto& [matrices, vectors, sizes, numbers] = parts;
  if (matrices.size() != 5 || vectors.size() != 6 || sizes.size() != 5 || numbers.size() != 2) {
    refuse("assistant: expected 5 matrices, 6 vectors, 5 sizes and 2 numbers of a layer");
  }
  if (vectors[0].size() != vectors[1].size() || vectors[2].size() != vectors[3].size()) {
    refuse("assistant: expected norms before and behind a module of one width");
  }
  return {.heads = sizes[0],
          .kv_heads = sizes[1],
          .head_dim = sizes[2],
          .keys_of = sizes[3],
          .window = sizes[4],
          .q = matrix_of(matrices[0], format),
          .o = matrix_of(matrices[1], format),
          .gate = matrix_of(matrices[2], format),
          .up = matrix_of(matrices[3], format),
          .down = matrix_of(matrices[4], format),
          .attention_norms = copy_of(vectors[0], vectors[1]),
          .mlp_norms = copy_of(vectors[2], vectors[3]),
          .query_norm = copy_of(vectors[4]),
          .frequencies = copy_of(vectors[5]),
          .amplitude = numbers[0],
          .scale = numbers[1]};
}

// `matrices`: before, after, head and, where tokens are ordered, centroids.
inline AssistantWeights assistant_of(int format, const std::vector<AssistantParts>& layers,
                                     const std::vector<AssistantMatrix>& matrices,
                                     const AssistantTokens& ordering, int64_t chosen,
                                     const Floats& final_norm, float norm_eps) {
  const Format stored = WeightTable::format_of(format);
  if (is_coded(stored)) refuse("assistant: expected matrices of plain numbers");
  if (matrices.size() != (ordering.size() == 0 ? 3 : 4)) {
    refuse("assistant: expected matrices before, after, head, and centroids with an ordering");
  }
  AssistantWeights found{.layers = {},
                         .before = matrix_of(matrices[0], stored),
                         .after = matrix_of(matrices[1], stored),
                         .head = matrix_of(matrices[2], stored),
                         .centroids = {nullptr, nullptr, 0, 0, stored},
                         .chosen = chosen,
                         .ordering = {ordering.data(), ordering.data() + ordering.size()},
                         .final_norm = copy_of(final_norm),
                         .norm_eps = norm_eps};
  if (ordering.size() > 0) found.centroids = matrix_of(matrices[3], stored);
  for (const AssistantParts& parts : layers) found.layers.push_back(layer_of(parts, stored));
  return found;
}

}  // namespace monolane

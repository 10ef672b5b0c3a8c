// The weights of a model as a loader hands them over.
//
// Shape legend: D hidden, h head_dim, V vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/plan_abi.h"
#include "kernels/kernels.h"

namespace monolane {

// Where the lanes' rows lie in a matrix that is stored as that of one lane (model/_lanes.py). By
// default they are its rows as they are, lane after lane.
struct LaneCut {
  int64_t column_parts = 1;  // lane l has the columns of part l, of all rows
  int64_t copies = 1;        // each block of rows serves so many times, one behind the other
  int64_t block = 1;         // rows

  int64_t rows(const Matrix& stored) const { return stored.rows * column_parts * copies; }
  int64_t columns(const Matrix& stored) const { return stored.cols / column_parts; }
  int64_t stored_row(const Matrix& stored, int64_t row) const {
    return column_parts > 1 ? row % stored.rows : row / (copies * block) * block + row % block;
  }
  int64_t stored_column(const Matrix& stored, int64_t row) const {
    return column_parts > 1 ? row / stored.rows * columns(stored) : 0;
  }
};

// A matrix in the loader's memory, usually a mapped file, and the format in which it is to be
// multiplied. Where that is not the stored one, workers convert their own rows: packed_weights.h.
struct Weight {
  Matrix stored;
  Format format;
  LaneCut cut = {};
  float factor = 1.0f;  // of every number: of blocks alone

  // Whether workers round what the blocks mean to other codes, the factor included.
  bool rounded() const {
    return is_repacked(stored.format) && repacked_of(stored.format) != format;
  }

  // Whether workers multiply by copies of their own rows instead of by what is stored.
  bool copied() const { return format != stored.format || cut.column_parts > 1 || cut.copies > 1; }
};

// A worker's rows of a matrix, and what products of them are multiplied with where they leave: see
// product() in products.h.
struct OwnRows : Matrix {
  float factor = 1.0f;
};

// The weights of a layer, or of what is outside the layers, by their roles. What rows and columns
// mean is said in model/_tensors.py; of a matrix, the lanes lie one below the other.
class WeightsByRole {
 public:
  // One that products are made with. Of experts' matrices there is one for each expert.
  const Weight& matrix(WeightRole role, int64_t expert = 0) const {
    const std::vector<Weight>& each = matrices_[place(role)];
    if (expert < static_cast<int64_t>(each.size())) return each[expert];
    throw std::invalid_argument("weights: expected a matrix of role " +
                                std::to_string(place(role)) + " for every expert, got " +
                                std::to_string(each.size()));
  }
  // Puts an expert's matrix in its place, which is one of those there or behind them.
  void set_matrix(WeightRole role, int64_t expert, const Weight& weight) {
    std::vector<Weight>& each = matrices_[place(role)];
    if (expert < 0 || expert > static_cast<int64_t>(each.size())) {
      throw std::invalid_argument("expert: expected 0 to " + std::to_string(each.size()) +
                                  ", got " + std::to_string(expert));
    }
    if (expert == static_cast<int64_t>(each.size())) each.emplace_back();
    each[expert] = weight;
  }

  // Norms' scales, biases, sinks and the like, float32; null: the model has none.
  const float* vector(WeightRole role) const { return vectors_[place(role)]; }
  void set_vector(WeightRole role, const float* values) { vectors_[place(role)] = values; }

 private:
  static size_t place(WeightRole role) {
    if (role < WeightRole{} || static_cast<int32_t>(role) >= kWeightRoles) {
      throw std::invalid_argument("role: expected a WeightRole, got " +
                                  std::to_string(static_cast<int32_t>(role)));
    }
    return static_cast<size_t>(role);
  }

  std::array<std::vector<Weight>, kWeightRoles> matrices_;
  std::array<const float*, kWeightRoles> vectors_ = {};
};

struct ModelWeights {
  Matrix embedding;     // [V, D]; rows are looked up, whatever their format
  WeightsByRole outer;  // the head, and the norm before it
  // [h/2] each, radians per position; null: not used
  const float* frequencies[kPlanRotaries] = {};
  std::vector<WeightsByRole> layers;

  // Those of a phase; -1: outside the layers.
  const WeightsByRole& of(int64_t layer) const { return layer < 0 ? outer : layers.at(layer); }
  WeightsByRole& of(int64_t layer) { return layer < 0 ? outer : layers.at(layer); }
};

}  // namespace monolane

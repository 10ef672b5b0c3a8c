// What an executor reads, handed over from Python: checked, so that the core may trust it, and kept
// alive.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/weights.h"

namespace monolane {

namespace nb = nanobind;

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] inline void refuse(const std::string& message) {
  throw nb::value_error(message.c_str());
}

// What an executor reads, and the Python objects that own it.
struct WeightTable {
  ModelWeights weights;
  std::map<std::pair<int, int>, std::vector<nb::object>> owners;  // by role and layer
  std::map<std::pair<int, int>, int64_t> lengths;                 // of vectors, likewise

  explicit WeightTable(int layers) { weights.layers.resize(layers); }

  // Those of a layer; -1: outside the layers.
  WeightsByRole& of(int layer) {
    const int layers = static_cast<int>(weights.layers.size());
    if (layer < -1 || layer >= layers) {
      refuse("layer: expected -1 to " + std::to_string(layers - 1) + ", got " +
             std::to_string(layer));
    }
    return weights.of(layer);
  }

  void set_matrix(int role, int index, nb::object values, nb::object scales, int64_t rows,
                  int64_t columns, int format, int wanted, int64_t column_parts, int64_t copies,
                  int64_t block, int64_t expert, float factor) {
    const Format stored = format_of(format), used = format_of(wanted);
    const Bytes data = nb::cast<Bytes>(values);
    const int64_t step = std::max(column_step(stored), column_step(used));
    if (column_parts < 1 || copies < 1 || block < 1 || rows % block != 0) {
      refuse("cut: expected parts, copies and blocks of rows from 1 on, got " +
             std::to_string(column_parts) + ", " + std::to_string(copies) + " and " +
             std::to_string(block));
    }
    if (rows < 1 || columns < 1 || columns % (step * column_parts) != 0) {
      refuse("columns: expected a multiple of " + std::to_string(step * column_parts) + ", got " +
             std::to_string(columns));
    }
    if (static_cast<int64_t>(data.nbytes()) != rows * row_bytes(stored, columns)) {
      refuse("values: expected " + std::to_string(rows * row_bytes(stored, columns)) +
             " bytes, got " + std::to_string(data.nbytes()));
    }
    const uint16_t* scale = nullptr;
    if (scales_apart(stored)) {
      const Bytes bytes = nb::cast<Bytes>(scales);
      if (static_cast<int64_t>(bytes.nbytes()) != rows * columns / kGroup * 2) {
        refuse("scales: expected " + std::to_string(rows * columns / kGroup * 2) + " bytes, got " +
               std::to_string(bytes.nbytes()));
      }
      scale = reinterpret_cast<const uint16_t*>(bytes.data());
    }
    const bool in_blocks = is_coded(stored) && !scales_apart(stored);
    const bool looked_up = static_cast<WeightRole>(role) == WeightRole::kEmbedding;
    if (factor != 1.0f && (!in_blocks || looked_up)) {
      refuse("factor: expected one of blocks that are multiplied by, got one of other numbers");
    }
    const Matrix matrix{data.data(), scale, rows, columns, stored};
    if (looked_up) {
      weights.embedding = matrix;
    } else {
      of(index).set_matrix(static_cast<WeightRole>(role), expert,
                           {matrix, used, {column_parts, copies, block}, factor});
    }
    std::vector<nb::object>& kept = owners[{role, index}];
    if (expert == 0) kept.clear();
    kept.insert(kept.end(), {values, scales});
  }

  static Format format_of(int format) {
    if (format < 0 || format >= static_cast<int>(std::size(kFormats)) || !kFormats[format].on_cpu) {
      refuse("format: expected one that this processor multiplies by, got " +
             std::to_string(format));
    }
    return static_cast<Format>(format);
  }

  // Numbers of a vector, of kNone those of a rotary's frequencies; -1: there is none.
  int64_t length(WeightRole role, int index) const {
    const auto found = lengths.find({static_cast<int>(role), index});
    return found == lengths.end() ? -1 : found->second;
  }

  void set_vector(int role, int index, nb::object values) {
    const Floats floats = nb::cast<Floats>(values);
    const float* data = floats.data();
    if (static_cast<WeightRole>(role) == WeightRole::kNone) {
      if (index < 0 || index >= kPlanRotaries) refuse("frequencies: expected a PlanRotary");
      weights.frequencies[index] = data;
    } else {
      of(index).set_vector(static_cast<WeightRole>(role), data);
    }
    owners[{role, index}] = {values};
    lengths[{role, index}] = static_cast<int64_t>(floats.size());
  }
};

}  // namespace monolane

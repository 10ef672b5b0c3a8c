// Sums as a GPU's matrix unit makes them, for who computes its answer anew on a processor. What is
// computed is defined, with its source, in src/monolane/cuda/_matrix_unit.py.
#pragma once

#include <cstdint>

namespace monolane {

// Factors of 16 bits: bfloat16, or float16.
struct MatrixFactors {
  const uint16_t* rows;     // [N, K]
  const uint16_t* columns;  // [N, K], or one row for all
  bool one_column;
  bool half;  // float16
};

// Adds to the sums [N], 16 products at a time; K is filled up with zeros.
void add_products(const MatrixFactors& factors, int64_t count, int64_t width, float* sums);

}  // namespace monolane

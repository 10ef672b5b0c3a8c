// Products of a worker's own rows: see products.h.
#include "ops/products.h"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise.h"

namespace monolane {

PlanShare share(const Forward& f, const Worker& w, int32_t table) {
  return f.plan.share(table, w.index);
}

const OwnRows& rows(const Forward& f, const Worker& w, const PlanPhase& phase, int64_t index,
                    int64_t expert) {
  return w.weights.of(f.index_of(phase), index, expert);
}

void pack(const Forward& f, const Worker& w, const PlanPhase& phase, const float* x,
          int64_t columns, int64_t lane, int64_t width) {
  uint32_t packed = 0;
  for (int32_t i = 0; i < phase.num_matrices; ++i) {
    const Activation kind = f.activation_of(rows(f, w, phase, i));
    const uint32_t bit = 1u << static_cast<int>(kind);
    if ((packed & bit) == 0)
      f.kernels.pack(kind, x, columns, width, w.packed_lane(kind, lane, width));
    packed |= bit;  // a kind that an earlier matrix takes too is there already
  }
  if (f.adapters.in_use()) lower_inputs(f, w, phase, x, columns, lane, width);
}

void product(const Forward& f, const OwnRows& matrix, int64_t row_begin, int64_t row_end,
             Activation kind, const void* packed, int64_t width, float* y, int64_t stride) {
  const int64_t bytes = f.kernels.packed_bytes(kind, matrix.cols);
  const char* tokens = static_cast<const char*>(packed);
  for (int64_t t = 0; t < width; t += kMaxWidth) {
    f.kernels.multiply(matrix, row_begin, row_end, kind, tokens + t * bytes,
                       std::min<int64_t>(width - t, kMaxWidth), y + t * stride, stride);
  }
  if (matrix.factor == 1.0f) return;
  for (int64_t t = 0; t < width; ++t) scale_by(y + t * stride, matrix.factor, row_end - row_begin);
}

void store_side_by_side(Forward& f, Worker& w, const PlanPhase& phase, float* out,
                        int64_t columns) {
  for (int32_t i = 0; i < phase.num_matrices; ++i) {
    multiply(f, w, phase, i, [&](int64_t, int64_t first, int64_t count, float* y) {
      for (int64_t t = 0; t < f.pass.width; ++t) {
        std::memcpy(out + t * columns + first, y + t * count, floats(count));
      }
    });
    out += phase.matrices[i].rows;
  }
}

}  // namespace monolane

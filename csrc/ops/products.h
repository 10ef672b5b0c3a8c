// Products of a worker's own rows: packing what they are multiplied with, and saying where they go.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/adapted_products.h"
#include "ops/worker.h"

namespace monolane {

struct Products {  // [T] rows, `stride` floats apart
  float* y;
  int64_t stride;
};

// The worker's part of a table of the plan.
PlanShare share(const Forward& f, const Worker& w, int32_t table);

// Its rows of a phase's matrix.
const OwnRows& rows(const Forward& f, const Worker& w, const PlanPhase& phase, int64_t index,
                    int64_t expert = 0);

// Packs the inputs of a phase, [T, columns] of a lane, in each kind that its matrices take, and
// makes what adapters make of them.
void pack(const Forward& f, const Worker& w, const PlanPhase& phase, const float* x,
          int64_t columns, int64_t lane, int64_t width);

// What `kernels.multiply` does, times the rows' factor, of passes of any width: kMaxWidth tokens at
// a time.
void product(const Forward& f, const OwnRows& matrix, int64_t row_begin, int64_t row_end,
             Activation kind, const void* packed, int64_t width, float* y, int64_t stride);

// Puts the products of a phase of one lane side by side into out [T, columns].
void store_side_by_side(Forward& f, Worker& w, const PlanPhase& phase, float* out, int64_t columns);

// Multiplies the worker's share of a matrix with the packed activations of each lane it falls on,
// and adds what adapters make of these, piece by piece: place(lane of the group, first row within
// the lane, rows) says where the products go, and store(the same, y) is told when they are there.
template <typename Place, typename Store>
void multiply(Forward& f, Worker& w, const PlanPhase& phase, int64_t index, Place place,
              Store store) {
  const PlanMatrix& part = phase.matrices[index];
  const OwnRows& matrix = rows(f, w, phase, index);
  const PlanShare own = share(f, w, part.share);
  const Activation kind = f.activation_of(matrix);
  for (int64_t row = own.begin; row < own.end;) {
    const int64_t lane = row / part.rows, first = row % part.rows;
    const int64_t count = std::min<int64_t>(own.end - row, part.rows - first);
    const int64_t begin = row - own.begin;
    const Products to = place(lane, first, count);
    product(f, matrix, begin, begin + count, kind, w.packed_lane(kind, lane, f.pass.width),
            f.pass.width, to.y, to.stride);
    if (f.adapters.in_use()) add_adapted(f, w, phase, index, lane, first, count, to.y, to.stride);
    store(lane, first, count, to.y);
    row += count;
  }
}

// The same into the worker's own `product`: y [T, rows].
template <typename Store>
void multiply(Forward& f, Worker& w, const PlanPhase& phase, int64_t index, Store store) {
  const auto place = [&](int64_t, int64_t, int64_t count) {
    return Products{w.product->as<float>(), count};
  };
  multiply(f, w, phase, index, place, store);
}

}  // namespace monolane

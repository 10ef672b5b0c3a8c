#include "ops/adapted_products.h"

#include "kernels/elementwise.h"

namespace monolane {
namespace {

constexpr Activation kKind = Activation::kF32;  // of an adapter's products, whatever the matrices'

// The rows of a pass that have an adapter, those with the same one together: go(which, first,
// rows).
template <typename Go>
void each_run(const Forward& f, int64_t width, Go go) {
  const auto adapter = [&](int64_t t) { return f.adapters.of(f.pass.rows[t].slot); };
  for (int64_t t = 0, end; t < width; t = end) {
    end = t + 1;
    while (end < width && end - t < kMaxWidth && adapter(end) == adapter(t)) ++end;
    if (adapter(t) != 0) go(adapter(t), t, end - t);
  }
}

// Where A x of a matrix lies, from row `t` on.
char* packed_at(const Forward& f, const Worker& w, int64_t matrix, int64_t lane, int64_t t) {
  const PlanHeader& h = f.plan.header;
  const int64_t at = (matrix * h.group_lanes + lane) * h.max_width + t;
  return w.adapter_room.packed->as<char>() + at * w.adapter_room.token_bytes;
}

}  // namespace

void lower_inputs(const Forward& f, const Worker& w, const PlanPhase& phase, const float* x,
                  int64_t columns, int64_t lane, int64_t width) {
  const int64_t index = f.index_of(phase), owner = w.first_lane + lane;
  if (!f.adapters.reach(index)) return;
  void* inputs = w.adapter_room.inputs->as<void>();
  float* lowered = w.adapter_room.lowered->as<float>();
  each_run(f, width, [&](int32_t adapter, int64_t t, int64_t count) {
    f.kernels.pack(kKind, x + t * columns, columns, count, inputs);
    for (int32_t i = 0; i < phase.num_matrices; ++i) {
      const LowRank* part = f.adapters.find(adapter, index, i);
      if (part == nullptr) continue;
      const int64_t rank = part->rank;
      const float* down = part->down.data() + owner * rank * columns;
      f.kernels.multiply({down, nullptr, rank, columns, Format::kF32}, 0, rank, kKind, inputs,
                         count, lowered, rank);
      f.kernels.pack(kKind, lowered, rank, count, packed_at(f, w, i, lane, t));
    }
  });
}

void add_adapted(const Forward& f, const Worker& w, const PlanPhase& phase, int64_t matrix,
                 int64_t lane, int64_t first, int64_t count, float* y, int64_t stride) {
  const int64_t index = f.index_of(phase), owner = w.first_lane + lane;
  if (!f.adapters.reach(index)) return;
  float* product = w.adapter_room.product->as<float>();
  each_run(f, f.pass.width, [&](int32_t adapter, int64_t t, int64_t tokens) {
    const LowRank* part = f.adapters.find(adapter, index, matrix);
    if (part == nullptr) return;
    const int64_t rows = phase.matrices[matrix].rows, rank = part->rank;
    const float* up = part->up.data() + owner * rows * rank;
    f.kernels.multiply({up, nullptr, rows, rank, Format::kF32}, first, first + count, kKind,
                       packed_at(f, w, matrix, lane, t), tokens, product, count);
    for (int64_t i = 0; i < tokens; ++i) {
      add_to(y + (t + i) * stride, product + i * count, count);
    }
  });
}

}  // namespace monolane

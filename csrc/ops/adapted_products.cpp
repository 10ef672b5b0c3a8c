#include "ops/adapted_products.h"

#include "kernels/elementwise.h"

namespace monolane {
namespace {

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

// Where A x of a matrix lies, from row `t` on: [T, r] of any rank, each row where the highest has
// it, so that runs of other adapters have places of their own.
float* lowered_at(const Forward& f, const Worker& w, int64_t matrix, int64_t lane, int64_t t) {
  const PlanHeader& h = f.plan.header;
  const int64_t at = (matrix * h.group_lanes + lane) * h.max_width + t;
  return w.adapter_room.lowered->as<float>() + at * f.adapters.highest_rank();
}

}  // namespace

void lower_inputs(const Forward& f, const Worker& w, const PlanPhase& phase, const float* x,
                  int64_t columns, int64_t lane, int64_t width) {
  const int64_t index = f.index_of(phase), owner = w.first_lane + lane;
  if (!f.adapters.reach(index)) return;
  constexpr Activation kind = Activation::kF32;  // whatever the matrices' own
  void* inputs = w.adapter_room.inputs->as<void>();
  each_run(f, width, [&](int32_t adapter, int64_t t, int64_t count) {
    f.kernels.pack(kind, x + t * columns, columns, count, inputs);
    for (int32_t i = 0; i < phase.num_matrices; ++i) {
      const LowRank* part = f.adapters.find(adapter, index, i);
      if (part == nullptr) continue;
      const int64_t rank = part->rank;
      const float* down = part->down.data() + owner * rank * columns;
      f.kernels.multiply({down, nullptr, rank, columns, Format::kF32}, 0, rank, kind, inputs, count,
                         lowered_at(f, w, i, lane, t), rank);
    }
  });
}

void add_adapted(const Forward& f, const Worker& w, const PlanPhase& phase, int64_t matrix,
                 int64_t lane, int64_t first, int64_t count, float* y, int64_t stride) {
  const int64_t index = f.index_of(phase), owner = w.first_lane + lane;
  if (!f.adapters.reach(index)) return;
  each_run(f, f.pass.width, [&](int32_t adapter, int64_t t, int64_t tokens) {
    const LowRank* part = f.adapters.find(adapter, index, matrix);
    if (part == nullptr) return;
    const int64_t rows = phase.matrices[matrix].rows, rank = part->rank;
    const float* up = part->up.data() + owner * rank * rows + first;
    const float* lowered = lowered_at(f, w, matrix, lane, t);
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t j = 0; j < rank; ++j) {
        add_scaled_to(y + (t + i) * stride, up + j * rows, lowered[i * rank + j], count);
      }
    }
  });
}

}  // namespace monolane

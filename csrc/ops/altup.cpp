// kAltupIn, kAltupPredict, kAltupCorrect, kAltupOut and kAltupMean: several streams, of which
// layers work on the first (model/_altup.py). Such models have one lane. Every worker keeps all
// streams whole and computes them token by token, in one order: so the bits are the same for any
// number of workers, and however a prompt is cut.
#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/stream.h"

namespace monolane {
namespace {

constexpr float kLeast = 1e-5f;  // of the mean square by which a stream's length is divided

float mean_square(const float* x, int64_t count) {
  return dot(x, x, count) / static_cast<float>(count);
}

// Scales a token's numbers [D] so that their mean square is that of the first stream's.
void make_as_long(const float* first, int64_t hidden, float* x) {
  const float wanted = std::sqrt(mean_square(first, hidden));
  scale_by(x, wanted / std::sqrt(std::max(mean_square(x, hidden), kLeast)), hidden);
}

// What the router makes of a stream's token: routed [A].
void route(const Forward& f, Worker& w, int64_t layer, const float* x, float* routed) {
  const int64_t hidden = f.plan.header.hidden;
  const WeightsByRole& weights = f.weights.of(layer);
  const float* router = weights.vector(WeightRole::kAltupRouter);  // [A, D]
  float* normed = w.sum->as<float>();
  norm_stream(f, x, weights.vector(WeightRole::kAltupNorm), 1, normed);
  for (int32_t i = 0; i < f.plan.header.streams; ++i) {
    const float said = dot(normed, router + i * hidden, hidden);
    routed[i] = std::tanh(said / static_cast<float>(hidden));
  }
}

// The product of a row of a small matrix with what the router made, [A] both.
float share_of(const float* row, const float* routed, int32_t streams) {
  float sum = 0.0f;
  for (int32_t i = 0; i < streams; ++i) sum += row[i] * routed[i];
  return sum;
}

// A token's products that streams begin or end with: [A-1, D].
float* products_of(const Forward& f, int64_t t) {
  const PlanHeader& h = f.plan.header;
  return f.buffer(PlanBuffer::kAltup) + t * (h.streams - 1) * h.hidden;
}

}  // namespace

void run_altup_in(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  pack(f, w, phase, w.x->as<float>(), h.hidden, 0, f.pass.width);
  store_side_by_side(f, w, phase, products_of(f, 0), int64_t{h.streams - 1} * h.hidden);
}

void run_altup_predict(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const int64_t hidden = h.hidden;
  const int32_t streams = h.streams;
  const float* matrix = f.weights.of(phase.layer).vector(WeightRole::kAltupPredict);  // [A*A, A]
  float routed[kPlanMaxStreams];
  update(f, w, phase);
  for (int64_t t = 0; t < f.pass.width; ++t) {
    float* x = w.x->as<float>() + t * hidden;
    if (phase.layer == 0) {
      std::copy_n(x, hidden, stream_of(f, w, 0, t));
      for (int32_t i = 1; i < streams; ++i) {
        float* own = stream_of(f, w, i, t);
        std::copy_n(products_of(f, t) + (i - 1) * hidden, hidden, own);
        make_as_long(x, hidden, own);
      }
    }
    route(f, w, phase.layer, stream_of(f, w, 0, t), routed);
    float* predicted = w.predicted->as<float>();  // [A, D]
    for (int32_t i = 0; i < streams; ++i) {
      float* out = predicted + i * hidden;
      std::copy_n(stream_of(f, w, i, t), hidden, out);
      for (int32_t j = 0; j < streams; ++j) {
        const float share = share_of(matrix + (i * streams + j) * streams, routed, streams);
        add_scaled_to(out, stream_of(f, w, j, t), share, hidden);
      }
    }
    for (int32_t i = 0; i < streams; ++i) {
      std::copy_n(predicted + i * hidden, hidden, stream_of(f, w, i, t));
    }
    std::copy_n(predicted, hidden, x);
  }
}

void run_altup_correct(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const int64_t hidden = h.hidden;
  const WeightsByRole& weights = f.weights.of(phase.layer);
  const float* matrix = weights.vector(WeightRole::kAltupCorrect);  // [A, A]
  const float* scale = weights.vector(WeightRole::kAltupScale);     // [D]; null: none
  float routed[kPlanMaxStreams];
  update(f, w, phase);
  for (int64_t t = 0; t < f.pass.width; ++t) {
    float* x = w.x->as<float>() + t * hidden;
    const float* first = stream_of(f, w, 0, t);
    route(f, w, phase.layer, x, routed);
    for (int64_t i = 0; i < hidden; ++i) x[i] -= first[i];
    for (int32_t i = 0; i < h.streams; ++i) {
      const float share = share_of(matrix + i * h.streams, routed, h.streams);
      add_scaled_to(stream_of(f, w, i, t), x, share + 1.0f, hidden);
    }
    std::copy_n(first, hidden, x);
    if (scale == nullptr) continue;
    for (int64_t i = 0; i < hidden; ++i) x[i] *= scale[i];
  }
}

void run_altup_out(Forward& f, Worker& w, const PlanPhase& phase) {
  const int64_t hidden = f.plan.header.hidden, width = f.pass.width;
  update(f, w, phase);
  for (int32_t i = 0; i < phase.num_matrices; ++i) {
    pack(f, w, phase, stream_of(f, w, i + 1, 0), hidden, 0, width);
    multiply(f, w, phase, i, [&](int64_t, int64_t first, int64_t count, const float* y) {
      for (int64_t t = 0; t < width; ++t) {
        std::copy_n(y + t * count, count, products_of(f, t) + i * hidden + first);
      }
    });
  }
}

void run_altup_mean(Forward& f, Worker& w, const PlanPhase&) {
  const PlanHeader& h = f.plan.header;
  const int64_t hidden = h.hidden;
  float* product = w.sum->as<float>();
  for (int64_t t = 0; t < f.pass.width; ++t) {
    float* x = w.x->as<float>() + t * hidden;
    const float* first = stream_of(f, w, 0, t);
    std::copy_n(first, hidden, x);
    for (int32_t i = 1; i < h.streams; ++i) {
      std::copy_n(products_of(f, t) + (i - 1) * hidden, hidden, product);
      make_as_long(first, hidden, product);
      add_to(x, product, hidden);
    }
    scale_by(x, 1.0f / static_cast<float>(h.streams), hidden);
  }
}

}  // namespace monolane

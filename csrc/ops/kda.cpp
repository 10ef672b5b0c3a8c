// What a worker does where a layer has Kimi's delta rule (ops/kda/spec.py) in place of attention.
// Its products are shared out by rows, its steps by heads: a part of what a sequence keeps is a
// head's state. Such models have one lane, hence one group.
#include <cmath>
#include <cstring>

#include "kernels/delta_step.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/recurrent.h"
#include "ops/stream.h"

namespace monolane {
namespace {

// A row of kMixed: q, k and v of all heads, what a and z are made of, b of all heads. A row of
// kLatents: a, then z of all heads.
struct KdaRow {
  explicit KdaRow(const PlanKda& k)
      : heads(int64_t{k.heads} * k.width),
        downs(3 * heads),
        betas(downs + 2 * int64_t{k.width}),
        columns(betas + k.heads) {}

  int64_t heads;         // numbers of all q, as many of all k and all v
  int64_t downs, betas;  // where they begin
  int64_t columns;
};

// Puts what a head's step takes of a row of the pass into out: q, k, v, a, b.
void read_inputs(const Forward& f, const PlanKda& kda, int64_t head, int64_t row, float* out) {
  const KdaRow mixed(kda);
  const int64_t width = kda.width, first = head * width;
  const float* x = f.buffer(PlanBuffer::kMixed) + row * mixed.columns;
  for (int64_t i = 0; i < 3; ++i) {
    std::memcpy(out + i * width, x + i * mixed.heads + first, floats(width));
  }
  const float* a = f.buffer(PlanBuffer::kLatents) + row * 2 * mixed.heads + first;
  std::memcpy(out + 3 * width, a, floats(width));
  out[4 * width] = x[mixed.betas + head];
}

// The sums over tokens of a head's channels, [3 * width], from the inputs of so many tokens.
void convolve(const Forward& f, const PlanPhase& phase, int64_t head, const float* inputs,
              int64_t stride, float* channels) {
  const PlanKda& k = f.module(phase).kda;
  const int64_t width = k.width, kernel = k.kernel;
  const WeightRole roles[] = {WeightRole::kKdaQConv, WeightRole::kKdaKConv, WeightRole::kKdaVConv};
  for (int64_t i = 0; i < 3; ++i) {
    const float* taps = f.weights.of(phase.layer).vector(roles[i]) + head * width * kernel;
    const float* x = inputs + i * width;
    for (int64_t c = 0; c < width; ++c) {
      float sum = 0.0f;
      for (int64_t t = 0; t < kernel; ++t) sum += x[t * stride + c] * taps[c * kernel + t];
      channels[i * width + c] = sum;
    }
  }
  f.kernels.sigmoid_times(channels, channels, 3 * width, channels);  // silu
}

struct KdaRoom {
  float *channels, *keep, *said;  // [3 * width], [width], [width]
};

void take_step(const Forward& f, const PlanPhase& phase, int64_t head, const Step& step,
               const KdaRoom& room) {
  const PlanModule& module = f.module(phase);
  const KdaRow mixed(module.kda);
  const int64_t width = module.kda.width, inputs = module.state.inputs;
  const WeightsByRole& layer = f.weights.of(phase.layer);
  convolve(f, phase, head, step.inputs, inputs, room.channels);
  float *q = room.channels, *k = q + width;
  to_length(q, width, 1.0f / std::sqrt(static_cast<float>(width)));
  to_length(k, width, 1.0f);
  const float* a = step.inputs + module.state.before * inputs + 3 * width;
  const float* steps = layer.vector(WeightRole::kKdaStep) + head * width;
  const float rate = std::exp(layer.vector(WeightRole::kKdaDecay)[head]);
  for (int64_t i = 0; i < width; ++i) room.keep[i] = std::exp(-rate * softplus(a[i] + steps[i]));
  delta_step(step.state, width, width, room.keep, 1, sigmoid(a[width]), q, k, k + width, room.said);
  if (step.row < 0) return;
  f.kernels.rms_norm(room.said, width, layer.vector(WeightRole::kKdaNorm), f.plan.header.norm_eps,
                     width, 1, room.said, width);
  const float* z = f.buffer(PlanBuffer::kLatents) + (2 * step.row + 1) * mixed.heads + head * width;
  f.kernels.sigmoid_times(z, room.said, width,
                          f.buffer(PlanBuffer::kHeads) + step.row * mixed.heads + head * width);
}

}  // namespace

void run_kda_in(Forward& f, Worker& w, const PlanPhase& phase) {
  update(f, w, phase);
  read_stream(f, w, phase);
  store_side_by_side(f, w, phase, f.buffer(PlanBuffer::kMixed),
                     KdaRow(f.module(phase).kda).columns);
}

// Two products, each of its own columns of kMixed.
void run_kda_up(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanKda& kda = f.module(phase).kda;
  const KdaRow mixed(kda);
  const int64_t tokens = f.pass.width, width = kda.width;
  float* x = w.normed->as<float>();
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t t = 0; t < tokens; ++t) {
      const float* from = f.buffer(PlanBuffer::kMixed) + t * mixed.columns + mixed.downs;
      std::memcpy(x + t * width, from + i * width, floats(width));
    }
    const Activation kind = f.activation_of(rows(f, w, phase, i));
    f.kernels.pack(kind, x, width, tokens, w.packed_lane(kind, 0, tokens));
    float* out = f.buffer(PlanBuffer::kLatents) + i * mixed.heads;
    multiply(f, w, phase, i, [&](int64_t, int64_t first, int64_t count, float* y) {
      for (int64_t t = 0; t < tokens; ++t) {
        std::memcpy(out + t * 2 * mixed.heads + first, y + t * count, floats(count));
      }
    });
  }
}

void run_kda(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanModule& module = f.module(phase);
  const int64_t width = module.kda.width;
  Scratch scratch(w);
  const StepRoom steps = step_room(module.state, scratch);
  const KdaRoom room{scratch.take(3 * width), scratch.take(width), scratch.take(width)};
  take_steps(
      f, w, phase, steps,
      [&](int64_t head, int64_t row, float* out) { read_inputs(f, module.kda, head, row, out); },
      [&](int64_t head, const Step& step) { take_step(f, phase, head, step, room); });
}

void run_kda_out(Forward& f, Worker& w, const PlanPhase& phase) {
  pack(f, w, phase, f.buffer(PlanBuffer::kHeads), phase.matrices[0].columns, 0, f.pass.width);
  offer_products(f, w, phase, nullptr);
}

}  // namespace monolane

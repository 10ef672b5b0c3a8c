// What a worker does where a layer has a gated delta rule (ops/delta/spec.py) in place of
// attention. Its products are shared out by rows, its steps by key heads: a part of what a sequence
// keeps is the states of a key head's value heads. Such models have one lane, hence one group.
#include <cmath>
#include <cstring>

#include "kernels/delta_step.h"
#include "kernels/elementwise.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/recurrent.h"
#include "ops/stream.h"

namespace monolane {
namespace {

// Of one key head. Inputs of its steps: query, key and values, which are summed over tokens, then
// of each value head b, then a.
struct DeltaSizes {
  explicit DeltaSizes(const PlanDelta& d)
      : values(d.value_heads / d.key_heads),
        key(d.key),
        value(d.value),
        channels(2 * key + values * value) {}

  int64_t values;      // value heads
  int64_t key, value;  // widths of a query and a key, and of a value
  int64_t channels;    // numbers that are summed over tokens
};

// Where a value head, the i-th of a key head's, is among all.
int64_t place_of(const PlanDelta& d, int64_t head, int64_t i) {
  return d.tiled != 0 ? i * d.key_heads + head : head * (d.value_heads / d.key_heads) + i;
}

// A row of kMixed: of all key heads q, of all k, then of all value heads v and z, then the gates.
struct MixedRow {
  explicit MixedRow(const PlanDelta& d)
      : keys(int64_t{d.key_heads} * d.key),
        values(int64_t{d.value_heads} * d.value),
        z(2 * keys + values),
        gates(z + values),
        columns(gates + 2 * int64_t{d.value_heads}) {}

  int64_t keys, values;  // numbers of all q, or all k; of all v, or all z
  int64_t z, gates;      // where they begin
  int64_t columns;
};

constexpr float kLengthEps = 1e-6f;  // of a query's and a key's length, squared

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

void to_length(float* x, int64_t count, float length) {
  scale_by(x, length / std::sqrt(dot(x, x, count) + kLengthEps), count);
}

// Puts what a key head's step takes of a row of the pass into out [channels, then gates].
void read_inputs(const Forward& f, const PlanDelta& delta, int64_t head, int64_t row, float* out) {
  const DeltaSizes d(delta);
  const MixedRow mixed(delta);
  const float* x = f.buffer(PlanBuffer::kMixed) + row * mixed.columns;
  std::memcpy(out, x + head * d.key, floats(d.key));
  std::memcpy(out + d.key, x + mixed.keys + head * d.key, floats(d.key));
  for (int64_t i = 0; i < d.values; ++i) {
    std::memcpy(out + 2 * d.key + i * d.value,
                x + 2 * mixed.keys + place_of(delta, head, i) * d.value, floats(d.value));
  }
  std::memcpy(out + d.channels, x + mixed.gates + head * 2 * d.values, floats(2 * d.values));
}

// Norms what the state of a value head, one of all, says to a row of the pass, and multiplies it by
// silu(z).
void offer_head(const Forward& f, const PlanPhase& phase, int64_t head, int64_t row, float* said) {
  const PlanDelta& d = f.module(phase).delta;
  const MixedRow mixed(d);
  const float* z = f.buffer(PlanBuffer::kMixed) + row * mixed.columns + mixed.z + head * d.value;
  f.kernels.rms_norm(said, d.value, f.weights.of(phase.layer).vector(WeightRole::kDeltaNorm),
                     f.plan.header.norm_eps, d.value, 1, said, d.value);
  f.kernels.silu_times(z, said, d.value,
                       f.buffer(PlanBuffer::kHeads) + row * mixed.values + head * d.value);
}

// The step of a key head's value heads; `channels` and `said` [d_v] are scratch.
void take_step(const Forward& f, const PlanPhase& phase, int64_t head, const Step& step,
               float* channels, float* said) {
  const PlanModule& module = f.module(phase);
  const DeltaSizes d(module.delta);
  const int64_t inputs = module.state.inputs, before = module.state.before;
  const WeightsByRole& layer = f.weights.of(phase.layer);
  sum_over_tokens(step.inputs, inputs, layer.vector(WeightRole::kDeltaConv) + head * d.channels,
                  module.delta.key_heads * d.channels, before + 1, d.channels, channels);
  f.kernels.sigmoid_times(channels, channels, d.channels, channels);  // silu
  const float *q = channels, *k = q + d.key, *v = k + d.key;
  to_length(channels, d.key, 1.0f / std::sqrt(static_cast<float>(d.key)));
  to_length(channels + d.key, d.key, 1.0f);
  const float* gates = step.inputs + before * inputs + d.channels;  // b, then a
  for (int64_t i = 0; i < d.values; ++i) {
    const int64_t value = place_of(module.delta, head, i);
    const float rate = softplus(gates[d.values + i] + layer.vector(WeightRole::kDeltaStep)[value]);
    const float keep = std::exp(-std::exp(layer.vector(WeightRole::kDeltaDecay)[value]) * rate);
    delta_step(step.state + i * d.key * d.value, d.key, d.value, keep, sigmoid(gates[i]), q, k,
               v + i * d.value, said);
    if (step.row >= 0) offer_head(f, phase, value, step.row, said);
  }
}

}  // namespace

void run_delta_in(Forward& f, Worker& w, const PlanPhase& phase) {
  update(f, w, phase);
  read_stream(f, w, phase);
  store_side_by_side(f, w, phase, f.buffer(PlanBuffer::kMixed),
                     MixedRow(f.module(phase).delta).columns);
}

void run_delta(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanModule& module = f.module(phase);
  Scratch scratch(w);
  const StepRoom room = step_room(module.state, scratch);
  float* channels = scratch.take(DeltaSizes(module.delta).channels);
  float* said = scratch.take(module.delta.value);
  take_steps(
      f, w, phase, room,
      [&](int64_t head, int64_t row, float* out) { read_inputs(f, module.delta, head, row, out); },
      [&](int64_t head, const Step& step) { take_step(f, phase, head, step, channels, said); });
}

void run_delta_out(Forward& f, Worker& w, const PlanPhase& phase) {
  pack(f, w, phase, f.buffer(PlanBuffer::kHeads), phase.matrices[0].columns, 0, f.pass.width);
  offer_products(f, w, phase, nullptr);
}

}  // namespace monolane

// What a worker does where a layer has a gated delta rule (model/_delta.py) in place of attention.
// Its products are shared out by rows; who has a key head takes all steps of its value heads, so
// nobody else touches their states. Such models have one lane, hence one group.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/delta_step.h"
#include "kernels/elementwise.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/stream.h"

namespace monolane {
namespace {

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

// log(1 + e^x), by the branch that cannot overflow.
float softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x))); }

void to_length(float* x, int64_t count, float length) {
  scale_by(x, length / std::sqrt(dot(x, x, count) + kLengthEps), count);
}

// Returns the inputs of a key head's channels and gates: of the tokens that the first one's sums
// need, of those whose steps were put off, and of the pass's, [..][columns]. Keeps what the next
// pass needs of them.
const float* gather_inputs(Forward& f, Worker& w, const PlanPhase& phase, int64_t head,
                           const Run& run) {
  const DeltaSizes& d = f.states.sizes(phase.layer);
  float* kept = f.states.inputs(run.slot, phase.layer, head);
  if (run.settled == 0) std::fill_n(kept, d.before * d.columns, 0.0f);
  float* inputs = w.inputs->as<float>();
  const int64_t earlier = d.before + run.position - run.settled;
  std::memcpy(inputs, kept, floats(earlier * d.columns));
  const MixedRow row(f.module(phase).delta);
  const int64_t keys = row.keys, values = d.values * d.value;
  for (int64_t t = 0; t < run.rows; ++t) {
    const float* mixed = f.buffer(PlanBuffer::kMixed) + (run.first + t) * row.columns;
    float* out = inputs + (earlier + t) * d.columns;
    std::memcpy(out, mixed + head * d.key, floats(d.key));
    std::memcpy(out + d.key, mixed + keys + head * d.key, floats(d.key));
    std::memcpy(out + 2 * d.key, mixed + 2 * keys + head * values, floats(values));
    std::memcpy(out + d.channels, mixed + row.gates + head * 2 * d.values, floats(2 * d.values));
  }
  const int64_t settled = run.position - run.settled + run.certain;
  std::memcpy(kept, inputs + settled * d.columns,
              floats((d.before + run.rows - run.certain) * d.columns));
  return inputs;
}

// Norms what a value head's state says to a row of the pass, and multiplies it by silu(z).
void offer_head(Forward& f, const PlanPhase& phase, int64_t head, int64_t row, float* said) {
  const DeltaSizes& d = f.states.sizes(phase.layer);
  const MixedRow mixed(f.module(phase).delta);
  const float* z = f.buffer(PlanBuffer::kMixed) + row * mixed.columns + mixed.z + head * d.value;
  f.kernels.rms_norm(said, d.value, f.weights.of(phase.layer).vector(WeightRole::kDeltaNorm),
                     f.plan.header.norm_eps, d.value, 1, said, d.value);
  f.kernels.silu_times(z, said, d.value,
                       f.buffer(PlanBuffer::kHeads) + row * mixed.values + head * d.value);
}

// The steps of one key head's value heads, of a sequence: of the tokens whose steps were put off
// and turned out right, then of this pass's. What these make is left in `heads_`.
void take_steps(Forward& f, Worker& w, const PlanPhase& phase, int64_t head, const Run& run) {
  const DeltaSizes& d = f.states.sizes(phase.layer);
  const WeightsByRole& layer = f.weights.of(phase.layer);
  float* state = f.states.state(run.slot, phase.layer, head);
  const int64_t put_off = run.position - run.settled;
  const float* inputs = gather_inputs(f, w, phase, head, run);
  if (run.settled == 0) std::fill_n(state, d.state, 0.0f);
  float* channels = w.channels->as<float>();
  const float *q = channels, *k = q + d.key, *v = k + d.key;
  const float query_length = 1.0f / std::sqrt(static_cast<float>(d.key));
  const int64_t taps = f.module(phase).delta.key_heads * d.channels;
  for (int64_t t = 0; t < put_off + run.rows; ++t, inputs += d.columns) {
    if (t == put_off + run.certain) {  // what follows may be taken back
      std::memcpy(w.tried->as<float>(), state, floats(d.state));
      state = w.tried->as<float>();
    }
    sum_over_tokens(inputs, d.columns, layer.vector(WeightRole::kDeltaConv) + head * d.channels,
                    taps, d.before + 1, d.channels, channels);
    f.kernels.sigmoid_times(channels, channels, d.channels, channels);  // silu
    to_length(channels, d.key, query_length);
    to_length(channels + d.key, d.key, 1.0f);
    const float* gates = inputs + d.before * d.columns + d.channels;  // b, then a
    for (int64_t i = 0; i < d.values; ++i) {
      const int64_t value = head * d.values + i;
      const float rate =
          softplus(gates[d.values + i] + layer.vector(WeightRole::kDeltaStep)[value]);
      const float keep = std::exp(-std::exp(layer.vector(WeightRole::kDeltaDecay)[value]) * rate);
      float* said = w.partial->as<float>();
      delta_step(state + i * d.key * d.value, d.key, d.value, keep, sigmoid(gates[i]), q, k,
                 v + i * d.value, said);
      if (t >= put_off) offer_head(f, phase, value, run.first + t - put_off, said);
    }
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
  const PlanShare own = share(f, w, phase.units);
  for (int64_t head = own.begin; head < own.end; ++head) {
    for (int32_t i = 0; i < f.pass.runs; ++i) take_steps(f, w, phase, head, f.pass.run[i]);
  }
}

void run_delta_out(Forward& f, Worker& w, const PlanPhase& phase) {
  pack(f, w, phase, f.buffer(PlanBuffer::kHeads), phase.matrices[0].columns, 0, f.pass.width);
  offer_products(f, w, phase, nullptr);
}

}  // namespace monolane

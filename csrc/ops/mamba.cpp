// What a worker does where a layer has Mamba-2 (ops/mamba/spec.py). Its products are shared out by
// rows, its steps by a few heads of a group: a part of what a sequence keeps is their states, and
// the last inputs of their channels, with those that the group shares. Such models have one lane,
// hence one group.
#include <cmath>
#include <cstring>

#include "kernels/delta_step.h"
#include "kernels/elementwise.h"
#include "kernels/mamba_step.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/recurrent.h"
#include "ops/stream.h"

namespace monolane {
namespace {

// Where what is made for a token lies: of all heads z and u, of all groups b and c, of heads t; and
// of a part's step the inputs: u of its heads, b and c of their group, t of the heads.
struct MambaSizes {
  explicit MambaSizes(const PlanMamba& m)
      : columns(int64_t{m.heads} * m.head),
        shared(int64_t{m.groups} * m.state),
        all_channels(columns + 2 * shared),
        mixed(columns + all_channels + m.heads),
        width(int64_t{m.together} * m.head),
        channels(width + 2 * int64_t{m.state}) {}

  int64_t columns;       // numbers of all heads
  int64_t shared;        // numbers of all b, or of all c
  int64_t all_channels;  // numbers of a token that are summed over tokens
  int64_t mixed;         // numbers of a token
  int64_t width;         // numbers of a part's heads
  int64_t channels;      // numbers of a part that are summed over tokens
};

// The group of a part's heads.
int64_t group_of(const PlanMamba& m, int64_t part) {
  return part * m.together / (m.heads / m.groups);
}

void copy_scaled(const float* x, float scale, int64_t count, float* out) {
  std::memcpy(out, x, floats(count));
  if (scale != 1.0f) scale_by(out, scale, count);
}

// Puts what a part's step takes of a row of the pass into out [channels, then t of each head].
void read_part(const Forward& f, const PlanMamba& m, int64_t part, int64_t row, float* out) {
  const MambaSizes n(m);
  const float* u = f.buffer(PlanBuffer::kMixed) + row * n.mixed + n.columns;
  const float* b = u + n.columns + group_of(m, part) * m.state;
  const float* t = u + n.all_channels + part * m.together;
  copy_scaled(u + part * n.width, m.input_scale, n.width, out);
  copy_scaled(b, m.write_scale, m.state, out + n.width);
  copy_scaled(b + n.shared, m.read_scale, m.state, out + n.width + m.state);
  copy_scaled(t, m.step_scale, m.together, out + n.channels);
}

// Sums a part's channels over the last tokens: out [channels]. Weights and biases have all u, then
// all b, then all c.
void sum_channels(const Forward& f, const PlanPhase& phase, int64_t part, const float* inputs,
                  float* out) {
  const PlanModule& module = f.module(phase);
  const PlanMamba& m = module.mamba;
  const MambaSizes n(m);
  const float* taps = f.weights.of(phase.layer).vector(WeightRole::kMambaConv);
  const float* bias = f.weights.of(phase.layer).vector(WeightRole::kMambaConvBias);
  const auto sum = [&](int64_t at, int64_t place, int64_t count) {
    sum_over_tokens(inputs + at, module.state.inputs, taps + place, n.all_channels, m.kernel, count,
                    out + at);
    if (bias != nullptr) add_to(out + at, bias + place, count);
  };
  const int64_t b = n.columns + group_of(m, part) * m.state;
  sum(0, part * n.width, n.width);
  sum(n.width, b, m.state);
  sum(n.width + m.state, b + n.shared, m.state);
  f.kernels.sigmoid_times(out, out, n.channels, out);  // silu
}

// The step of a part's heads; `channels` and `head` [2][p] are scratch.
void step_part(const Forward& f, const PlanPhase& phase, int64_t part, const Step& step,
               float* channels, float* head) {
  const PlanModule& module = f.module(phase);
  const PlanMamba& m = module.mamba;
  const MambaSizes n(m);
  const WeightsByRole& layer = f.weights.of(phase.layer);
  sum_channels(f, phase, part, step.inputs, channels);
  const float *b = channels + n.width, *c = b + m.state;
  const float* t = step.inputs + module.state.before * module.state.inputs + n.channels;
  float *other = head, *said = head + m.head;  // what is added, then z
  for (int64_t i = 0; i < m.together; ++i) {
    const int64_t place = part * m.together + i;
    const float* u = channels + i * m.head;
    const float rate = softplus(t[i] + layer.vector(WeightRole::kMambaStep)[place]);
    const float keep = std::exp(-std::exp(layer.vector(WeightRole::kMambaDecay)[place]) * rate);
    copy_scaled(u, rate, m.head, other);
    mamba_step(step.state + i * m.head * m.state, m.state, m.head, keep, b, c, other, said);
    if (step.row < 0) continue;
    add_scaled_to(said, u, layer.vector(WeightRole::kMambaSkip)[place], m.head);
    const float* z = f.buffer(PlanBuffer::kMixed) + step.row * n.mixed + place * m.head;
    copy_scaled(z, m.gate_scale, m.head, other);
    f.kernels.silu_times(other, said, m.head,
                         f.buffer(PlanBuffer::kHeads) + step.row * n.columns + place * m.head);
  }
}

}  // namespace

void run_mamba_in(Forward& f, Worker& w, const PlanPhase& phase) {
  update(f, w, phase);
  read_stream(f, w, phase);
  store_side_by_side(f, w, phase, f.buffer(PlanBuffer::kMixed),
                     MambaSizes(f.module(phase).mamba).mixed);
}

void run_mamba(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanModule& module = f.module(phase);
  Scratch scratch(w);
  const StepRoom room = step_room(module.state, scratch);
  float* channels = scratch.take(MambaSizes(module.mamba).channels);
  float* head = scratch.take(2 * int64_t{module.mamba.head});
  take_steps(
      f, w, phase, room,
      [&](int64_t part, int64_t row, float* out) { read_part(f, module.mamba, part, row, out); },
      [&](int64_t part, const Step& step) { step_part(f, phase, part, step, channels, head); });
}

// The norm goes over all heads of a group, so that each worker that reads them does it for itself.
void run_mamba_out(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanMamba& m = f.module(phase).mamba;
  const int64_t width = f.pass.width, columns = phase.matrices[0].columns;
  const float* heads = f.buffer(PlanBuffer::kHeads);
  if (m.normed != 0) {
    const float* scale = f.weights.of(phase.layer).vector(WeightRole::kMambaNorm);
    const int64_t each = columns / m.groups;
    float* normed = w.normed->as<float>();
    for (int64_t first = 0; first < columns; first += each) {
      f.kernels.rms_norm(heads + first, columns, scale + first, f.plan.header.norm_eps, each, width,
                         normed + first, columns);
    }
    heads = normed;
  }
  pack(f, w, phase, heads, columns, 0, width);
  offer_products(f, w, phase, nullptr);
}

}  // namespace monolane

// What a worker does where a layer has a gated short convolution (ops/conv/spec.py). Its products
// are shared out by rows, its channels in parts: a part of what a sequence keeps is the last inputs
// of its channels. Such models have one lane, hence one group.
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/recurrent.h"
#include "ops/stream.h"

namespace monolane {

void run_conv_in(Forward& f, Worker& w, const PlanPhase& phase) {
  update(f, w, phase);
  read_stream(f, w, phase);
  store_side_by_side(f, w, phase, f.buffer(PlanBuffer::kMixed),
                     3 * int64_t{f.module(phase).conv.channels});
}

void run_conv(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanModule& module = f.module(phase);
  const int64_t channels = module.conv.channels, each = module.state.inputs;
  const int64_t taps = module.conv.taps;
  const float* weights = f.weights.of(phase.layer).vector(WeightRole::kConvTaps);
  const float* mixed = f.buffer(PlanBuffer::kMixed);
  float* heads = f.buffer(PlanBuffer::kHeads);
  Scratch scratch(w);
  const StepRoom room = step_room(module.state, scratch);
  const auto read = [&](int64_t part, int64_t row, float* out) {
    const float* b = mixed + row * 3 * channels + part * each;
    const float* u = b + 2 * channels;
    for (int64_t i = 0; i < each; ++i) out[i] = b[i] * u[i];
  };
  const auto take = [&](int64_t part, const Step& step) {
    if (step.row < 0) return;  // inputs are all that it leaves
    const float* c = mixed + step.row * 3 * channels + channels + part * each;
    const float* own = weights + part * each * taps;
    float* out = heads + step.row * channels + part * each;
    for (int64_t i = 0; i < each; ++i) {
      float sum = 0.0f;
      for (int64_t t = 0; t < taps; ++t) sum += step.inputs[t * each + i] * own[i * taps + t];
      out[i] = c[i] * sum;
    }
  };
  take_steps(f, w, phase, room, read, take);
}

void run_conv_out(Forward& f, Worker& w, const PlanPhase& phase) {
  pack(f, w, phase, f.buffer(PlanBuffer::kHeads), phase.matrices[0].columns, 0, f.pass.width);
  offer_products(f, w, phase, nullptr);
}

}  // namespace monolane

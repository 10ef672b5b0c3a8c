// How modules join the streams: see stream.h.
#include "ops/stream.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"

namespace monolane {

namespace {

constexpr int64_t kTogether = 8;  // lanes' outputs that are added at a time

// What a lane's stream gains of a module's outputs for a token, reduced and normed: gain [D].
void reduce(Forward& f, const PlanUpdate& update, const PlanModule& module, int64_t own_lane,
            int64_t t, float* gain) {
  const PlanHeader& h = f.plan.header;
  const int64_t hidden = h.hidden;
  const float* own = output(f, module.output, update.own_slot, own_lane) + t * hidden;
  std::fill_n(gain, hidden, 0.0f);
  if (update.delay == kNever) {
    add_scaled_to(gain, own, std::sqrt(static_cast<float>(h.lanes)), hidden);
  } else {
    const float* outputs[kTogether];
    int64_t count = 0;
    const auto add = [&](const float* output) {
      outputs[count++] = output;
      if (count < kTogether) return;
      add_all_to(gain, outputs, count, hidden);
      count = 0;
    };
    for (int64_t j = 0; j < h.lanes; ++j) {
      if (j == own_lane && update.delay > 0) continue;
      add(output(f, module.output, update.other_slot, j) + t * hidden);
    }
    if (update.delay > 0) add(own);
    add_all_to(gain, outputs, count, hidden);
  }
}

// Norms what a lane's stream gains, if there is such a norm.
void norm(Forward& f, const PlanModule& module, WeightRole role, int64_t own_lane, float* gain) {
  if (role == WeightRole::kNone) return;
  const PlanHeader& h = f.plan.header;
  const float* scale = f.weights.of(module.layer).vector(role);
  if (h.norm_per_lane) scale += own_lane * h.hidden;
  norm_stream(f, gain, scale, 1, gain);
}

// x += reduce(outputs of a module) of one token and lane. `held` [D] keeps what joins the stream
// with the next module's.
void join(Forward& f, Worker& w, const PlanUpdate& update, int64_t own_lane, int64_t t, float* x) {
  const int64_t hidden = f.plan.header.hidden;
  const PlanModule& module = f.plan.modules[update.module];
  float *gain = w.sum->as<float>(), *held = gain + hidden;
  if (module.replaces) std::fill_n(x, hidden, 0.0f);
  const bool as_it_is = module.post_norm == WeightRole::kNone && !module.held &&
                        module.joint_norm == WeightRole::kNone && !module.aside;
  if (update.delay == kNever && as_it_is) {
    const float alone = std::sqrt(static_cast<float>(f.plan.header.lanes));
    const float* own = output(f, module.output, update.own_slot, own_lane) + t * hidden;
    add_scaled_to(x, own, alone * module.scale, hidden);
  } else {
    reduce(f, update, module, own_lane, t, gain);
    norm(f, module, module.post_norm, own_lane, gain);
    if (module.held) {
      std::copy_n(gain, hidden, held);
      return;
    }
    if (module.aside) {
      for (int32_t i = 1; i < f.plan.header.streams; ++i) {
        add_scaled_to(stream_of(f, w, i, t), gain, module.scale, hidden);
      }
      return;
    }
    if (module.joint_norm != WeightRole::kNone) {
      add_to(gain, held, hidden);
      norm(f, module, module.joint_norm, own_lane, gain);
    }
    module.scale == 1.0f ? add_to(x, gain, hidden) : add_scaled_to(x, gain, module.scale, hidden);
  }
  if (module.stream_factor != 1.0f) scale_by(x, module.stream_factor, hidden);
  if (module.stream_scale != WeightRole::kNone) {
    scale_by(x, *f.weights.of(module.layer).vector(module.stream_scale), hidden);
  }
}

}  // namespace

void norm_stream(const Forward& f, const float* x, const float* scale, int64_t width, float* out) {
  const PlanHeader& h = f.plan.header;
  const int64_t hidden = h.hidden;
  if (h.norm_centred) {
    for (int64_t t = 0; t < width; ++t) centre(x + t * hidden, hidden, out + t * hidden);
    x = out;
  }
  f.kernels.rms_norm(x, hidden, scale, h.norm_eps, hidden, width, out, hidden);
}

void update(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  // Token by token, so that what all lanes said of it comes from far once for the group's lanes.
  for (int64_t t = 0; t < f.pass.width; ++t) {
    for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
      float* x = w.x->as<float>() + (lane * f.pass.width + t) * h.hidden;
      for (int32_t i = 0; i < phase.num_updates; ++i) {
        join(f, w, phase.updates[i], w.first_lane + lane, t, x);
      }
    }
  }
}

void read_stream(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const WeightRole norm = f.module(phase).norm;
  const float* scale = norm == WeightRole::kNone ? nullptr : f.weights.of(phase.layer).vector(norm);
  const int64_t width = f.pass.width, hidden = h.hidden;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    const float* x = w.x->as<float>() + lane * width * hidden;
    if (scale != nullptr) {
      const float* lane_scale = scale + (h.norm_per_lane ? (w.first_lane + lane) * hidden : 0);
      float* normed = w.normed->as<float>();
      norm_stream(f, x, lane_scale, width, normed);
      x = normed;
    }
    pack(f, w, phase, x, hidden, lane, width);
  }
}

void offer_products(Forward& f, Worker& w, const PlanPhase& phase, const float* bias) {
  const PlanBuffer module = f.module(phase).output;
  const int64_t width = f.pass.width, hidden = f.plan.header.hidden;
  const auto place = [&](int64_t lane, int64_t first, int64_t) {
    return Products{output(f, module, phase.write_slot, w.first_lane + lane) + first, hidden};
  };
  multiply(f, w, phase, 0, place, [&](int64_t, int64_t first, int64_t count, float* out) {
    if (bias != nullptr) {
      for (int64_t t = 0; t < width; ++t) add_to(out + t * hidden, bias + first, count);
    }
    f.exchange.wrote(w.index, out, count, width, hidden);
  });
}

float* stream_of(const Forward& f, const Worker& w, int64_t stream, int64_t t) {
  return w.streams->as<float>() + (stream * f.pass.width + t) * f.plan.header.hidden;
}

float* output(const Forward& f, PlanBuffer module, int64_t slot, int64_t lane) {
  const PlanHeader& h = f.plan.header;
  float* ring = f.exchange.output(module);
  return ring + (slot * h.lanes + lane) * h.max_width * h.hidden;
}

}  // namespace monolane

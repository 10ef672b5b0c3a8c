// How modules join the streams: see stream.h.
#include "ops/stream.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"

namespace monolane {

namespace {

void join(Forward& f, Worker& w, const PlanUpdate& update) {
  const PlanHeader& h = f.plan.header;
  const int64_t hidden = h.hidden;
  const float alone = std::sqrt(static_cast<float>(h.lanes));  // gain of a lane that never reduces
  const PlanModule& module = f.plan.modules[update.module];
  const float* scale = nullptr;  // of the norm of what is added
  const float gain = module.scale;
  if (module.post_norm != WeightRole::kNone) {
    scale = f.weights.of(module.layer).vector(module.post_norm);
  }
  const float* behind = nullptr;  // what the stream is multiplied by then
  if (module.stream_scale != WeightRole::kNone) {
    behind = f.weights.of(module.layer).vector(module.stream_scale);
  }
  // Token by token, so that what all lanes said of it comes from far once for the group's lanes.
  for (int64_t t = 0; t < f.pass.width; ++t) {
    for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
      float* x = w.x->as<float>() + (lane * f.pass.width + t) * hidden;
      const int64_t own_lane = w.first_lane + lane;
      const float* own = output(f, module.output, update.own_slot, own_lane) + t * hidden;
      if (update.delay == kNever && scale == nullptr) {
        add_scaled_to(x, own, alone * gain, hidden);
        if (behind != nullptr) scale_by(x, *behind, hidden);
        continue;
      }
      float* sum = w.sum->as<float>();
      std::fill_n(sum, hidden, 0.0f);
      if (update.delay == kNever) {
        add_scaled_to(sum, own, alone, hidden);
      } else {
        for (int64_t j = 0; j < h.lanes; ++j) {
          if (j == own_lane && update.delay > 0) continue;
          add_to(sum, output(f, module.output, update.other_slot, j) + t * hidden, hidden);
        }
        if (update.delay > 0) add_to(sum, own, hidden);
      }
      if (scale != nullptr) {
        const float* lane_scale = h.norm_per_lane ? scale + own_lane * hidden : scale;
        f.kernels.rms_norm(sum, hidden, lane_scale, h.norm_eps, hidden, 1, sum, hidden);
      }
      gain == 1.0f ? add_to(x, sum, hidden) : add_scaled_to(x, sum, gain, hidden);
      if (behind != nullptr) scale_by(x, *behind, hidden);
    }
  }
}

}  // namespace

void update(Forward& f, Worker& w, const PlanPhase& phase) {
  for (int32_t i = 0; i < phase.num_updates; ++i) join(f, w, phase.updates[i]);
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
      f.kernels.rms_norm(x, hidden, lane_scale, h.norm_eps, hidden, width, normed, hidden);
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

float* output(const Forward& f, PlanBuffer module, int64_t slot, int64_t lane) {
  const PlanHeader& h = f.plan.header;
  float* ring = f.exchange.output(module);
  return ring + (slot * h.lanes + lane) * h.max_width * h.hidden;
}

}  // namespace monolane

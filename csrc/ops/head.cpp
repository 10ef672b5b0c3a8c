// kHead: the logits; before it kGather, where one head reads the streams of all lanes.
#include "ops/head.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/elementwise.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/stream.h"

namespace monolane {
namespace {

// Offers what each lane's own head reads, for `hidden`. Only the leader reads it, when it chooses
// tokens: it waits for this phase, for the logits' sake.
void offer_normed(Forward& f, const Worker& w) {
  const PlanHeader& h = f.plan.header;
  const int64_t width = f.pass.width, hidden = h.hidden;
  if (w.index != w.first_worker) return;  // all workers of a group have its streams whole
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    const int64_t owner = w.first_lane + lane, scale = h.final_norm_per_lane ? owner * hidden : 0;
    float* out = f.exchange.stream() + owner * h.max_width * hidden;
    norm_stream(f, w.x->as<float>() + lane * width * hidden,
                f.weights.outer.vector(WeightRole::kFinalNorm) + scale, width, out);
    f.exchange.wrote(w.index, out, hidden, width, hidden, true);
  }
}

// What the model makes of logits before a token is chosen.
void cap_logits(const PlanHeader& h, float* logits, int64_t count) {
  if (h.logit_scale != 1.0f) scale_by(logits, h.logit_scale, count);
  if (h.logit_cap == 0.0f) return;
  for (int64_t i = 0; i < count; ++i) {
    logits[i] = h.logit_cap * std::tanh(logits[i] / h.logit_cap);
  }
}

// The input of a head that reads all lanes, from what `gather` offered: [D] or [L*D].
void join_lanes(Forward& f, int64_t t, float* out) {
  const PlanHeader& h = f.plan.header;
  const int64_t hidden = h.hidden;
  const auto stream = [&](int64_t lane) {
    return f.exchange.stream() + (lane * h.max_width + t) * hidden;
  };
  if (h.head == PlanHead::kConcat) {
    for (int64_t lane = 0; lane < h.lanes; ++lane) {
      std::memcpy(out + lane * hidden, stream(lane), floats(hidden));
    }
    return;
  }
  merge_lanes(f, t, out);
}

}  // namespace

// Offers this worker's elements of its lanes' streams to a head that reads all lanes.
void run_gather(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  update(f, w, phase);
  const PlanShare units = share(f, w, phase.units);  // (lane of the group, column)
  const int64_t width = f.pass.width, hidden = h.hidden;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    const int64_t from = std::max<int64_t>(units.begin - lane * hidden, 0);
    const int64_t to = std::min<int64_t>(units.end - lane * hidden, hidden);
    if (from >= to) continue;
    const float* x = w.x->as<float>() + lane * width * hidden;
    if (h.head != PlanHead::kSum) {
      const int64_t scale = h.final_norm_per_lane ? (w.first_lane + lane) * hidden : 0;
      norm_stream(f, x, f.weights.outer.vector(WeightRole::kFinalNorm) + scale, width,
                  w.normed->as<float>());
      x = w.normed->as<float>();
    }
    float* stream = f.exchange.stream() + (w.first_lane + lane) * h.max_width * hidden + from;
    for (int64_t t = 0; t < width; ++t) {
      std::memcpy(stream + t * hidden, x + t * hidden + from, floats(to - from));
    }
    f.exchange.wrote(w.index, stream, to - from, width, hidden);
  }
}

void run_head(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const PlanMatrix& part = phase.matrices[0];
  const int64_t hidden = h.hidden, wanted = f.pass.wanted;
  const bool shared = f.plan.shared_head();
  float* logits = f.exchange.logits();
  if (!shared) update(f, w, phase);
  if (!shared && (f.pass.hidden || f.pass.offered)) offer_normed(f, w);
  if (wanted == 0) return;

  const PlanShare own = share(f, w, part.share);
  for (int64_t lane = 0; lane < (shared ? 1 : h.group_lanes); ++lane) {
    const int64_t begin = std::max<int64_t>(own.begin - lane * part.rows, 0);
    const int64_t end = std::min<int64_t>(own.end - lane * part.rows, part.rows);
    if (begin >= end) continue;
    float* normed = w.normed->as<float>();
    const int64_t owner = shared ? 0 : w.first_lane + lane;
    for (int64_t i = 0; i < wanted; ++i) {
      const int64_t t = f.pass.wanted_row[i];
      float* row = normed + i * part.columns;
      if (shared) {
        join_lanes(f, t, row);
        continue;
      }
      const int64_t scale = h.final_norm_per_lane ? owner * hidden : 0;
      norm_stream(f, w.x->as<float>() + (lane * f.pass.width + t) * hidden,
                  f.weights.outer.vector(WeightRole::kFinalNorm) + scale, 1, row);
    }
    pack(f, w, phase, normed, part.columns, 0, wanted);
    const OwnRows& matrix = rows(f, w, phase, 0);
    const Activation kind = f.activation_of(matrix);
    const int64_t first = lane * part.rows + begin - own.begin;
    float* out = logits + owner * part.rows + begin;
    product(f, matrix, first, first + end - begin, kind, w.packed_lane(kind, 0, wanted), wanted,
            out, h.vocab);
    for (int64_t i = 0; i < wanted; ++i) cap_logits(h, out + i * h.vocab, end - begin);
    f.exchange.wrote(w.index, out, end - begin, wanted, h.vocab, true);
  }
}

void run_head_alone(const Forward& f, const Worker& w, const PlanPhase& phase, const float* normed,
                    int64_t count, float* logits) {
  const PlanHeader& h = f.plan.header;
  const OwnRows& matrix = rows(f, w, phase, 0);
  const PlanShare own = share(f, w, phase.matrices[0].share);
  const Activation kind = f.activation_of(matrix);
  const int64_t end = own.end - own.begin;
  for (int64_t first = 0; first < count && end > 0; first += h.max_width) {
    const int64_t some = std::min<int64_t>(count - first, h.max_width);
    void* packed = w.packed_lane(kind, 0, some);
    f.kernels.pack(kind, normed + first * h.hidden, h.hidden, some, packed);
    float* out = logits + first * h.vocab + own.begin;
    product(f, matrix, 0, end, kind, packed, some, out, h.vocab);
    for (int64_t i = 0; i < some; ++i) cap_logits(h, out + i * h.vocab, end);
  }
}

void merge_lanes(const Forward& f, int64_t t, float* out) {
  const PlanHeader& h = f.plan.header;
  const int64_t hidden = h.hidden;
  for (int64_t lane = 0; lane < h.lanes; ++lane) {
    const float* stream = f.exchange.stream() + (lane * h.max_width + t) * hidden;
    lane == 0 ? static_cast<void>(std::memcpy(out, stream, floats(hidden)))
              : add_to(out, stream, hidden);
  }
  if (h.head == PlanHead::kSum && f.plan.shared_head()) {
    norm_stream(f, out, f.weights.outer.vector(WeightRole::kFinalNorm), 1, out);
  } else if (h.lanes > 1) {
    scale_by(out, 1.0f / static_cast<float>(h.lanes), hidden);
  }
}

}  // namespace monolane

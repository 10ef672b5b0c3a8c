// kAttend and kOut: every query head over the cached keys, and what the module says.
#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/elementwise.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/stream.h"

namespace monolane {
namespace {

struct Tokens {  // of a pass
  int64_t begin, end;
};

// All query heads of one KV head, for tokens of one slot: the partial sums of every chunk of this
// split, merged in the order of the chunks. Which chunks a token has depends on its position alone.
void attend_group(Forward& f, Worker& w, const PlanPhase& phase, int64_t lane, int64_t kv_head,
                  int64_t split, Tokens tokens, bool more_heads) {
  const PlanHeader& h = f.plan.header;
  const PlanAttention& a = f.module(phase).attention;
  const int64_t heads = a.heads / h.lanes, group = a.heads / a.kv_heads, dim = a.head_dim;
  const int64_t cached_head = lane * (a.kv_heads / h.lanes) + kv_head;
  const int64_t layer = a.keys_of < 0 ? phase.layer : a.keys_of;  // whose keys and values
  const int64_t first = kv_head * group, stride = dim + 2, slot = f.pass.rows[tokens.begin].slot;
  float* sums = Scratch(w).take(a.at_once * group * stride);  // of a chunk
  const auto end = [&](int64_t t) { return int64_t{f.pass.rows[t].position} + 1; };
  const auto begin = [&](int64_t t) {
    if (a.window == 0) return int64_t{0};
    if (a.chunked) return (end(t) - 1) / a.window * a.window;
    return std::max<int64_t>(0, end(t) - a.window);
  };
  const auto out = [&](int64_t t) {
    return f.buffer(PlanBuffer::kAttention) +
           (((lane * a.splits + split) * h.max_width + t) * heads + first) * stride;
  };

  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    for (int64_t head = 0; head < group; ++head) {
      float* sum = out(t) + head * stride;
      std::fill_n(sum, dim, 0.0f);
      sum[dim] = -std::numeric_limits<float>::infinity();
      sum[dim + 1] = 0;
    }
  }
  const int64_t oldest = begin(tokens.begin) / kChunk, last = end(tokens.end - 1);
  int64_t chunk = oldest + (split - oldest % a.splits + a.splits) % a.splits;
  for (; chunk * kChunk < last; chunk += a.splits) {
    const auto from = [&](int64_t t) { return std::max(begin(t), chunk * kChunk); };
    const auto count = [&](int64_t t) { return std::min(end(t), (chunk + 1) * kChunk) - from(t); };
    const void* next = nullptr;  // what this worker reads next, where that is easily said
    if ((chunk + a.splits) * kChunk < last) {
      next = f.cache.key(slot, layer, cached_head, (chunk + a.splits) * kChunk);
    } else if (more_heads && a.splits == 1 && f.pass.width == 1) {
      next = f.cache.key(slot, layer, cached_head + 1, begin(tokens.begin));
    }
    for (int64_t t = tokens.begin; t < tokens.end;) {
      if (count(t) <= 0) {
        ++t;
        continue;
      }
      // Those that begin with the same key go together.
      int64_t counts[kMaxWidth], some = 0;
      const int64_t most = std::min<int64_t>(a.at_once, tokens.end - t);
      while (some < most && from(t + some) == from(t)) {
        counts[some] = count(t + some);
        ++some;
      }
      const float* q =
          f.buffer(PlanBuffer::kQuery) + ((lane * h.max_width + t) * heads + first) * dim;
      f.kernels.attend({q, some, group, heads * dim, counts, a.cap},
                       f.cache.key(slot, layer, cached_head, from(t)),
                       f.cache.value(slot, layer, cached_head, from(t)), f.cache.format(), dim, dim,
                       a.scale, t + some == tokens.end ? next : nullptr, w.scores->as<float>(),
                       sums);
      const float* added = sums;
      for (int64_t stop = t + some; t < stop; ++t) {
        float* sum = out(t);
        for (int64_t head = 0; head < group; ++head, sum += stride, added += stride) {
          const float top = std::max(sum[dim], added[dim]);
          const float keep = std::exp(sum[dim] - top), gain = std::exp(added[dim] - top);
          scale_by(sum, keep, dim);
          add_scaled_to(sum, added, gain, dim);
          sum[dim + 1] = sum[dim + 1] * keep + added[dim + 1] * gain;
          sum[dim] = top;
        }
      }
    }
  }
}

// Leaves the attention of a lane of the group, [T, H/L*h], in `normed`.
void merge_splits(Forward& f, Worker& w, const PlanPhase& phase, int64_t lane) {
  const PlanHeader& h = f.plan.header;
  const PlanAttention& a = f.module(phase).attention;
  const int64_t heads = a.heads / h.lanes, dim = a.head_dim;
  for (int64_t t = 0; t < f.pass.width; ++t) {
    for (int64_t head = 0; head < heads; ++head) {
      float* out = w.normed->as<float>() + (t * heads + head) * dim;
      merge_head(f, phase, w.first_lane + lane, head, t, dim, out);
    }
  }
}

}  // namespace

void run_attend(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const PlanAttention& a = f.module(phase).attention;
  const int64_t kv_heads = a.kv_heads / h.lanes;
  const PlanShare units = share(f, w, phase.units);
  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    const int64_t split = unit % a.splits;
    const int64_t kv_head = unit / a.splits % kv_heads;
    const int64_t lane = w.first_lane + unit / a.splits / kv_heads;
    for (int64_t t = 0, end; t < f.pass.width; t = end) {
      end = t + 1;
      while (end < f.pass.width && f.pass.rows[end].slot == f.pass.rows[t].slot) ++end;
      attend_group(f, w, phase, lane, kv_head, split, {t, end}, unit + 1 < units.end);
    }
  }
}

void merge_head(const Forward& f, const PlanPhase& phase, int64_t owner, int64_t head, int64_t t,
                int64_t columns, float* out) {
  const PlanHeader& h = f.plan.header;
  const PlanAttention& a = f.module(phase).attention;
  const int64_t heads = a.heads / h.lanes, dim = a.head_dim, stride = dim + 2;
  const auto part = [&](int64_t split) {
    return f.buffer(PlanBuffer::kAttention) +
           (((owner * a.splits + split) * h.max_width + t) * heads + head) * stride;
  };
  const float* sinks = f.weights.of(phase.layer).vector(WeightRole::kSinks);
  const float sink =
      sinks == nullptr ? -std::numeric_limits<float>::infinity() : sinks[owner * heads + head];
  float peak = sink;
  for (int64_t s = 0; s < a.splits; ++s) peak = std::max(peak, part(s)[dim]);
  std::fill_n(out, columns, 0.0f);
  float total = std::exp(sink - peak);
  for (int64_t s = 0; s < a.splits; ++s) {
    if (part(s)[dim + 1] == 0) continue;  // no keys: of short contexts most parts have none
    const float gain = std::exp(part(s)[dim] - peak);
    add_scaled_to(out, part(s), gain, columns);
    total += part(s)[dim + 1] * gain;
  }
  scale_by(out, 1.0f / total, columns);
}

void run_out(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const PlanAttention& a = f.module(phase).attention;
  const PlanMatrix& part = phase.matrices[0];
  const PlanShare rows = share(f, w, part.share);
  const int64_t width = f.pass.width;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    if (rows.begin >= (lane + 1) * part.rows || rows.end <= lane * part.rows) continue;
    const float* heads = f.buffer(PlanBuffer::kHeads);
    if (f.module(phase).latent.rank == 0) {
      merge_splits(f, w, phase, lane);
      if (a.gate) {
        float* merged = w.normed->as<float>();
        const float* gate =
            f.buffer(PlanBuffer::kQueryGate) + (w.first_lane + lane) * h.max_width * part.columns;
        f.kernels.sigmoid_times(gate, merged, width * part.columns, merged);
      }
      heads = w.normed->as<float>();
    }
    pack(f, w, phase, heads, part.columns, lane, width);
  }
  offer_products(f, w, phase, f.weights.of(phase.layer).vector(WeightRole::kOBias));
}

}  // namespace monolane

// What a worker does in a phase: what several kinds of phases share, kEmbed, and kAttend and kOut.
// Other kinds are in files of their own, phases_*.cpp; worker_loop.cpp tells who waits for whom.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/elementwise.h"
#include "ops/worker.h"

namespace monolane {

PlanShare Executor::share(const Worker& w, int32_t table) const {
  return plan_.share(table, w.index);
}

const Matrix& Executor::rows(const Worker& w, const PlanPhase& phase, int64_t index,
                             int64_t expert) const {
  return w.weights.of(index_of(phase), index, expert);
}

void Executor::run_embed(Worker& w, const PlanPhase&) {
  const PlanHeader& h = plan_.header;
  const int64_t pairs = h.rotary_dim / 2;
  float* x = w.x->as<float>();
  for (int64_t t = 0; t < pass_.width; ++t) {
    kernels_.widen(weights_.embedding, pass_.rows[t].token, x + t * h.hidden);
    if (h.embedding_scale != 1.0f) scale_by(x + t * h.hidden, h.embedding_scale, h.hidden);
    for (int64_t lane = 1; lane < h.group_lanes; ++lane) {
      std::memcpy(x + (lane * pass_.width + t) * h.hidden, x + t * h.hidden, floats(h.hidden));
    }
    for (int64_t rotary = 0; rotary < kPlanRotaries; ++rotary) {
      const float* frequencies = weights_.frequencies[rotary];
      if (frequencies == nullptr) continue;
      float* cosine = w.cosine->as<float>() + (rotary * h.max_width + t) * pairs;
      float* sine = w.sine->as<float>() + (rotary * h.max_width + t) * pairs;
      for (int64_t i = 0; i < pairs; ++i) {
        const float angle = static_cast<float>(pass_.rows[t].position) * frequencies[i];
        cosine[i] = h.amplitude[rotary] * std::cos(angle);
        sine[i] = h.amplitude[rotary] * std::sin(angle);
      }
    }
  }
}

// x_l += reduce(outputs of a module), or its norm; the rule is told in
// src/monolane/model/_reduce.py.
void Executor::update(Worker& w, const PlanPhase& phase) {
  if (phase.update == PlanBuffer::kNone) return;
  const PlanHeader& h = plan_.header;
  const int64_t hidden = h.hidden;
  const float alone = std::sqrt(static_cast<float>(h.lanes));  // gain of a lane that never reduces
  const float* scale = nullptr;                                // of the norm of what is added
  if (h.norm_after) {
    const LayerWeights& layer = weights_.layers[phase.update_layer];
    scale = phase.update == PlanBuffer::kAttentionOutput ? layer.post_attention_norm
                                                         : layer.post_mlp_norm;
  }
  // Token by token, so that what all lanes said of it comes from far once for the group's lanes.
  for (int64_t t = 0; t < pass_.width; ++t) {
    for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
      float* x = w.x->as<float>() + (lane * pass_.width + t) * hidden;
      const int64_t own_lane = w.first_lane + lane;
      const float* own = output(phase.update, phase.update_own_slot, own_lane) + t * hidden;
      if (phase.update_delay == kNever && scale == nullptr) {
        add_scaled_to(x, own, alone, hidden);
        continue;
      }
      float* sum = w.sum->as<float>();
      std::fill_n(sum, hidden, 0.0f);
      if (phase.update_delay == kNever) {
        add_scaled_to(sum, own, alone, hidden);
      } else {
        for (int64_t j = 0; j < h.lanes; ++j) {
          if (j == own_lane && phase.update_delay > 0) continue;
          add_to(sum, output(phase.update, phase.update_other_slot, j) + t * hidden, hidden);
        }
        if (phase.update_delay > 0) add_to(sum, own, hidden);
      }
      if (scale != nullptr) {
        const float* lane_scale = h.norm_per_lane ? scale + own_lane * hidden : scale;
        kernels_.rms_norm(sum, hidden, lane_scale, h.norm_eps, hidden, 1, sum, hidden);
      }
      add_to(x, sum, hidden);
    }
  }
}

// Packs the inputs of a phase, [T, columns] of a lane, in each kind that its matrices take. A kind
// that an earlier matrix takes too is there already.
void Executor::pack(const Worker& w, const PlanPhase& phase, const float* x, int64_t columns,
                    int64_t lane, int64_t width) const {
  uint32_t packed = 0;
  for (int32_t i = 0; i < phase.num_matrices; ++i) {
    const Activation kind = activation_of(rows(w, phase, i));
    const uint32_t bit = 1u << static_cast<int>(kind);
    if ((packed & bit) == 0)
      kernels_.pack(kind, x, columns, width, w.packed_lane(kind, lane, width));
    packed |= bit;
  }
}

// Packs what a module reads: the streams of the group's lanes, normed if the model norms them.
void Executor::read_stream(Worker& w, const PlanPhase& phase, const float* scale) {
  const PlanHeader& h = plan_.header;
  const int64_t width = pass_.width, hidden = h.hidden;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    const float* x = w.x->as<float>() + lane * width * hidden;
    if (h.norm_before) {
      const float* lane_scale = scale + (h.norm_per_lane ? (w.first_lane + lane) * hidden : 0);
      float* normed = w.normed->as<float>();
      kernels_.rms_norm(x, hidden, lane_scale, h.norm_eps, hidden, width, normed, hidden);
      x = normed;
    }
    pack(w, phase, x, hidden, lane, width);
  }
}

// Puts the products of a phase of one lane side by side into out [T, columns].
void Executor::store_side_by_side(Worker& w, const PlanPhase& phase, float* out, int64_t columns) {
  for (int32_t i = 0; i < phase.num_matrices; ++i) {
    multiply(w, phase, i, [&](int64_t, int64_t first, int64_t count, float* y) {
      for (int64_t t = 0; t < pass_.width; ++t) {
        std::memcpy(out + t * columns + first, y + t * count, floats(count));
      }
    });
    out += phase.matrices[i].rows;
  }
}

// Turns rows first .. first + count - 1 of a lane's heads, which hold whole rotary pairs, or of the
// part of heads that turns, where attention is latent.
void Executor::rotate(const Worker& w, PlanRotary rotary, float* y, int64_t t, int64_t first,
                      int64_t count) const {
  if (rotary == PlanRotary::kNone) return;
  const int64_t turned = plan_.header.rotary_dim, pairs = turned / 2;
  const int64_t h = plan_.header.latent > 0 ? turned : plan_.header.head_dim;
  const int64_t table = static_cast<int64_t>(rotary) * plan_.header.max_width + t;
  const float* cosine = w.cosine->as<float>() + table * pairs;
  const float* sine = w.sine->as<float>() + table * pairs;
  if (plan_.header.rotary == RotaryStyle::kInterleaved) {
    for (int64_t r = 0; r < count; r += 2) {
      const int64_t i = (first + r) % h / 2;
      if (i >= pairs) continue;
      const float a = y[r], b = y[r + 1];
      y[r] = a * cosine[i] - b * sine[i];
      y[r + 1] = b * cosine[i] + a * sine[i];
    }
    return;
  }
  for (int64_t head = 0; head < count; head += h) {
    for (int64_t i = 0; i < pairs; ++i) {
      const float a = y[head + i], b = y[head + pairs + i];
      y[head + i] = a * cosine[i] - b * sine[i];
      y[head + pairs + i] = b * cosine[i] + a * sine[i];
    }
  }
}

void Executor::run_attend(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const int64_t kv_heads = h.kv_heads / h.lanes;
  const PlanShare units = share(w, phase.units);
  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    const int64_t split = unit % h.splits;
    const int64_t kv_head = unit / h.splits % kv_heads;
    const int64_t lane = w.first_lane + unit / h.splits / kv_heads;
    for (int64_t t = 0, end; t < pass_.width; t = end) {
      end = t + 1;
      while (end < pass_.width && pass_.rows[end].slot == pass_.rows[t].slot) ++end;
      attend_group(w, phase, lane, kv_head, split, {t, end}, unit + 1 < units.end);
    }
  }
}

// All query heads of one KV head, for tokens of one slot: the partial sums of every chunk of this
// split, merged in the order of the chunks. Which chunks a token has depends on its position alone.
void Executor::attend_group(Worker& w, const PlanPhase& phase, int64_t lane, int64_t kv_head,
                            int64_t split, Tokens tokens, bool more_heads) {
  const PlanHeader& h = plan_.header;
  const int64_t heads = h.heads / h.lanes, group = h.heads / h.kv_heads, dim = h.head_dim;
  const int64_t cached_head = lane * (h.kv_heads / h.lanes) + kv_head;
  const int64_t first = kv_head * group, stride = dim + 2, slot = pass_.rows[tokens.begin].slot;
  const auto end = [&](int64_t t) { return int64_t{pass_.rows[t].position} + 1; };
  const auto begin = [&](int64_t t) {
    return phase.window > 0 ? std::max<int64_t>(0, end(t) - phase.window) : 0;
  };
  const auto out = [&](int64_t t) {
    return attention_->as<float>() +
           (((lane * h.splits + split) * h.max_width + t) * heads + first) * stride;
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
  int64_t chunk = oldest + (split - oldest % h.splits + h.splits) % h.splits;
  for (; chunk * kChunk < last; chunk += h.splits) {
    const auto from = [&](int64_t t) { return std::max(begin(t), chunk * kChunk); };
    const auto count = [&](int64_t t) { return std::min(end(t), (chunk + 1) * kChunk) - from(t); };
    const void* next = nullptr;  // what this worker reads next, where that is easily said
    if ((chunk + h.splits) * kChunk < last) {
      next = cache_.key(slot, phase.layer, cached_head, (chunk + h.splits) * kChunk);
    } else if (more_heads && h.splits == 1 && pass_.width == 1) {
      next = cache_.key(slot, phase.layer, cached_head + 1, begin(tokens.begin));
    }
    for (int64_t t = tokens.begin; t < tokens.end;) {
      if (count(t) <= 0) {
        ++t;
        continue;
      }
      // Those that begin with the same key go together.
      int64_t counts[kMaxWidth], some = 0;
      const int64_t most = std::min(w.attend_tokens, tokens.end - t);
      while (some < most && from(t + some) == from(t)) {
        counts[some] = count(t + some);
        ++some;
      }
      const float* q = query_->as<float>() + ((lane * h.max_width + t) * heads + first) * dim;
      kernels_.attend({q, some, group, heads * dim, counts},
                      cache_.key(slot, phase.layer, cached_head, from(t)),
                      cache_.value(slot, phase.layer, cached_head, from(t)), cache_.format(), dim,
                      dim, h.query_scale, t + some == tokens.end ? next : nullptr,
                      w.scores->as<float>(), w.partial->as<float>());
      const float* added = w.partial->as<float>();
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
void Executor::merge_splits(Worker& w, const float* sinks, int64_t lane) {
  const PlanHeader& h = plan_.header;
  const int64_t heads = h.heads / h.lanes, dim = h.head_dim;
  for (int64_t t = 0; t < pass_.width; ++t) {
    for (int64_t head = 0; head < heads; ++head) {
      float* out = w.normed->as<float>() + (t * heads + head) * dim;
      merge_head(sinks, w.first_lane + lane, head, t, dim, out);
    }
  }
}

// The first `columns` of one head's attention. Its sink is one more score, whose value is zero.
void Executor::merge_head(const float* sinks, int64_t owner, int64_t head, int64_t t,
                          int64_t columns, float* out) const {
  const PlanHeader& h = plan_.header;
  const int64_t heads = h.heads / h.lanes, dim = h.head_dim, stride = dim + 2;
  const auto part = [&](int64_t split) {
    return attention_->as<float>() +
           (((owner * h.splits + split) * h.max_width + t) * heads + head) * stride;
  };
  const float sink =
      sinks == nullptr ? -std::numeric_limits<float>::infinity() : sinks[owner * heads + head];
  float peak = sink;
  for (int64_t s = 0; s < h.splits; ++s) peak = std::max(peak, part(s)[dim]);
  std::fill_n(out, columns, 0.0f);
  float total = std::exp(sink - peak);
  for (int64_t s = 0; s < h.splits; ++s) {
    if (part(s)[dim + 1] == 0) continue;  // no keys: of short contexts most parts have none
    const float gain = std::exp(part(s)[dim] - peak);
    add_scaled_to(out, part(s), gain, columns);
    total += part(s)[dim + 1] * gain;
  }
  scale_by(out, 1.0f / total, columns);
}

void Executor::run_out(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const LayerWeights& layer = weights_.layers[phase.layer];
  const PlanMatrix& part = phase.matrices[0];
  const PlanShare rows = share(w, part.share);
  const int64_t width = pass_.width;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    if (rows.begin >= (lane + 1) * part.rows || rows.end <= lane * part.rows) continue;
    const float* heads = heads_->as<float>();
    if (h.latent == 0) {
      merge_splits(w, layer.sinks, lane);
      if (h.attention_gate) {
        float* merged = w.normed->as<float>();
        const float* gate =
            query_gate_->as<float>() + (w.first_lane + lane) * h.max_width * part.columns;
        kernels_.sigmoid_times(gate, merged, width * part.columns, merged);
      }
      heads = w.normed->as<float>();
    }
    pack(w, phase, heads, part.columns, lane, width);
  }
  offer_products(w, phase, PlanBuffer::kAttentionOutput, layer.o_bias);
}

void Executor::product(const Matrix& matrix, int64_t row_begin, int64_t row_end, Activation kind,
                       const void* packed, int64_t width, float* y, int64_t stride) const {
  const int64_t bytes = kernels_.packed_bytes(kind, matrix.cols);
  const char* tokens = static_cast<const char*>(packed);
  for (int64_t t = 0; t < width; t += kMaxWidth) {
    kernels_.multiply(matrix, row_begin, row_end, kind, tokens + t * bytes,
                      std::min<int64_t>(width - t, kMaxWidth), y + t * stride, stride);
  }
}

// The product of what is packed, and a bias where there is one: what a module says.
void Executor::offer_products(Worker& w, const PlanPhase& phase, PlanBuffer module,
                              const float* bias) {
  const int64_t width = pass_.width, hidden = plan_.header.hidden;
  const auto place = [&](int64_t lane, int64_t first, int64_t) {
    return Products{output(module, phase.write_slot, w.first_lane + lane) + first, hidden};
  };
  multiply(w, phase, 0, place, [&](int64_t, int64_t first, int64_t count, float* out) {
    if (bias != nullptr) {
      for (int64_t t = 0; t < width; ++t) add_to(out + t * hidden, bias + first, count);
    }
    exchange_.wrote(w.index, out, count, width, hidden);
  });
}

float* Executor::output(PlanBuffer module, int64_t slot, int64_t lane) const {
  const PlanHeader& h = plan_.header;
  float* ring = module == PlanBuffer::kAttentionOutput ? exchange_.attention_output()
                                                       : exchange_.mlp_output();
  return ring + (slot * h.lanes + lane) * h.max_width * h.hidden;
}

}  // namespace monolane

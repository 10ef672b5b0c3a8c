// Past 500 lines on purpose: the phases are short, share one state, and are read side by side.
// What a worker does in each phase of a pass; executor.h tells who waits for whom.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "clones.h"
#include "worker.h"

namespace monolane {
namespace {

// Elementwise loops over [D].
MONOLANE_CLONES void add_to(float* x, const float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] += y[i];
}

MONOLANE_CLONES void add_scaled_to(float* x, const float* y, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] += scale * y[i];
}

MONOLANE_CLONES void scale_by(float* x, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] *= scale;
}

}  // namespace

PlanShare Executor::share(const Worker& w, int32_t table) const {
  return plan_.share(table, w.index);
}

const Matrix& Executor::rows(const Worker& w, const PlanPhase& phase, int64_t index,
                             int64_t expert) const {
  return w.weights.of(index_of(phase), index, expert);
}

void Executor::embed(Worker& w) {
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
  const int64_t count = pass_.width * h.hidden;
  const float alone = std::sqrt(static_cast<float>(h.lanes));  // gain of a lane that never reduces
  const float* scale = nullptr;                                // of the norm of what is added
  if (h.norm_after) {
    const LayerWeights& layer = weights_.layers[phase.update_layer];
    scale = phase.update == PlanBuffer::kAttentionOutput ? layer.post_attention_norm
                                                         : layer.post_mlp_norm;
  }
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    float* x = w.x->as<float>() + lane * count;
    const int64_t own_lane = w.first_lane + lane;
    const float* own = output(phase.update, phase.update_own_slot, own_lane);
    if (phase.update_delay == kNever && scale == nullptr) {
      add_scaled_to(x, own, alone, count);
      continue;
    }
    const float* lane_scale =
        scale == nullptr || !h.norm_per_lane ? scale : scale + own_lane * h.hidden;
    // Token by token, so that the sum stays in the first-level cache.
    for (int64_t t = 0; t < pass_.width; ++t) {
      float* sum = w.sum->as<float>();
      std::fill_n(sum, h.hidden, 0.0f);
      if (phase.update_delay == kNever) {
        add_scaled_to(sum, own + t * h.hidden, alone, h.hidden);
      } else {
        for (int64_t j = 0; j < h.lanes; ++j) {
          if (j == own_lane && phase.update_delay > 0) continue;
          add_to(sum, output(phase.update, phase.update_other_slot, j) + t * h.hidden, h.hidden);
        }
        if (phase.update_delay > 0) add_to(sum, own + t * h.hidden, h.hidden);
      }
      if (lane_scale != nullptr) {
        kernels_.rms_norm(sum, h.hidden, lane_scale, h.norm_eps, h.hidden, 1, sum, h.hidden);
      }
      add_to(x + t * h.hidden, sum, h.hidden);
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

void Executor::project_qkv(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const LayerWeights& layer = weights_.layers[phase.layer];
  update(w, phase);
  read_stream(w, phase, layer.attention_norm);
  const int64_t width = pass_.width, both = int64_t{h.heads + h.kv_heads} * h.head_dim;
  const bool late = h.qk_norm == QkNorm::kAll;  // kNormQk goes on with queries and keys

  const auto add_bias = [&](float* y, const float* bias, int64_t first, int64_t count) {
    if (bias == nullptr) return;
    for (int64_t t = 0; t < width; ++t) add_to(y + t * count, bias + first, count);
  };
  // Of whole heads, where they are normed each by itself; their rows are then shared out whole.
  const auto norm_heads = [&](float* y, const float* scale, int64_t count) {
    if (h.qk_norm != QkNorm::kHead) return;
    kernels_.rms_norm(y, h.head_dim, scale, h.norm_eps, h.head_dim, width * count / h.head_dim, y,
                      h.head_dim);
  };
  for (int32_t i = 0; i < phase.num_matrices; ++i) {
    const PlanMatrix& part = phase.matrices[i];
    const int64_t rows = part.rows;
    if (late && part.role != WeightRole::kV) {
      const bool query = part.role == WeightRole::kQ;
      const int64_t before = query ? 0 : int64_t{h.heads} * h.head_dim;
      multiply(w, phase, i, [&](int64_t lane, int64_t first, int64_t count, float* y) {
        first += (w.first_lane + lane) * rows;
        add_bias(y, query ? layer.q_bias : layer.k_bias, first, count);
        float* out = exchange_.unnormed() + before + first;
        for (int64_t t = 0; t < width; ++t) {
          std::memcpy(out + t * both, y + t * count, floats(count));
        }
        exchange_.wrote(w.index, out, count, width, both);
      });
      continue;
    }
    if (part.role == WeightRole::kQ) {
      multiply(w, phase, i, [&](int64_t lane, int64_t first, int64_t count, float* y) {
        const int64_t owner = w.first_lane + lane;
        add_bias(y, layer.q_bias, owner * rows + first, count);
        norm_heads(y, layer.q_norm, count);
        for (int64_t t = 0; t < width; ++t) {
          rotate(w, phase.rotary, y + t * count, t, first, count);
          float* q = query_->as<float>() + (owner * h.max_width + t) * rows + first;
          std::memcpy(q, y + t * count, floats(count));
        }
      });
      continue;
    }
    const bool key = part.role == WeightRole::kK;
    const float* bias = key ? layer.k_bias : layer.v_bias;
    multiply(w, phase, i, [&](int64_t lane, int64_t first, int64_t count, float* y) {
      const int64_t owner = w.first_lane + lane;
      add_bias(y, bias, owner * rows + first, count);
      if (key) norm_heads(y, layer.k_norm, count);
      for (int64_t t = 0; t < width; ++t) {
        float* row = y + t * count;
        if (key) rotate(w, phase.rotary, row, t, first, count);
        store_key_or_value(phase, key, t, owner * rows + first, row, count);
      }
    });
  }
}

// Puts rows first .. first + count - 1 of all lanes' keys or values of a token into the cache, head
// by head: a share may begin and end amid one.
void Executor::store_key_or_value(const PlanPhase& phase, bool key, int64_t t, int64_t first,
                                  const float* y, int64_t count) {
  const int64_t dim = plan_.header.head_dim;
  const Row& token = pass_.rows[t];
  for (int64_t r = 0; r < count;) {
    const int64_t head = (first + r) / dim, c = (first + r) % dim;
    const int64_t n = std::min<int64_t>(count - r, dim - c);
    char* base =
        static_cast<char*>(key ? cache_.key(token.slot, phase.layer, head, token.position)
                               : cache_.value(token.slot, phase.layer, head, token.position));
    kernels_.store_kv(y + r, n, cache_.format(), base + row_bytes(cache_.format(), c));
    r += n;
  }
}

// Norms the queries and the keys of each token, each over all heads of all lanes, and turns and
// stores the own heads. Every worker sums the squares of all, in the same order: adding them up
// again takes less than a second wait would.
void Executor::norm_qk(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const LayerWeights& layer = weights_.layers[phase.layer];
  const PlanShare units = share(w, phase.units);  // heads, lane by lane: of Q and then of K
  const int64_t dim = h.head_dim, heads = h.heads / h.lanes, kv_heads = h.kv_heads / h.lanes;
  float* normed = w.normed->as<float>();
  // Own heads begin .. end - 1 of a lane's, whose first is at `before` among its units.
  const auto own = [&](int64_t lane, int64_t before, int64_t count, auto store) {
    const int64_t first = lane * (heads + kv_heads) + before;
    const int64_t begin = std::max<int64_t>(units.begin - first, 0);
    const int64_t end = std::min<int64_t>(units.end - first, count);
    if (begin < end) store(w.first_lane + lane, begin, end);
  };
  const auto norm = [&](const float* x, const float* scale, int64_t columns) {
    kernels_.rms_norm(x, columns, scale, h.norm_eps, columns, 1, normed, columns);
  };
  if (units.begin == units.end) return;
  for (int64_t t = 0; t < pass_.width; ++t) {
    const float* x = exchange_.unnormed() + t * (h.heads + h.kv_heads) * dim;
    norm(x, layer.q_norm, h.heads * dim);
    for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
      own(lane, 0, heads, [&](int64_t owner, int64_t begin, int64_t end) {
        float* y = normed + (owner * heads + begin) * dim;
        rotate(w, phase.rotary, y, t, begin * dim, (end - begin) * dim);
        float* q = query_->as<float>() + ((owner * h.max_width + t) * heads + begin) * dim;
        std::memcpy(q, y, floats((end - begin) * dim));
      });
    }
    norm(x + h.heads * dim, layer.k_norm, h.kv_heads * dim);
    for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
      own(lane, heads, kv_heads, [&](int64_t owner, int64_t begin, int64_t end) {
        const int64_t first = (owner * kv_heads + begin) * dim, count = (end - begin) * dim;
        rotate(w, phase.rotary, normed + first, t, begin * dim, count);
        store_key_or_value(phase, true, t, first, normed + first, count);
      });
    }
  }
}

// Turns rows first .. first + count - 1 of a lane, which hold whole rotary pairs.
void Executor::rotate(const Worker& w, PlanRotary rotary, float* y, int64_t t, int64_t first,
                      int64_t count) const {
  if (rotary == PlanRotary::kNone) return;
  const int64_t h = plan_.header.rotary_dim, pairs = h / 2;
  const int64_t table = static_cast<int64_t>(rotary) * plan_.header.max_width + t;
  const float* cosine = w.cosine->as<float>() + table * pairs;
  const float* sine = w.sine->as<float>() + table * pairs;
  if (plan_.header.rotary == RotaryStyle::kInterleaved) {
    for (int64_t r = 0; r < count; r += 2) {
      const int64_t i = (first + r) % h / 2;
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

void Executor::attend(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const int64_t kv_heads = h.kv_heads / h.lanes;
  const PlanShare units = share(w, phase.units);
  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    const int64_t split = unit % h.splits;
    const int64_t kv_head = unit / h.splits % kv_heads;
    const int64_t lane = w.first_lane + unit / h.splits / kv_heads;
    for (int64_t t = 0; t < pass_.width; ++t)
      attend_group(w, phase, lane, kv_head, split, t, unit + 1 < units.end);
  }
}

// All query heads of one KV head, for one token: the partial sums of every chunk of this split,
// merged in the order of the chunks. Which chunks there are depends on the position alone.
void Executor::attend_group(Worker& w, const PlanPhase& phase, int64_t lane, int64_t kv_head,
                            int64_t split, int64_t t, bool more_heads) {
  const PlanHeader& h = plan_.header;
  const int64_t heads = h.heads / h.lanes, group = h.heads / h.kv_heads, dim = h.head_dim;
  const int64_t cached_head = lane * (h.kv_heads / h.lanes) + kv_head;
  const Row& row = pass_.rows[t];
  const int64_t end = row.position + 1;
  const int64_t begin = phase.window > 0 ? std::max<int64_t>(0, end - phase.window) : 0;
  const int64_t first = kv_head * group, stride = dim + 2;
  const float* q = query_->as<float>() + ((lane * h.max_width + t) * heads + first) * dim;
  float* out = attention_->as<float>() +
               (((lane * h.splits + split) * h.max_width + t) * heads + first) * stride;
  float* partial = w.partial->as<float>();
  const auto key = [&](int64_t head, int64_t chunk) {
    return cache_.key(row.slot, phase.layer, head, std::max(begin, chunk * kChunk));
  };

  for (int64_t head = 0; head < group; ++head) {
    std::fill_n(out + head * stride, dim, 0.0f);
    out[head * stride + dim] = -std::numeric_limits<float>::infinity();
    out[head * stride + dim + 1] = 0;
  }
  const int64_t oldest = begin / kChunk;
  int64_t chunk = oldest + (split - oldest % h.splits + h.splits) % h.splits;
  for (; chunk * kChunk < end; chunk += h.splits) {
    const int64_t from = std::max(begin, chunk * kChunk);
    const int64_t count = std::min(end, (chunk + 1) * kChunk) - from;
    const void* next = nullptr;  // what this worker reads next, where that is easily said
    if ((chunk + h.splits) * kChunk < end) {
      next = key(cached_head, chunk + h.splits);
    } else if (more_heads && h.splits == 1 && pass_.width == 1) {
      next = key(cached_head + 1, oldest);
    }
    kernels_.attend(q, group, key(cached_head, chunk),
                    cache_.value(row.slot, phase.layer, cached_head, from), cache_.format(), dim,
                    count, dim, h.query_scale, next, w.scores->as<float>(), partial);
    for (int64_t head = 0; head < group; ++head) {
      float* sum = out + head * stride;
      const float* added = partial + head * stride;
      const float top = std::max(sum[dim], added[dim]);
      const float keep = std::exp(sum[dim] - top), gain = std::exp(added[dim] - top);
      scale_by(sum, keep, dim);
      add_scaled_to(sum, added, gain, dim);
      sum[dim + 1] = sum[dim + 1] * keep + added[dim + 1] * gain;
      sum[dim] = top;
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
    const float gain = std::exp(part(s)[dim] - peak);
    add_scaled_to(out, part(s), gain, columns);
    total += part(s)[dim + 1] * gain;
  }
  scale_by(out, 1.0f / total, columns);
}

void Executor::project_out(Worker& w, const PlanPhase& phase) {
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
      heads = w.normed->as<float>();
    }
    pack(w, phase, heads, part.columns, lane, width);
  }
  multiply(w, phase, 0, [&](int64_t lane, int64_t first, int64_t count, float* y) {
    float* out = output(PlanBuffer::kAttentionOutput, phase.write_slot, w.first_lane + lane);
    for (int64_t t = 0; t < width; ++t) {
      if (layer.o_bias != nullptr) add_to(y + t * count, layer.o_bias + first, count);
      std::memcpy(out + t * h.hidden + first, y + t * count, floats(count));
    }
    exchange_.wrote(w.index, out + first, count, width, h.hidden);
  });
}

void Executor::gate_up(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const LayerWeights& layer = weights_.layers[phase.layer];
  update(w, phase);
  read_stream(w, phase, layer.mlp_norm);
  const int64_t width = pass_.width, inner = h.intermediate / h.lanes;
  const PlanMatrix& part = phase.matrices[0];  // UP has the same rows and the same share
  const Matrix& up_rows = rows(w, phase, 1);
  const Activation up_kind = activation_of(up_rows);
  const PlanShare own = share(w, part.share);
  multiply(w, phase, 0, [&](int64_t lane, int64_t first, int64_t count, float* gate) {
    float* up = gate + width * count;
    const int64_t begin = lane * part.rows + first - own.begin;
    kernels_.multiply(up_rows, begin, begin + count, up_kind, w.packed_lane(up_kind, lane, width),
                      width, up, count);
    for (int64_t t = 0; t < width; ++t) {
      float* hidden =
          hidden_->as<float>() + ((w.first_lane + lane) * h.max_width + t) * inner + first;
      gate_up_(gate + t * count, up + t * count, count, hidden);
    }
  });
}

void Executor::project_down(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const PlanMatrix& part = phase.matrices[0];
  const PlanShare rows = share(w, part.share);
  const int64_t width = pass_.width, inner = h.intermediate / h.lanes;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    if (rows.begin >= (lane + 1) * part.rows || rows.end <= lane * part.rows) continue;
    const float* hidden = hidden_->as<float>() + (w.first_lane + lane) * h.max_width * inner;
    pack(w, phase, hidden, inner, lane, width);
  }
  multiply(w, phase, 0, [&](int64_t lane, int64_t first, int64_t count, float* y) {
    float* out = output(PlanBuffer::kMlpOutput, phase.write_slot, w.first_lane + lane);
    for (int64_t t = 0; t < width; ++t) {
      std::memcpy(out + t * h.hidden + first, y + t * count, floats(count));
    }
    exchange_.wrote(w.index, out + first, count, width, h.hidden);
  });
}

// Offers this worker's elements of its lanes' streams to a head that reads all lanes.
void Executor::gather(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  update(w, phase);
  const PlanShare units = share(w, phase.units);  // (lane of the group, column)
  const int64_t width = pass_.width, hidden = h.hidden;
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    const int64_t from = std::max<int64_t>(units.begin - lane * hidden, 0);
    const int64_t to = std::min<int64_t>(units.end - lane * hidden, hidden);
    if (from >= to) continue;
    const float* x = w.x->as<float>() + lane * width * hidden;
    if (h.head != PlanHead::kSum) {
      const int64_t scale = h.final_norm_per_lane ? (w.first_lane + lane) * hidden : 0;
      kernels_.rms_norm(x, hidden, weights_.final_norm + scale, h.norm_eps, hidden, width,
                        w.normed->as<float>(), hidden);
      x = w.normed->as<float>();
    }
    float* stream = exchange_.stream() + (w.first_lane + lane) * h.max_width * hidden + from;
    for (int64_t t = 0; t < width; ++t) {
      std::memcpy(stream + t * hidden, x + t * hidden + from, floats(to - from));
    }
    exchange_.wrote(w.index, stream, to - from, width, hidden);
  }
}

void Executor::project_head(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const PlanMatrix& part = phase.matrices[0];
  const int64_t hidden = h.hidden, wanted = pass_.wanted;
  const bool shared = plan_.shared_head();
  float* logits = exchange_.logits();
  if (!shared) update(w, phase);
  if (!shared && (pass_.hidden || pass_.offered)) offer_normed(w);
  if (wanted == 0) return;

  const PlanShare own = share(w, part.share);
  for (int64_t lane = 0; lane < (shared ? 1 : h.group_lanes); ++lane) {
    const int64_t begin = std::max<int64_t>(own.begin - lane * part.rows, 0);
    const int64_t end = std::min<int64_t>(own.end - lane * part.rows, part.rows);
    if (begin >= end) continue;
    float* normed = w.normed->as<float>();
    const int64_t owner = shared ? 0 : w.first_lane + lane;
    for (int64_t i = 0; i < wanted; ++i) {
      const int64_t t = pass_.wanted_row[i];
      float* row = normed + i * part.columns;
      if (shared) {
        join_lanes(t, row);
        continue;
      }
      const int64_t scale = h.final_norm_per_lane ? owner * hidden : 0;
      kernels_.rms_norm(w.x->as<float>() + (lane * pass_.width + t) * hidden, hidden,
                        weights_.final_norm + scale, h.norm_eps, hidden, 1, row, hidden);
    }
    pack(w, phase, normed, part.columns, 0, wanted);
    const Matrix& matrix = rows(w, phase, 0);
    const Activation kind = activation_of(matrix);
    const int64_t first = lane * part.rows + begin - own.begin;
    float* out = logits + owner * part.rows + begin;
    kernels_.multiply(matrix, first, first + end - begin, kind, w.packed_lane(kind, 0, wanted),
                      wanted, out, h.vocab);
    exchange_.wrote(w.index, out, end - begin, wanted, h.vocab, true);
  }
}

// Offers what each lane's own head reads, for `hidden`. Only the leader reads it, when it chooses
// tokens: it waits for this phase, for the logits' sake.
void Executor::offer_normed(const Worker& w) {
  const PlanHeader& h = plan_.header;
  const int64_t width = pass_.width, hidden = h.hidden;
  if (w.index != w.first_worker) return;  // all workers of a group have its streams whole
  for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
    const int64_t owner = w.first_lane + lane, scale = h.final_norm_per_lane ? owner * hidden : 0;
    float* out = exchange_.stream() + owner * h.max_width * hidden;
    kernels_.rms_norm(w.x->as<float>() + lane * width * hidden, hidden, weights_.final_norm + scale,
                      h.norm_eps, hidden, width, out, hidden);
    exchange_.wrote(w.index, out, hidden, width, hidden, true);
  }
}

// The input of a head that reads all lanes, from what `gather` offered: [D] or [L*D].
void Executor::join_lanes(int64_t t, float* out) const {
  const PlanHeader& h = plan_.header;
  const int64_t hidden = h.hidden;
  const auto stream = [&](int64_t lane) {
    return exchange_.stream() + (lane * h.max_width + t) * hidden;
  };
  if (h.head == PlanHead::kConcat) {
    for (int64_t lane = 0; lane < h.lanes; ++lane) {
      std::memcpy(out + lane * hidden, stream(lane), floats(hidden));
    }
    return;
  }
  merge_lanes(t, out);
}

// The normed sum of the lanes' streams, or the mean of their normed ones, from what was offered.
void Executor::merge_lanes(int64_t t, float* out) const {
  const PlanHeader& h = plan_.header;
  const int64_t hidden = h.hidden;
  for (int64_t lane = 0; lane < h.lanes; ++lane) {
    const float* stream = exchange_.stream() + (lane * h.max_width + t) * hidden;
    lane == 0 ? static_cast<void>(std::memcpy(out, stream, floats(hidden)))
              : add_to(out, stream, hidden);
  }
  if (h.head == PlanHead::kSum && plan_.shared_head()) {
    kernels_.rms_norm(out, hidden, weights_.final_norm, h.norm_eps, hidden, 1, out, hidden);
  } else if (h.lanes > 1) {
    scale_by(out, 1.0f / static_cast<float>(h.lanes), hidden);
  }
}

float* Executor::output(PlanBuffer module, int64_t slot, int64_t lane) const {
  const PlanHeader& h = plan_.header;
  float* ring = module == PlanBuffer::kAttentionOutput ? exchange_.attention_output()
                                                       : exchange_.mlp_output();
  return ring + (slot * h.lanes + lane) * h.max_width * h.hidden;
}

}  // namespace monolane

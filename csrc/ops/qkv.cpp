// kQkv and kNormQk: queries, and keys and values into the cache.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "kernels/elementwise.h"
#include "ops/attention.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/rotary.h"
#include "ops/stream.h"

namespace monolane {

void temper(const Forward& f, const PlanAttention& a, int64_t t, float* y, int64_t count) {
  if (a.temperature == 0.0f) return;
  const double steps = (f.pass.rows[t].position + a.temperature_ahead) / a.temperature_context;
  scale_by(y, static_cast<float>(1.0 + double{a.temperature} * std::log1p(steps)), count);
}

namespace {

// Puts whole heads of a lane, of each the query and then its gate, into where each is read.
void store_gated_queries(Forward& f, Worker& w, const PlanPhase& phase, int64_t owner,
                         int64_t first, int64_t count, float* y) {
  const PlanHeader& h = f.plan.header;
  const PlanAttention& a = f.module(phase).attention;
  const int64_t dim = a.head_dim, columns = a.heads / h.lanes * dim;
  const float* scale = f.weights.of(phase.layer).vector(WeightRole::kQNorm);
  for (int64_t t = 0; t < f.pass.width; ++t) {
    const int64_t at = (owner * h.max_width + t) * columns + first / 2;
    float *query = f.buffer(PlanBuffer::kQuery) + at, *gate = f.buffer(PlanBuffer::kQueryGate) + at;
    for (int64_t r = 0; r < count; r += 2 * dim, y += 2 * dim, query += dim, gate += dim) {
      const auto norm = [&] { f.kernels.rms_norm(y, dim, scale, h.norm_eps, dim, 1, y, dim); };
      const bool normed = a.qk_norm == QkNorm::kHead, turned = a.norm_turned != 0;
      if (normed && !turned) norm();
      rotate(f, w, phase, y, t, 0, dim);
      if (normed && turned) norm();
      temper(f, a, t, y, dim);
      std::memcpy(query, y, floats(dim));
      std::memcpy(gate, y + dim, floats(dim));
    }
  }
}

// Puts rows first .. first + count - 1 of all lanes' keys or values of a token into the cache, head
// by head: a share may begin and end amid one.
void store_key_or_value(Forward& f, const PlanPhase& phase, bool key, int64_t t, int64_t first,
                        const float* y, int64_t count) {
  const int64_t dim = f.module(phase).attention.head_dim;
  const Row& token = f.pass.rows[t];
  for (int64_t r = 0; r < count;) {
    const int64_t head = (first + r) / dim, c = (first + r) % dim;
    const int64_t n = std::min<int64_t>(count - r, dim - c);
    char* base =
        static_cast<char*>(key ? f.cache.key(token.slot, phase.layer, head, token.position)
                               : f.cache.value(token.slot, phase.layer, head, token.position));
    f.kernels.store_kv(y + r, n, f.cache.format(), base + row_bytes(f.cache.format(), c));
    r += n;
  }
}

// Puts rows of all lanes' values, [T, count], into the cache, normed where they are: whole heads
// then.
void store_values(Forward& f, Worker& w, const PlanPhase& phase, int64_t first, int64_t count,
                  const float* y) {
  const PlanAttention& a = f.module(phase).attention;
  const int64_t dim = a.head_dim;
  float* normed = Scratch(w).take(dim);
  for (int64_t t = 0; t < f.pass.width; ++t, y += count) {
    if (!a.value_norm) {
      store_key_or_value(f, phase, false, t, first, y, count);
      continue;
    }
    for (int64_t r = 0; r < count; r += dim) {
      f.kernels.rms_norm(y + r, dim, nullptr, f.plan.header.norm_eps, dim, 1, normed, dim);
      store_key_or_value(f, phase, false, t, first + r, normed, dim);
    }
  }
}

}  // namespace

// Codes are made by the worker that has a group: a share must not begin or end amid one.
void check_cache_format(const Plan& plan, Format format) {
  const int64_t group = is_cached(format) ? column_step(format) : 0;
  bool whole = group > 0;
  for (const PlanModule& module : plan.modules) {
    whole = whole && module.attention.head_dim % group == 0;
  }
  for (const PlanPhase& phase : plan.phases) {
    if (phase.kind != PhaseKind::kQkv) continue;
    for (int32_t i = 0; i < phase.num_matrices && whole; ++i) {
      const PlanMatrix& matrix = phase.matrices[i];
      if (matrix.role == WeightRole::kQ) continue;
      for (int32_t w = 0; w < plan.header.workers; ++w) {
        whole = whole && plan.share(matrix.share, w).begin % group == 0;
      }
    }
  }
  if (!whole) throw std::invalid_argument("the plan is not one for this format of keys and values");
}

void run_qkv(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const PlanAttention& a = f.module(phase).attention;
  const WeightsByRole& layer = f.weights.of(phase.layer);
  update(f, w, phase);
  read_stream(f, w, phase);
  const int64_t width = f.pass.width, both = int64_t{a.heads + a.kv_heads} * a.head_dim;
  const bool late = a.qk_norm == QkNorm::kAll;  // kNormQk goes on with queries and keys

  const auto add_bias = [&](float* y, const float* bias, int64_t first, int64_t count) {
    if (bias == nullptr) return;
    for (int64_t t = 0; t < width; ++t) add_to(y + t * count, bias + first, count);
  };
  // Norms and turns queries or keys. Where heads are normed each by itself, rows are shared out by
  // whole ones.
  const auto finish = [&](float* y, const float* scale, int64_t first, int64_t count) {
    const bool normed = a.qk_norm == QkNorm::kHead, turned = a.norm_turned != 0;
    const auto norm = [&] {
      f.kernels.rms_norm(y, a.head_dim, scale, h.norm_eps, a.head_dim, width * count / a.head_dim,
                         y, a.head_dim);
    };
    if (normed && !turned) norm();
    for (int64_t t = 0; t < width; ++t) rotate(f, w, phase, y + t * count, t, first, count);
    if (normed && turned) norm();
  };
  for (int32_t i = 0; i < phase.num_matrices; ++i) {
    const PlanMatrix& part = phase.matrices[i];
    const int64_t rows = part.rows;
    if (late && part.role != WeightRole::kV) {
      const bool query = part.role == WeightRole::kQ;
      const int64_t before = query ? 0 : int64_t{a.heads} * a.head_dim;
      multiply(f, w, phase, i, [&](int64_t lane, int64_t first, int64_t count, float* y) {
        first += (w.first_lane + lane) * rows;
        add_bias(y, query ? layer.vector(WeightRole::kQBias) : layer.vector(WeightRole::kKBias),
                 first, count);
        float* out = f.exchange.unnormed() + before + first;
        for (int64_t t = 0; t < width; ++t) {
          std::memcpy(out + t * both, y + t * count, floats(count));
        }
        f.exchange.wrote(w.index, out, count, width, both);
      });
      continue;
    }
    if (part.role == WeightRole::kQ && a.gate) {
      multiply(f, w, phase, i, [&](int64_t lane, int64_t first, int64_t count, float* y) {
        store_gated_queries(f, w, phase, w.first_lane + lane, first, count, y);
      });
      continue;
    }
    if (part.role == WeightRole::kQ) {
      multiply(f, w, phase, i, [&](int64_t lane, int64_t first, int64_t count, float* y) {
        const int64_t owner = w.first_lane + lane;
        add_bias(y, layer.vector(WeightRole::kQBias), owner * rows + first, count);
        finish(y, layer.vector(WeightRole::kQNorm), first, count);
        for (int64_t t = 0; t < width; ++t) {
          temper(f, a, t, y + t * count, count);
          float* q = f.buffer(PlanBuffer::kQuery) + (owner * h.max_width + t) * rows + first;
          std::memcpy(q, y + t * count, floats(count));
        }
      });
      continue;
    }
    const bool key = part.role == WeightRole::kK, both = key && a.key_is_value;
    const float* bias = key ? layer.vector(WeightRole::kKBias) : layer.vector(WeightRole::kVBias);
    multiply(f, w, phase, i, [&](int64_t lane, int64_t first, int64_t count, float* y) {
      const int64_t owner = w.first_lane + lane;
      add_bias(y, bias, owner * rows + first, count);
      if (!key || both) store_values(f, w, phase, owner * rows + first, count, y);
      if (!key) return;
      finish(y, layer.vector(WeightRole::kKNorm), first, count);
      for (int64_t t = 0; t < width; ++t) {
        store_key_or_value(f, phase, true, t, owner * rows + first, y + t * count, count);
      }
    });
  }
}

// Norms the queries and the keys of each token, each over all heads of all lanes, and turns and
// stores the own heads. Every worker sums the squares of all, in the same order: adding them up
// again takes less than a second wait would.
void run_norm_qk(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const PlanAttention& a = f.module(phase).attention;
  const WeightsByRole& layer = f.weights.of(phase.layer);
  const PlanShare units = share(f, w, phase.units);  // heads, lane by lane: of Q and then of K
  const int64_t dim = a.head_dim, heads = a.heads / h.lanes, kv_heads = a.kv_heads / h.lanes;
  float* normed = Scratch(w).take(a.heads * dim);
  // Own heads begin .. end - 1 of a lane's, whose first is at `before` among its units.
  const auto own = [&](int64_t lane, int64_t before, int64_t count, auto store) {
    const int64_t first = lane * (heads + kv_heads) + before;
    const int64_t begin = std::max<int64_t>(units.begin - first, 0);
    const int64_t end = std::min<int64_t>(units.end - first, count);
    if (begin < end) store(w.first_lane + lane, begin, end);
  };
  const auto norm = [&](const float* x, const float* scale, int64_t columns) {
    f.kernels.rms_norm(x, columns, scale, h.norm_eps, columns, 1, normed, columns);
  };
  if (units.begin == units.end) return;
  for (int64_t t = 0; t < f.pass.width; ++t) {
    const float* x = f.exchange.unnormed() + t * (a.heads + a.kv_heads) * dim;
    norm(x, layer.vector(WeightRole::kQNorm), a.heads * dim);
    for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
      own(lane, 0, heads, [&](int64_t owner, int64_t begin, int64_t end) {
        float* y = normed + (owner * heads + begin) * dim;
        rotate(f, w, phase, y, t, begin * dim, (end - begin) * dim);
        temper(f, a, t, y, (end - begin) * dim);
        float* q = f.buffer(PlanBuffer::kQuery) + ((owner * h.max_width + t) * heads + begin) * dim;
        std::memcpy(q, y, floats((end - begin) * dim));
      });
    }
    norm(x + a.heads * dim, layer.vector(WeightRole::kKNorm), a.kv_heads * dim);
    for (int64_t lane = 0; lane < h.group_lanes; ++lane) {
      own(lane, heads, kv_heads, [&](int64_t owner, int64_t begin, int64_t end) {
        const int64_t first = (owner * kv_heads + begin) * dim, count = (end - begin) * dim;
        rotate(f, w, phase, normed + first, t, begin * dim, count);
        store_key_or_value(f, phase, true, t, first, normed + first, count);
      });
    }
  }
}

}  // namespace monolane

// What a worker does where attention is latent (ops/attention/latent.py), in the absorbed form:
// queries are multiplied by each head's K_UP and meet the latents themselves, which are the keys of
// one KV head, and without their last part its values. V_UP is applied to what attention makes of
// them. Such models have one lane, hence one group.
#include <algorithm>
#include <cstring>

#include "ops/attention.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/rotary.h"
#include "ops/stream.h"

namespace monolane {
namespace {

// Of a row of kLatents: what queries are made of, then a latent and the key that turns.
int64_t columns_of(const PlanModule& m) {
  return int64_t{m.latent.query_rank} + m.attention.head_dim;
}

// Numbers of a key that turn: they are behind its latent.
int64_t turned_of(const PlanModule& m) { return int64_t{m.attention.head_dim} - m.latent.rank; }

// Puts the latent of each token, normed, and the turned key behind it into the cache. One worker
// does: it is about a thousand numbers a token.
void store_latents(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanModule& module = f.module(phase);
  const PlanAttention& a = module.attention;
  const PlanLatent& l = module.latent;
  const WeightsByRole& layer = f.weights.of(phase.layer);
  const int64_t turned = turned_of(module);
  float* line = Scratch(w).take(a.head_dim);
  for (int64_t t = 0; t < f.pass.width; ++t) {
    const float* x = f.buffer(PlanBuffer::kLatents) + t * columns_of(module) + l.query_rank;
    f.kernels.rms_norm(x, a.head_dim, layer.vector(WeightRole::kKNorm), l.norm_eps, l.rank, 1, line,
                       a.head_dim);
    std::memcpy(line + l.rank, x + l.rank, floats(turned));
    rotate(f, w, phase, line + l.rank, t, 0, turned);
    const Row& token = f.pass.rows[t];
    f.kernels.store_kv(line, a.head_dim, f.cache.format(),
                       f.cache.key(token.slot, phase.layer, 0, token.position));
  }
}

}  // namespace

// The products that latents are made of. What queries are made of where they have no latent stays
// in `normed`, or in the stream, until the next phase.
void run_latent(Forward& f, Worker& w, const PlanPhase& phase) {
  update(f, w, phase);
  read_stream(f, w, phase);
  store_side_by_side(f, w, phase, f.buffer(PlanBuffer::kLatents), columns_of(f.module(phase)));
}

void run_expand(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanModule& module = f.module(phase);
  const PlanAttention& a = module.attention;
  const PlanLatent& l = module.latent;
  if (w.index == 0) store_latents(f, w, phase);
  const PlanMatrix &queries = phase.matrices[0], &ups = phase.matrices[1];
  const PlanShare own = share(f, w, ups.share);
  if (own.begin == own.end) return;
  const int64_t width = f.pass.width, plain = ups.columns;
  const int64_t turned = turned_of(module), query = plain + turned;
  float* normed = w.normed->as<float>();
  const float* x = module.norm != WeightRole::kNone ? normed : w.x->as<float>();
  if (l.query_rank > 0) {
    f.kernels.rms_norm(f.buffer(PlanBuffer::kLatents), columns_of(module),
                       f.weights.of(phase.layer).vector(WeightRole::kQNorm), l.norm_eps,
                       l.query_rank, width, normed, l.query_rank);
    x = normed;
  }
  const Activation kind = f.activation_of(rows(f, w, phase, 0));
  f.kernels.pack(kind, x, queries.columns, width, w.packed_lane(kind, 0, width));
  multiply(f, w, phase, 0, [&](int64_t, int64_t, int64_t count, float* y) {
    const OwnRows& up = rows(f, w, phase, 1);
    const Activation up_kind = f.activation_of(up);
    void* packed = w.packed_lane(up_kind, 0, width);
    const int64_t stride = int64_t{a.heads} * a.head_dim;
    for (int64_t t = 0; t < width; ++t) temper(f, a, t, y + t * count, count);
    for (int64_t head = 0; head < count / query; ++head) {
      float* out = f.buffer(PlanBuffer::kQuery) + (own.begin / ups.rows + head) * a.head_dim;
      for (int64_t t = 0; t < width; ++t) {
        float* q = y + t * count + head * query;
        std::memcpy(normed + t * plain, q, floats(plain));
        rotate(f, w, phase, q + plain, t, 0, turned);
        std::memcpy(out + t * stride + l.rank, q + plain, floats(turned));
      }
      f.kernels.pack(up_kind, normed, plain, width, packed);
      product(f, up, head * ups.rows, (head + 1) * ups.rows, up_kind, packed, width, out, stride);
    }
  });
}

void run_values(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanModule& module = f.module(phase);
  const PlanAttention& a = module.attention;
  const PlanLatent& l = module.latent;
  const PlanMatrix& part = phase.matrices[0];
  const PlanShare own = share(f, w, part.share);
  const OwnRows& matrix = rows(f, w, phase, 0);
  const Activation kind = f.activation_of(matrix);
  const int64_t width = f.pass.width, columns = int64_t{a.heads} * part.rows;
  float* normed = w.normed->as<float>();
  for (int64_t row = own.begin; row < own.end;) {
    const int64_t head = row / part.rows;
    const int64_t end = std::min<int64_t>(own.end, (head + 1) * part.rows);
    for (int64_t t = 0; t < width; ++t) {
      merge_head(f, phase, 0, head, t, l.rank, normed + t * l.rank);
    }
    void* packed = w.packed_lane(kind, 0, width);
    f.kernels.pack(kind, normed, l.rank, width, packed);
    product(f, matrix, row - own.begin, end - own.begin, kind, packed, width,
            f.buffer(PlanBuffer::kHeads) + row, columns);
    row = end;
  }
}

}  // namespace monolane

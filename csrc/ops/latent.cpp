// What a worker does where attention is latent (model/_latent.py), in the absorbed form: queries
// are multiplied by each head's K_UP and meet the latents themselves, which are the keys of one KV
// head, and without their last part its values. V_UP is applied to what attention makes of them.
// Such models have one lane, hence one group.
#include <algorithm>
#include <cstring>

#include "ops/attention.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/rotary.h"
#include "ops/stream.h"

namespace monolane {
namespace {

// Puts the latent of each token, normed, and the turned key behind it into the cache. One worker
// does: it is about a thousand numbers a token.
void store_latents(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const LayerWeights& layer = f.weights.layers[phase.layer];
  float* line = w.partial->as<float>();
  for (int64_t t = 0; t < f.pass.width; ++t) {
    const float* x = f.latents->as<float>() + t * f.latent_columns() + h.query_latent;
    f.kernels.rms_norm(x, h.head_dim, layer.k_norm, h.latent_eps, h.latent, 1, line, h.head_dim);
    std::memcpy(line + h.latent, x + h.latent, floats(h.rotary_dim));
    rotate(f, w, phase.rotary, line + h.latent, t, 0, h.rotary_dim);
    const Row& token = f.pass.rows[t];
    f.kernels.store_kv(line, h.head_dim, f.cache.format(),
                       f.cache.key(token.slot, phase.layer, 0, token.position));
  }
}

}  // namespace

// The products that latents are made of. What queries are made of where they have no latent stays
// in `normed`, or in the stream, until the next phase.
void run_latent(Forward& f, Worker& w, const PlanPhase& phase) {
  update(f, w, phase);
  read_stream(f, w, phase, f.weights.layers[phase.layer].attention_norm);
  store_side_by_side(f, w, phase, f.latents->as<float>(), f.latent_columns());
}

void run_expand(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  if (w.index == 0) store_latents(f, w, phase);
  const PlanMatrix &queries = phase.matrices[0], &ups = phase.matrices[1];
  const PlanShare own = share(f, w, ups.share);
  if (own.begin == own.end) return;
  const int64_t width = f.pass.width, plain = ups.columns, query = plain + h.rotary_dim;
  float* normed = w.normed->as<float>();
  const float* x = h.norm_before ? normed : w.x->as<float>();
  if (h.query_latent > 0) {
    f.kernels.rms_norm(f.latents->as<float>(), f.latent_columns(),
                       f.weights.layers[phase.layer].q_norm, h.latent_eps, h.query_latent, width,
                       normed, h.query_latent);
    x = normed;
  }
  const Activation kind = f.activation_of(rows(f, w, phase, 0));
  f.kernels.pack(kind, x, queries.columns, width, w.packed_lane(kind, 0, width));
  multiply(f, w, phase, 0, [&](int64_t, int64_t, int64_t count, float* y) {
    const Matrix& up = rows(f, w, phase, 1);
    const Activation up_kind = f.activation_of(up);
    void* packed = w.packed_lane(up_kind, 0, width);
    const int64_t stride = int64_t{h.heads} * h.head_dim;
    for (int64_t head = 0; head < count / query; ++head) {
      float* out = f.query->as<float>() + (own.begin / ups.rows + head) * h.head_dim;
      for (int64_t t = 0; t < width; ++t) {
        float* q = y + t * count + head * query;
        std::memcpy(normed + t * plain, q, floats(plain));
        rotate(f, w, phase.rotary, q + plain, t, 0, h.rotary_dim);
        std::memcpy(out + t * stride + h.latent, q + plain, floats(h.rotary_dim));
      }
      f.kernels.pack(up_kind, normed, plain, width, packed);
      product(f, up, head * ups.rows, (head + 1) * ups.rows, up_kind, packed, width, out, stride);
    }
  });
}

void run_values(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const PlanMatrix& part = phase.matrices[0];
  const PlanShare own = share(f, w, part.share);
  const Matrix& matrix = rows(f, w, phase, 0);
  const Activation kind = f.activation_of(matrix);
  const int64_t width = f.pass.width, columns = int64_t{h.heads} * part.rows;
  float* normed = w.normed->as<float>();
  for (int64_t row = own.begin; row < own.end;) {
    const int64_t head = row / part.rows;
    const int64_t end = std::min<int64_t>(own.end, (head + 1) * part.rows);
    for (int64_t t = 0; t < width; ++t) {
      merge_head(f, f.weights.layers[phase.layer].sinks, 0, head, t, h.latent,
                 normed + t * h.latent);
    }
    void* packed = w.packed_lane(kind, 0, width);
    f.kernels.pack(kind, normed, h.latent, width, packed);
    product(f, matrix, row - own.begin, end - own.begin, kind, packed, width,
            f.heads->as<float>() + row, columns);
    row = end;
  }
}

}  // namespace monolane

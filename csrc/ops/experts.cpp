// What a worker does where an MLP is a mixture of experts: the router's logits, then of each chosen
// expert the own rows, for all tokens that it serves at once, so that each row is read once a pass.
// Such models have one lane, hence one group. router.h tells what is chosen.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/elementwise.h"
#include "ops/gate.h"
#include "ops/operations.h"
#include "ops/products.h"
#include "ops/stream.h"

namespace monolane {
namespace {

// Of a row of kHidden: what a token's experts make, then what is shared.
int64_t columns_of(const PlanExperts& e) { return int64_t{e.chosen} * e.inner + e.shared; }

// Of biases [E, rows] those of an expert from row `first` on; null where there are none.
const float* bias_of(const float* biases, int64_t rows, int64_t expert, int64_t first) {
  return biases == nullptr ? nullptr : biases + expert * rows + first;
}

// The packed activations of an expert's tokens, one behind the other.
const void* gather_tokens(Forward& f, const Worker& w, Activation kind, int64_t columns,
                          std::span<const Router::Use> uses) {
  const char* packed = static_cast<const char*>(w.packed_lane(kind, 0, f.pass.width));
  if (static_cast<int64_t>(uses.size()) == f.pass.width) return packed;
  const int64_t bytes = f.kernels.packed_bytes(kind, columns);
  char* out = w.gathered->as<char>();
  for (const Router::Use& use : uses) {
    std::memcpy(out, packed + use.token * bytes, bytes);
    out += bytes;
  }
  return w.gathered->as<char>();
}

// The experts of any token, in ascending order, and has those be read that are not in memory.
void choose_experts(Forward& f, Worker& w, const PlanPhase& phase) {
  w.router.choose(f.module(phase).experts, f.buffer(PlanBuffer::kRouted),
                  f.weights.of(phase.layer).vector(WeightRole::kRouterCorrection),
                  f.weights.of(phase.layer).vector(WeightRole::kExpertScales), f.pass.width);
  w.chosen.clear();
  for (int64_t expert = 0; expert < f.module(phase).experts.count; ++expert) {
    if (!w.router.of(expert).empty()) w.chosen.push_back(expert);
  }
  w.order =
      w.weights.experts() == nullptr ? w.chosen : w.weights.use_experts(phase.layer, w.chosen);
}

// Of the MLP that all tokens share, whose rows are shared out by themselves.
void shared_gate_up(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanExperts& e = f.module(phase).experts;
  const int64_t width = f.pass.width, before = int64_t{e.chosen} * e.inner;
  if (!is_gated(e.activation)) {
    multiply(f, w, phase, 1, [&](int64_t, int64_t first, int64_t count, const float* up) {
      for (int64_t t = 0; t < width; ++t) {
        relu_squared(up + t * count, count,
                     f.buffer(PlanBuffer::kHidden) + t * columns_of(e) + before + first);
      }
    });
    return;
  }
  const GateUp gate_up = gate_up_of(f.kernels, e.activation);
  const OwnRows& up_rows = rows(f, w, phase, 3);
  const Activation up_kind = f.activation_of(up_rows);
  multiply(f, w, phase, 2, [&](int64_t, int64_t first, int64_t count, float* gate) {
    float* up = gate + width * count;
    product(f, up_rows, 0, count, up_kind, w.packed_lane(up_kind, 0, width), width, up, count);
    for (int64_t t = 0; t < width; ++t) {
      float* hidden = f.buffer(PlanBuffer::kHidden) + t * columns_of(e) + before + first;
      gate_up(gate + t * count, up + t * count, count, hidden);
    }
  });
}

}  // namespace

// The activations are float32 whatever the model's arithmetic is. What the experts read, too, stays
// in `normed` until the next phase.
void run_route(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const PlanExperts& e = f.module(phase).experts;
  const int64_t width = f.pass.width;
  update(f, w, phase);
  const PlanShare own = share(f, w, phase.matrices[0].share);
  void* packed = w.packed_lane(Activation::kF32, 0, width);
  const auto pack_normed = [&] {
    f.kernels.pack(Activation::kF32, w.normed->as<float>(), h.hidden, width, packed);
  };
  if (e.router_norm) {
    const float* scale = f.weights.of(phase.layer).vector(WeightRole::kRouterNorm);
    float* normed = w.normed->as<float>();
    f.kernels.rms_norm(w.x->as<float>(), h.hidden, scale, h.norm_eps, h.hidden, width, normed,
                       h.hidden);
    scale_by(normed, 1.0f / std::sqrt(static_cast<float>(h.hidden)), width * h.hidden);
    pack_normed();
  }
  if (const WeightRole norm = f.module(phase).norm; norm != WeightRole::kNone) {
    norm_stream(f, w.x->as<float>(), f.weights.of(phase.layer).vector(norm), width,
                w.normed->as<float>());
  } else {
    std::memcpy(w.normed->as<float>(), w.x->as<float>(), floats(width * h.hidden));
  }
  if (own.begin == own.end) return;
  if (!e.router_norm) pack_normed();
  product(f, rows(f, w, phase, 0), 0, own.end - own.begin, Activation::kF32, packed, width,
          f.buffer(PlanBuffer::kRouted) + own.begin, e.count);
  const float* bias = f.weights.of(phase.layer).vector(WeightRole::kRouterBias);
  if (bias == nullptr) return;
  for (int64_t t = 0; t < width; ++t) {
    add_bias(f.buffer(PlanBuffer::kRouted) + t * e.count + own.begin, bias + own.begin, 1,
             own.end - own.begin);
  }
}

void run_expert_gate_up(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const PlanExperts& e = f.module(phase).experts;
  const WeightsByRole& layer = f.weights.of(phase.layer);
  const bool gated = is_gated(e.activation);
  const GateUp gate_up = gate_up_of(f.kernels, e.activation);
  const int64_t matrices = gated ? 2 : 1;  // gate and up, or up alone
  choose_experts(f, w, phase);
  w.weights.prefetch(f.index_of(phase), 0, w.order.front());
  w.router.weigh_shared(w.normed->as<float>(), layer.vector(WeightRole::kSharedExpertGate),
                        h.hidden, f.pass.width);
  pack(f, w, phase, w.normed->as<float>(), h.hidden, 0, f.pass.width);
  if (e.shared > 0) shared_gate_up(f, w, phase);
  const PlanShare own = share(f, w, phase.matrices[0].share);  // UP has the same rows
  const int64_t count = own.end - own.begin;
  if (count == 0) return;
  ExpertCache* stowed = w.weights.experts();
  for (size_t n = 0; n < w.order.size(); ++n) {
    const int64_t expert = w.order[n];
    const std::span<const Router::Use> uses = w.router.of(expert);
    const int64_t width = static_cast<int64_t>(uses.size());
    if (stowed != nullptr) stowed->await(expert, ExpertCache::kInner);
    float* gate = w.product->as<float>();
    float* up = gate + (gated ? width * count : 0);
    for (int64_t i = 0; i < matrices; ++i) {
      const OwnRows& matrix = rows(f, w, phase, i, expert);
      const Activation kind = f.activation_of(matrix);
      if (i + 1 < matrices) {
        w.weights.prefetch(f.index_of(phase), i + 1, expert);
      } else if (n + 1 < w.order.size()) {
        w.weights.prefetch(f.index_of(phase), 0, w.order[n + 1]);
      }
      product(f, matrix, 0, count, kind, gather_tokens(f, w, kind, h.hidden, uses), width,
              i + 1 < matrices ? gate : up, count);
    }
    const int64_t inner = e.inner;
    if (gated)
      add_bias(gate, bias_of(layer.vector(WeightRole::kExpertGateBias), inner, expert, own.begin),
               width, count);
    add_bias(up, bias_of(layer.vector(WeightRole::kExpertUpBias), inner, expert, own.begin), width,
             count);
    for (const Router::Use& use : uses) {
      // Products of what is read stand for it: so no input is packed anew for an expert.
      if (e.weigh_inputs && gated) scale_by(gate, use.weight, count);
      if (e.weigh_inputs) scale_by(up, use.weight, count);
      const int64_t place = use.place * inner + own.begin;
      float* hidden = f.buffer(PlanBuffer::kHidden) + use.token * columns_of(e) + place;
      gated ? gate_up(gate, up, count, hidden) : relu_squared(up, count, hidden);
      gate += count;
      up += count;
    }
    if (stowed != nullptr) stowed->release(expert, ExpertCache::kInner);
  }
}

// The outputs of a token's experts are added up in ascending order, from 0 on, then what is shared.
void run_expert_down(Forward& f, Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = f.plan.header;
  const PlanExperts& e = f.module(phase).experts;
  const PlanShare own = share(f, w, phase.matrices[0].share);
  const int64_t count = own.end - own.begin, hidden = h.hidden, inner = e.inner;
  if (count == 0) return;
  float* out = output(f, f.module(phase).output, phase.write_slot, 0) + own.begin;
  for (int64_t t = 0; t < f.pass.width; ++t) std::fill_n(out + t * hidden, count, 0.0f);
  ExpertCache* stowed = w.weights.experts();
  if (stowed != nullptr) stowed->begin_outer();
  for (size_t n = 0; n < w.chosen.size(); ++n) {
    const int64_t expert = w.chosen[n];
    if (n + 1 < w.chosen.size()) w.weights.prefetch(f.index_of(phase), 0, w.chosen[n + 1]);
    const std::span<const Router::Use> uses = w.router.of(expert);
    const int64_t width = static_cast<int64_t>(uses.size());
    float* x = w.normed->as<float>();
    for (const Router::Use& use : uses) {
      const int64_t from = use.token * columns_of(e) + use.place * inner;
      std::memcpy(x, f.buffer(PlanBuffer::kHidden) + from, floats(inner));
      x += inner;
    }
    const OwnRows& matrix = rows(f, w, phase, 0, expert);
    const Activation kind = f.activation_of(matrix);
    f.kernels.pack(kind, w.normed->as<float>(), inner, width, w.packed_lane(kind, 0, width));
    if (stowed != nullptr) stowed->await(expert, ExpertCache::kOuter);
    float* y = w.product->as<float>();
    product(f, matrix, 0, count, kind, w.packed_lane(kind, 0, width), width, y, count);
    const float* biases = f.weights.of(phase.layer).vector(WeightRole::kExpertDownBias);
    add_bias(y, bias_of(biases, hidden, expert, own.begin), width, count);
    for (const Router::Use& use : uses) {
      add_scaled_to(out + use.token * hidden, y, e.weigh_inputs ? 1.0f : use.weight, count);
      y += count;
    }
    if (stowed != nullptr) stowed->release(expert, ExpertCache::kOuter);
  }
  if (e.shared > 0) {
    const OwnRows& matrix = rows(f, w, phase, 1);  // the same rows
    const Activation kind = f.activation_of(matrix);
    float* x = w.normed->as<float>();
    for (int64_t t = 0; t < f.pass.width; ++t) {
      const float* from =
          f.buffer(PlanBuffer::kHidden) + t * columns_of(e) + int64_t{e.chosen} * inner;
      std::memcpy(x + t * e.shared, from, floats(e.shared));
    }
    void* packed = w.packed_lane(kind, 0, f.pass.width);
    f.kernels.pack(kind, x, e.shared, f.pass.width, packed);
    float* y = w.product->as<float>();
    product(f, matrix, 0, count, kind, packed, f.pass.width, y, count);
    for (int64_t t = 0; t < f.pass.width; ++t) {
      add_scaled_to(out + t * hidden, y + t * count, w.router.shared(t), count);
    }
  }
  f.exchange.wrote(w.index, out, count, f.pass.width, hidden);
}

}  // namespace monolane

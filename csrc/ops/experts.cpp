// What a worker does where an MLP is a mixture of experts: the router's logits, then of each chosen
// expert the own rows, for all tokens that it serves at once, so that each row is read once a pass.
// Such models have one lane, hence one group. router.h tells what is chosen.
#include <algorithm>
#include <cstring>

#include "kernels/elementwise.h"
#include "ops/worker.h"

namespace monolane {
namespace {

// Of biases [E, rows] those of an expert from row `first` on; null where there are none.
const float* bias_of(const float* biases, int64_t rows, int64_t expert, int64_t first) {
  return biases == nullptr ? nullptr : biases + expert * rows + first;
}

}  // namespace

// The activations are float32 whatever the model's arithmetic is. What the experts read, too, stays
// in `normed` until the next phase.
void Executor::run_route(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const int64_t width = pass_.width;
  update(w, phase);
  if (h.norm_before) {
    kernels_.rms_norm(w.x->as<float>(), h.hidden, weights_.layers[phase.layer].mlp_norm, h.norm_eps,
                      h.hidden, width, w.normed->as<float>(), h.hidden);
  } else {
    std::memcpy(w.normed->as<float>(), w.x->as<float>(), floats(width * h.hidden));
  }
  const PlanShare own = share(w, phase.matrices[0].share);
  if (own.begin == own.end) return;
  void* packed = w.packed_lane(Activation::kF32, 0, width);
  kernels_.pack(Activation::kF32, w.normed->as<float>(), h.hidden, width, packed);
  product(rows(w, phase, 0), 0, own.end - own.begin, Activation::kF32, packed, width,
          routed_->as<float>() + own.begin, h.experts);
  const float* bias = weights_.layers[phase.layer].router_bias;
  if (bias == nullptr) return;
  for (int64_t t = 0; t < width; ++t) {
    add_bias(routed_->as<float>() + t * h.experts + own.begin, bias + own.begin, 1,
             own.end - own.begin);
  }
}

// The packed activations of an expert's tokens, one behind the other.
const void* Executor::gather_tokens(const Worker& w, Activation kind, int64_t columns,
                                    std::span<const Routing::Use> uses) const {
  const char* packed = static_cast<const char*>(w.packed_lane(kind, 0, pass_.width));
  if (static_cast<int64_t>(uses.size()) == pass_.width) return packed;
  const int64_t bytes = kernels_.packed_bytes(kind, columns);
  char* out = w.gathered->as<char>();
  for (const Routing::Use& use : uses) {
    std::memcpy(out, packed + use.token * bytes, bytes);
    out += bytes;
  }
  return w.gathered->as<char>();
}

// The experts of any token, in ascending order, and has those be read that are not in memory.
void Executor::choose_experts(Worker& w, const PlanPhase& phase) {
  w.routing.choose(routed_->as<float>(), weights_.layers[phase.layer].router_correction,
                   pass_.width);
  w.chosen.clear();
  for (int64_t expert = 0; expert < plan_.header.experts; ++expert) {
    if (!w.routing.of(expert).empty()) w.chosen.push_back(expert);
  }
  w.order =
      w.weights.experts() == nullptr ? w.chosen : w.weights.use_experts(phase.layer, w.chosen);
}

void Executor::run_expert_gate_up(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const LayerWeights& layer = weights_.layers[phase.layer];
  choose_experts(w, phase);
  w.weights.prefetch(index_of(phase), 0, w.order.front());
  w.routing.weigh_shared(w.normed->as<float>(), layer.shared_expert_gate, pass_.width);
  pack(w, phase, w.normed->as<float>(), h.hidden, 0, pass_.width);
  if (h.shared_inner > 0) shared_gate_up(w, phase);
  const PlanShare own = share(w, phase.matrices[0].share);  // UP has the same rows
  const int64_t count = own.end - own.begin;
  if (count == 0) return;
  ExpertCache* stowed = w.weights.experts();
  for (size_t n = 0; n < w.order.size(); ++n) {
    const int64_t expert = w.order[n];
    const std::span<const Routing::Use> uses = w.routing.of(expert);
    const int64_t width = static_cast<int64_t>(uses.size());
    if (stowed != nullptr) stowed->await(expert, ExpertCache::kInner);
    float* gate = w.product->as<float>();
    float* up = gate + width * count;
    for (const int64_t i : {0, 1}) {
      const Matrix& matrix = rows(w, phase, i, expert);
      const Activation kind = activation_of(matrix);
      if (i == 0) {
        w.weights.prefetch(index_of(phase), 1, expert);
      } else if (n + 1 < w.order.size()) {
        w.weights.prefetch(index_of(phase), 0, w.order[n + 1]);
      }
      product(matrix, 0, count, kind, gather_tokens(w, kind, h.hidden, uses), width,
              i == 0 ? gate : up, count);
    }
    const int64_t inner = h.expert_inner;
    add_bias(gate, bias_of(layer.expert_gate_bias, inner, expert, own.begin), width, count);
    add_bias(up, bias_of(layer.expert_up_bias, inner, expert, own.begin), width, count);
    for (const Routing::Use& use : uses) {
      const int64_t place = use.place * inner + own.begin;
      gate_up_(gate, up, count,
               hidden_->as<float>() + use.token * int64_t{h.hidden_columns} + place);
      gate += count;
      up += count;
    }
    if (stowed != nullptr) stowed->release(expert, ExpertCache::kInner);
  }
}

// Of the MLP that all tokens share, whose rows are shared out by themselves.
void Executor::shared_gate_up(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const int64_t width = pass_.width, before = int64_t{h.chosen} * h.expert_inner;
  const Matrix& up_rows = rows(w, phase, 3);
  const Activation up_kind = activation_of(up_rows);
  multiply(w, phase, 2, [&](int64_t, int64_t first, int64_t count, float* gate) {
    float* up = gate + width * count;
    product(up_rows, 0, count, up_kind, w.packed_lane(up_kind, 0, width), width, up, count);
    for (int64_t t = 0; t < width; ++t) {
      float* hidden = hidden_->as<float>() + t * h.hidden_columns + before + first;
      gate_up_(gate + t * count, up + t * count, count, hidden);
    }
  });
}

// The outputs of a token's experts are added up in ascending order, from 0 on, then what is shared.
void Executor::run_expert_down(Worker& w, const PlanPhase& phase) {
  const PlanHeader& h = plan_.header;
  const PlanShare own = share(w, phase.matrices[0].share);
  const int64_t count = own.end - own.begin, hidden = h.hidden, inner = h.expert_inner;
  if (count == 0) return;
  float* out = output(PlanBuffer::kMlpOutput, phase.write_slot, 0) + own.begin;
  for (int64_t t = 0; t < pass_.width; ++t) std::fill_n(out + t * hidden, count, 0.0f);
  ExpertCache* stowed = w.weights.experts();
  if (stowed != nullptr) stowed->begin_outer();
  for (size_t n = 0; n < w.chosen.size(); ++n) {
    const int64_t expert = w.chosen[n];
    if (n + 1 < w.chosen.size()) w.weights.prefetch(index_of(phase), 0, w.chosen[n + 1]);
    const std::span<const Routing::Use> uses = w.routing.of(expert);
    const int64_t width = static_cast<int64_t>(uses.size());
    float* x = w.normed->as<float>();
    for (const Routing::Use& use : uses) {
      const int64_t from = use.token * int64_t{h.hidden_columns} + use.place * inner;
      std::memcpy(x, hidden_->as<float>() + from, floats(inner));
      x += inner;
    }
    const Matrix& matrix = rows(w, phase, 0, expert);
    const Activation kind = activation_of(matrix);
    kernels_.pack(kind, w.normed->as<float>(), inner, width, w.packed_lane(kind, 0, width));
    if (stowed != nullptr) stowed->await(expert, ExpertCache::kOuter);
    float* y = w.product->as<float>();
    product(matrix, 0, count, kind, w.packed_lane(kind, 0, width), width, y, count);
    const float* biases = weights_.layers[phase.layer].expert_down_bias;
    add_bias(y, bias_of(biases, hidden, expert, own.begin), width, count);
    for (const Routing::Use& use : uses) {
      add_scaled_to(out + use.token * hidden, y, use.weight, count);
      y += count;
    }
    if (stowed != nullptr) stowed->release(expert, ExpertCache::kOuter);
  }
  if (h.shared_inner > 0) {
    const Matrix& matrix = rows(w, phase, 1);  // the same rows
    const Activation kind = activation_of(matrix);
    float* x = w.normed->as<float>();
    for (int64_t t = 0; t < pass_.width; ++t) {
      const float* from = hidden_->as<float>() + t * h.hidden_columns + int64_t{h.chosen} * inner;
      std::memcpy(x + t * h.shared_inner, from, floats(h.shared_inner));
    }
    void* packed = w.packed_lane(kind, 0, pass_.width);
    kernels_.pack(kind, x, h.shared_inner, pass_.width, packed);
    float* y = w.product->as<float>();
    product(matrix, 0, count, kind, packed, pass_.width, y, count);
    for (int64_t t = 0; t < pass_.width; ++t) {
      add_scaled_to(out + t * hidden, y + t * count, w.routing.shared(t), count);
    }
  }
  exchange_.wrote(w.index, out, count, pass_.width, hidden);
}

}  // namespace monolane

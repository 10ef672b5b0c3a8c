#include "ops/worker.h"

#include <algorithm>

namespace monolane {

Worker::Worker(const Forward& f, int worker, std::optional<size_t> expert_memory)
    : index(worker),
      group(worker / f.plan.header.group_workers),
      weights(f.plan, f.weights, worker, expert_memory),
      router(f.plan.header) {
  const Plan& plan = f.plan;
  const PlanHeader& h = plan.header;
  const int64_t lanes = h.group_lanes, width = h.max_width;
  first_lane = group * lanes;
  first_worker = group * h.group_workers;
  const int64_t concat = h.head == PlanHead::kConcat ? int64_t{h.lanes} * h.hidden : 0;
  int64_t columns = std::max<int64_t>({h.hidden, concat, h.latent});  // of any activations
  for (const PlanPhase& phase : plan.phases) {
    for (int32_t i = 0; i < phase.num_matrices; ++i) {
      columns = std::max<int64_t>(columns, phase.matrices[i].columns);
    }
  }
  // The kinds in which activations are packed: one, unless formats are mixed.
  int64_t packed_bytes = 0;
  for (const PlanPhase& phase : plan.phases) {
    for (int32_t i = 0; i < phase.num_matrices; ++i) {
      const WeightRole role = phase.matrices[i].role;
      const Weight& weight = f.weights.weight(role, phase.layer);
      const Activation wanted = role == WeightRole::kRouter ? Activation::kF32 : f.activation;
      token_bytes[static_cast<int>(activation_for(weight.format, wanted))] = 1;
    }
  }
  for (int kind = 0; kind < kKinds; ++kind) {
    if (token_bytes[kind] == 0) continue;
    first_byte[kind] = packed_bytes;
    token_bytes[kind] = f.kernels.packed_bytes(static_cast<Activation>(kind), columns);
    packed_bytes += lanes * width * token_bytes[kind];
  }
  if (h.experts > 0) {
    const int64_t most = *std::max_element(token_bytes, token_bytes + kKinds);
    gathered = std::make_unique<Arena>(static_cast<size_t>(width * most));
  }
  int64_t rows = 0;  // of the largest share of any phase
  for (const PlanShare& part : plan.shares) rows = std::max<int64_t>(rows, part.end - part.begin);

  x = std::make_unique<Arena>(floats(lanes * width * h.hidden));
  normed = std::make_unique<Arena>(
      floats(std::max<int64_t>(width * columns, int64_t{h.heads} * h.head_dim)));
  packed = std::make_unique<Arena>(static_cast<size_t>(packed_bytes));
  product = std::make_unique<Arena>(floats(2 * width * std::max<int64_t>(rows, 1)));
  sum = std::make_unique<Arena>(floats(h.hidden));
  const int64_t group = h.heads / h.kv_heads;
  scores =
      std::make_unique<Arena>(floats(kAttendQueries * scores_of(std::max<int64_t>(h.chunk, 1))));
  // 24 queries are whole tiles of 8, 6 and 4, whose partial sums stay in the first-level cache.
  attend_tokens = std::clamp<int64_t>(24 / group, 1, kMaxWidth);
  partial = std::make_unique<Arena>(
      floats(std::max<int64_t>(attend_tokens * group * (h.head_dim + 2), h.delta_value)));
  const DeltaSizes d(h);
  const int64_t tokens = d.before + 2 * int64_t{kPlanMaxWidth};
  inputs = std::make_unique<Arena>(floats(tokens * d.columns));
  channels = std::make_unique<Arena>(floats(d.channels));
  tried = std::make_unique<Arena>(floats(d.state));
  cosine = std::make_unique<Arena>(floats(kPlanRotaries * width * h.rotary_dim / 2));
  sine = std::make_unique<Arena>(floats(kPlanRotaries * width * h.rotary_dim / 2));
}

}  // namespace monolane

#include "ops/worker.h"

#include <algorithm>

#include "ops/attention.h"
#include "ops/rotary.h"

namespace monolane {

Worker::Worker(const Forward& f, int worker, std::optional<size_t> expert_memory)
    : index(worker),
      group(worker / f.plan.header.group_workers),
      weights(f.plan, f.weights, worker, expert_memory),
      router(f.plan.header.max_width) {
  const Plan& plan = f.plan;
  const PlanHeader& h = plan.header;
  const int64_t lanes = h.group_lanes, width = h.max_width;
  first_lane = group * lanes;
  first_worker = group * h.group_workers;
  const int64_t concat = h.head == PlanHead::kConcat ? int64_t{h.lanes} * h.hidden : 0;
  int64_t columns = std::max<int64_t>(h.hidden, concat);  // of any activations
  for (const PlanModule& m : plan.modules) columns = std::max<int64_t>(columns, m.latent.rank);
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
      const Weight& weight = f.weights.of(phase.layer).matrix(role);
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
  if (plan.most([](const PlanModule& m) { return m.experts.count; }) > 0) {
    const int64_t most = *std::max_element(token_bytes, token_bytes + kKinds);
    gathered = std::make_unique<Arena>(static_cast<size_t>(width * most));
  }
  int64_t rows = 0;  // of the largest share of any phase
  for (const PlanShare& part : plan.shares) rows = std::max<int64_t>(rows, part.end - part.begin);

  x = std::make_unique<Arena>(floats(lanes * width * h.hidden));
  normed = std::make_unique<Arena>(
      floats(std::max<int64_t>(width * columns, plan.most([](const PlanModule& m) {
        return int64_t{m.attention.heads} * m.attention.head_dim;
      }))));
  packed = std::make_unique<Arena>(static_cast<size_t>(packed_bytes));
  product = std::make_unique<Arena>(floats(2 * width * std::max<int64_t>(rows, 1)));
  sum = std::make_unique<Arena>(floats(h.hidden));
  scores =
      std::make_unique<Arena>(floats(kAttendQueries * scores_of(std::max<int64_t>(h.chunk, 1))));
  int64_t sums = 0;
  for (const PlanModule& m : plan.modules) {
    const PlanAttention& a = m.attention;
    if (a.heads == 0) continue;
    sums = std::max(sums, attended_at_once(a) * (a.heads / a.kv_heads) * (a.head_dim + 2));
  }
  sums = std::max(sums, plan.most([](const PlanModule& m) { return m.delta.value; }));
  partial = std::make_unique<Arena>(floats(sums));
  const auto most = [&](auto of) {
    return plan.most([&](const PlanModule& m) { return of(DeltaSizes(m.delta)); });
  };
  inputs = std::make_unique<Arena>(floats(most(
      [](const DeltaSizes& d) { return (d.before + 2 * int64_t{kPlanMaxWidth}) * d.columns; })));
  channels = std::make_unique<Arena>(floats(most([](const DeltaSizes& d) { return d.channels; })));
  tried = std::make_unique<Arena>(floats(most([](const DeltaSizes& d) { return d.state; })));
  const int64_t angles = kPlanRotaries * width * most_angles(h);
  cosine = std::make_unique<Arena>(floats(angles));
  sine = std::make_unique<Arena>(floats(angles));
}

}  // namespace monolane

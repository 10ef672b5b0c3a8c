#include "ops/worker.h"

#include <algorithm>

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
  for (const PlanPhase& phase : plan.phases) {
    for (int32_t i = 0; i < phase.num_matrices; ++i) {
      columns = std::max<int64_t>(columns, phase.matrices[i].columns);
    }
  }
  // The kinds in which activations are packed: one, unless formats are mixed.
  int64_t packed_bytes = 0;
  bool reads_of_each = false;  // some matrix that there is one of for each expert
  for (const PlanPhase& phase : plan.phases) {
    for (int32_t i = 0; i < phase.num_matrices; ++i) {
      const WeightRole role = phase.matrices[i].role;
      reads_of_each |= of_each(role);
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
  if (reads_of_each) {
    const int64_t most = *std::max_element(token_bytes, token_bytes + kKinds);
    gathered = std::make_unique<Arena>(static_cast<size_t>(width * most));
  }
  int64_t rows = 0;  // of the largest share of any phase
  for (const PlanShare& part : plan.shares) rows = std::max<int64_t>(rows, part.end - part.begin);

  x = std::make_unique<Arena>(floats(lanes * width * h.hidden));
  if (h.streams > 1) {
    streams = std::make_unique<Arena>(floats(h.streams * width * h.hidden));
    predicted = std::make_unique<Arena>(floats(int64_t{h.streams} * h.hidden));
  }
  normed = std::make_unique<Arena>(floats(width * columns));
  packed = std::make_unique<Arena>(static_cast<size_t>(packed_bytes));
  product = std::make_unique<Arena>(floats(2 * width * std::max<int64_t>(rows, 1)));
  sum = std::make_unique<Arena>(floats(2 * h.hidden));
  scores =
      std::make_unique<Arena>(floats(kAttendQueries * scores_of(std::max<int64_t>(h.chunk, 1))));
  scratch =
      std::make_unique<Arena>(floats(plan.most([](const PlanModule& m) { return m.scratch; })));
  const int64_t angles = kPlanRotaries * width * most_angles(h);
  cosine = std::make_unique<Arena>(floats(angles));
  sine = std::make_unique<Arena>(floats(angles));
}

}  // namespace monolane

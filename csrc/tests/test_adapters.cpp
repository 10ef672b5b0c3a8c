// Sequences of one adapter, of another and of none, in one batch.
#include "tests.h"

namespace monolane {
namespace {

// Numbers about as large as the weights of a case.
std::vector<float> numbers(int64_t count, uint32_t seed) {
  std::vector<float> found;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    found.push_back((static_cast<float>(seed >> 8) / 16777216.0f - 0.5f) * 0.6f);
  }
  return found;
}

// Has an adapter add to what each phase multiplies by that adapters reach; returns how many.
int add(Executor& executor, int adapter, int64_t rank) {
  const Plan& plan = executor.plan();
  int added = 0;
  for (const PlanPhase& phase : plan.phases) {
    const bool reached = phase.kind == PhaseKind::kQkv || phase.kind == PhaseKind::kOut ||
                         phase.kind == PhaseKind::kGateUp || phase.kind == PhaseKind::kDown ||
                         phase.kind == PhaseKind::kSparseGateUp ||
                         phase.kind == PhaseKind::kSparseDown;
    for (int32_t i = 0; reached && i < phase.num_matrices; ++i) {
      const PlanMatrix& matrix = phase.matrices[i];
      const int64_t each = plan.header.lanes * (rank + i);
      const uint32_t seed = static_cast<uint32_t>(100 * adapter + added++);
      executor.add_adapter(
          adapter, phase.layer, matrix.role,
          {rank + i, numbers(each * matrix.columns, seed), numbers(each * matrix.rows, ~seed)});
    }
  }
  return added;
}

}  // namespace

// `plain`: what test_batch drew without any.
void test_adapters(Executor& executor, const Drawn& plain) {
  clear(executor);
  if (add(executor, 1, 3) == 0) return;
  add(executor, 2, 17);
  EXPECT(test_batch(executor) == plain);
  clear(executor);
  executor.give_adapter(0, 2);
  executor.give_adapter(2, 1);
  const Drawn drawn = test_batch(executor);
  EXPECT(drawn.at(1) == plain.at(1) && drawn != plain);
  clear(executor);
  executor.give_adapter(0, 0);
  executor.give_adapter(2, 0);
  EXPECT(test_batch(executor) == plain);
}

}  // namespace monolane

// Drives the executor without Python, so that a sanitizer sees nothing but our own code: weights
// converted by the workers, epochs, batches, stops, drafts, a draft model, heads, assistants,
// rollbacks, traces, and a destructor amid an epoch, on 1 to 8 workers; and the ranks of a plan as
// executors of one process that share memory.
//
//   executor_test CASES           runs everything; exit code 0 if all holds
//   executor_test CASES FAULT     with a fault put in, which the sanitizer must report:
//     wait      a phase no longer waits for what it reads (a race)
//     norm      the same of the norm over all heads
//     route     the same of the choice of experts
//     weights   a matrix is one row shorter than its plan says (a read beyond a buffer)
//     ring      a phase writes one slot beyond its ring (a write beyond an arena)
//
// CASES comes from write_cases.py, which describes it.
#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests.h"

namespace monolane {
namespace {

// Workers that convert float weights themselves draw what those draw that were given the result.
void test_convert(const NamedPlan& named, const Tensors& tensors, Isa isa, const Drawn& expected) {
  const Arithmetic arithmetic = arithmetic_of(named.dtype);
  const StoredWeights weights(tensors, Format::kF32, used_of(arithmetic.weights), false);
  Executor executor(named.plan, setup_of(arithmetic), weights.table, select_kernels(isa), {});
  bool refused = false;
  try {
    executor.start({advance(0, prompt(5, 8), 5)});
  } catch (const std::logic_error&) {
    refused = true;
  }
  EXPECT(refused);
  convert_all(executor);
  EXPECT(test_batch(executor) == expected);
}

// Ranks draw what one executor draws, also from a slot that each of them copied.
void test_ranks(const NamedPlan& named, const Tensors& tensors, Isa isa, const Drawn& expected) {
  const Arithmetic arithmetic = arithmetic_of(named.dtype);
  const StoredWeights weights(tensors, arithmetic.weights, used_of(arithmetic.weights), false);
  std::vector<std::unique_ptr<Executor>> ranks;  // the followers stop first, as when rank 0 ends
  for (int32_t rank = 0; rank < 2; ++rank) {
    const int segment = rank > 0 ? ranks[0]->exchange().segment() : -1;
    Setup setup = setup_of(arithmetic);
    setup.rank = rank;
    setup.ranks = 2;
    setup.segment = segment;
    ranks.push_back(std::make_unique<Executor>(named.plan, setup, weights.table,
                                               select_kernels(isa), std::vector<int>{}));
    convert_all(*ranks.back());
    if (rank > 0) ranks.back()->follow();
  }
  Executor& leader = *ranks[0];
  EXPECT(test_batch(leader) == expected);
  clear(leader);
  draw(leader, {advance(0, prompt(40, 1), 1)});
  leader.saved("copy").copy(0, 1);
  leader.saved("copy").copy(1, 2);
  const Drawn first = draw(leader, {advance(0, prompt(3, 2), 9)});
  leader.saved("copy").copy(
      1, 0);  // while a late rank may still read the pass that ended the last epoch
  const Drawn last = draw(leader, {advance(2, prompt(3, 2), 9)});
  EXPECT(first.at(0) == last.at(2));
  ranks.pop_back();
}

// Returns what test_batch drew.
Drawn test_all(const NamedPlan& named, const Tensors& tensors, Isa isa, const std::string& fault) {
  const Arithmetic arithmetic = arithmetic_of(named.dtype);
  const StoredWeights weights(tensors, arithmetic.weights, used_of(arithmetic.weights),
                              fault == "weights");
  Executor executor(named.plan, setup_of(arithmetic), weights.table, select_kernels(isa), {});
  convert_all(executor);
  const Drawn drawn = test_batch(executor);
  // bfloat16 is cut off here, but rounded by the workers.
  if (arithmetic.activation == Activation::kI8) test_convert(named, tensors, isa, drawn);
  if (named.batch_alone) return drawn;
  if (named.plan.header.groups % 2 == 0 && fault.empty()) test_ranks(named, tensors, isa, drawn);
  test_yield(executor);
  test_beside(executor);
  test_join(executor);
  test_guides(executor, named.plan.header.vocab);
  test_drafts(executor);
  for (const Drafting how :
       {Drafting::kModel, Drafting::kHeads, Drafting::kAssistant, Drafting::kOrderedAssistant}) {
    if (fault.empty()) test_joint_drafter(named, weights, isa, how);
  }
  test_rollback(executor, named.plan.header.vocab);
  test_trace(executor, named.plan);
  if (fault.empty()) test_adapters(executor, drawn);
  clear(executor);
  Advance waiting = advance(1, prompt(5, 8), 500);
  waiting.guided = true;
  executor.start({advance(0, prompt(5, 8), 500), waiting});  // and destroyed amid it
  return drawn;
}

// Spoils a plan as the name of the fault says.
void spoil(Plan& plan, const std::string& fault) {
  for (PlanPhase& phase : plan.phases) {
    if (fault == "wait" && phase.kind == PhaseKind::kGateUp && phase.layer == 1) {
      phase.wait_group = phase.wait_all = kNoWait;
    }
    if (fault == "norm" && phase.kind == PhaseKind::kNormQk && phase.layer == 1) {
      phase.wait_group = kNoWait;
    }
    if (fault == "route" && phase.kind == PhaseKind::kExpertGateUp) {
      phase.wait_group = kNoWait;
    }
    if (fault == "ring" && phase.kind == PhaseKind::kOut) {
      phase.write_slot = plan.header.slots[static_cast<size_t>(PlanBuffer::kFirstOutput)];
    }
  }
}

// Into how many parts keys are cut, at most.
int64_t splits_of(const Plan& plan) {
  return plan.most([](const PlanModule& m) { return m.attention.splits; });
}

int run(const char* path, const std::string& fault) {
  test_tiles();
  test_states();
  test_passes();
  test_markov_head();
  test_no_numbers();
  Blobs blobs(path);
  int count = 0;
  for (int64_t models = blobs.number(); models > 0; --models) {
    const Tensors tensors = read_tensors(blobs);
    std::map<std::string, Drawn> alone;  // what one worker draws, by dtype
    for (int64_t plans = blobs.number(); plans > 0; --plans) {
      NamedPlan named = read_plan(blobs);
      const bool spoilt = !fault.empty() && named.plan.header.workers > 1;
      if (spoilt) spoil(named.plan, fault);
      const Drawn drawn = test_all(named, tensors, best_isa(), spoilt ? fault : "");
      const Drawn& expected = alone.try_emplace(named.dtype, drawn).first->second;
      // Where keys are split, sums are others, and may tip a draw.
      if (splits_of(named.plan) == 1) EXPECT(drawn == expected);
      ++count;
      if (!named.every_set || !fault.empty()) continue;
      for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kNeon, Isa::kNeonDot}) {
        if (isa != best_isa() && supported(isa)) test_all(named, tensors, isa, ""), ++count;
      }
    }
  }
  std::printf("%d executors: all holds\n", count);
  return 0;
}

}  // namespace
}  // namespace monolane

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "expected: executor_test CASES [wait | norm | route | weights | ring]\n");
    return 2;
  }
  return monolane::run(argv[1], argc > 2 ? argv[2] : "");
}

// The tests that executor_test.cpp runs on each executor.
#pragma once

#include "cases.h"
#include "epochs.h"

namespace monolane {

Drawn test_batch(Executor& executor);  // returns what each request draws
void test_yield(Executor& executor);
void test_beside(Executor& executor);
void test_join(Executor& executor);
void test_rollback(Executor& executor, int32_t vocab);
void test_trace(Executor& executor, const Plan& plan);
void test_adapters(Executor& executor, const Drawn& plain);
void test_guides(Executor& executor, int32_t vocab);
void test_drafts(Executor& executor);
void test_tiles();   // on no executor
void test_states();  // on none either
void test_passes();  // nor on one
void test_markov_head();
void test_no_numbers();

enum class Drafting { kModel, kHeads, kAssistant, kOrderedAssistant };
void test_joint_drafter(const NamedPlan& named, const StoredWeights& weights, Isa isa,
                        Drafting how);

}  // namespace monolane

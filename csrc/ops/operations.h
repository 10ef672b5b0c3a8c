// The operations of a pass: what a worker does in a phase, by the phase's kind. Each is in a file
// of this folder; a kind without one does not link.
#pragma once

#include "abi/plan_abi.h"
#include "ops/worker.h"

namespace monolane {

#define MONOLANE_DECLARE_RUN(KIND, NAME) \
  void run_##NAME(Forward& f, Worker& w, const PlanPhase& phase);
MONOLANE_PHASE_KINDS(MONOLANE_DECLARE_RUN)
#undef MONOLANE_DECLARE_RUN

// The draw is the leader's, who does it behind this phase: run/pass_scheduler.h.
inline void run_choose(Forward&, Worker&, const PlanPhase&) {}

// Runs the operation of a phase.
inline void run(Forward& f, Worker& w, const PlanPhase& phase) {
  switch (phase.kind) {
#define MONOLANE_RUN(KIND, NAME) \
  case PhaseKind::KIND:          \
    return run_##NAME(f, w, phase);
    MONOLANE_PHASE_KINDS(MONOLANE_RUN)
#undef MONOLANE_RUN
  }
}

}  // namespace monolane

// The decode loop of one worker.
#pragma once

#include "ops/worker.h"
#include "run/pass_scheduler.h"

namespace monolane {

// Walks the phases of pass after pass on the worker's own share: one epoch, or as much of it as
// there is until the ranks give up. The first worker is the leader, who asks the scheduler for each
// pass. `trace`: notes in the worker's `spans` when it was in which phase.
void work(Forward& f, Worker& w, PassScheduler& scheduler, bool trace);

}  // namespace monolane

// The walk of the workers over the phases: who waits for whom, and what ends an epoch.
#include "ops/worker.h"

namespace monolane {

// Of the phase behind this one: what this worker multiplies first. A layer's experts are not known
// before they are chosen; but those that come down are those that went up.
[[gnu::always_inline]] inline void Executor::prefetch_next(const Worker& w,
                                                           const PlanPhase& phase) const {
  const int64_t next = index_of(phase) + 1;
  if (next == plan_.header.phases || plan_.phases[next].num_matrices == 0) return;
  const PhaseKind kind = plan_.phases[next].kind;
  if (kind == PhaseKind::kExpertGateUp) return;
  w.weights.prefetch(next, 0, kind == PhaseKind::kExpertDown ? w.chosen.front() : 0);
}

// One epoch, or as much of it as there is until the ranks give up.
void Executor::work(Worker& w) {
  const bool timed = exchange_.timed(), stamped = trace_ || timed;
  if (timed) wake_in_time();
  if (w.index == 0 && !await_others(w)) return;
  for (;;) {
    ++w.passes;
    if (w.index == 0) {
      lay_out_pass();
      exchange_.publish_pass(w.passes);
    } else if (!exchange_.await_pass(w.passes)) {  // reads pass_, which the leader wrote
      return;
    }
    if (pass_.lent) {
      speculation_.joint()->take_part(w.index);
      continue;
    }
    if (pass_.help) {
      scratch_.crew.help();
      continue;
    }
    const int32_t width = pass_.width;  // kept: in the last phase the leader writes the next pass
    if (width == 0) return end_epoch(w);
    for (const PlanPhase& phase : plan_.phases) {
      const int64_t arrived = stamped ? now_ns() : 0;
      if (!await(w, phase)) return;
      const int64_t begun = trace_ ? now_ns() : 0;
      timed ? run_timed(w, phase, arrived) : run(w, phase);
      if (trace_) {
        const int32_t index = static_cast<int32_t>(index_of(phase));
        w.spans.push_back({arrived, begun, now_ns(), w.index, index, width});
      }
      exchange_.publish(w.index, ++w.finished, static_cast<int32_t>(index_of(phase)));
      prefetch_next(w, phase);
    }
    w.base = w.finished;
  }
}

// Called by the leader: workers of other ranks may still read the pass that ended the last epoch.
bool Executor::await_others(const Worker& w) {
  for (int32_t i = 0; i < plan_.header.workers; ++i) {
    if (!exchange_.await(i, w.base, plan_.header.phases - 1)) return false;
  }
  return true;
}

// The last pass has no rows. It counts as one phase, so that the leader sees who has read it.
void Executor::end_epoch(Worker& w) {
  const PlanHeader& h = plan_.header;
  const Chore chore = pass_.chore;
  const int64_t heads = h.kv_heads / h.groups;
  if (w.index == w.first_worker) {
    w.kept.run(chore, cache_, {w.group * heads, heads});
  } else if (chore.kind != Chore::kNone) {
    // Or this worker would write into rings, in the next pass, what is still to be saved of them.
    exchange_.await(static_cast<int32_t>(w.first_worker), w.finished + 1, h.phases - 1);
  }
  w.base = ++w.finished;
  exchange_.publish(w.index, w.finished, h.phases - 1);
}

bool Executor::await(const Worker& w, const PlanPhase& phase) {
  // Whose end a count is; the last pass's are counted backwards from 0.
  const auto awaited = [&](int32_t count) {
    return count > 0 ? count - 1 : plan_.header.phases + count - 1;
  };
  if (phase.wait_group != kNoWait) {
    const uint32_t count = w.base + static_cast<uint32_t>(phase.wait_group);
    for (int32_t i = 0; i < plan_.header.group_workers; ++i) {
      const int32_t worker = static_cast<int32_t>(w.first_worker) + i;
      if (!exchange_.await(worker, count, awaited(phase.wait_group))) return false;
    }
  }
  if (phase.wait_all != kNoWait) {
    const uint32_t count = w.base + static_cast<uint32_t>(phase.wait_all);
    for (int32_t i = 0; i < plan_.header.workers; ++i) {
      if (!exchange_.await(i, count, awaited(phase.wait_all))) return false;
    }
  }
  return true;
}

// Takes the time that the timetable says. What is left without products is what goes from rank to
// rank: reading the others' outputs, the streams of a head over all lanes, the choice of a token.
void Executor::run_timed(Worker& w, const PlanPhase& phase, int64_t arrived) {
  const Timetable& table = exchange_.timetable();
  const PhaseTime& time = exchange_.phase_time(index_of(phase), w.index);
  const int64_t end = w.stream.end(time, table.ring, arrived, now_ns());
  const bool exchanges = phase.kind == PhaseKind::kEmbed || phase.kind == PhaseKind::kGather ||
                         phase.kind == PhaseKind::kChoose;
  if (table.computes != 0 || exchanges) {
    run(w, phase);
  } else {
    update(w, phase);
  }
  sleep_until(end);
}

void Executor::run(Worker& w, const PlanPhase& phase) {
  switch (phase.kind) {
#define MONOLANE_RUN(KIND, NAME) \
  case PhaseKind::KIND:          \
    return run_##NAME(w, phase);
    MONOLANE_PHASE_KINDS(MONOLANE_RUN)
#undef MONOLANE_RUN
  }
}

}  // namespace monolane

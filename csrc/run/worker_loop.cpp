// The walk of the workers over the phases: who waits for whom, and what ends an epoch.
#include "run/worker_loop.h"

#include <algorithm>

#include "ops/operations.h"
#include "ops/stream.h"

namespace monolane {
namespace {

// Of the phase behind this one: what this worker multiplies first. A layer's experts are not known
// before they are chosen; but those that come down are those that went up.
[[gnu::always_inline]] inline void prefetch_next(const Forward& f, const Worker& w,
                                                 const PlanPhase& phase) {
  const int64_t next = f.index_of(phase) + 1;
  if (next == f.plan.header.phases || f.plan.phases[next].num_matrices == 0) return;
  const PhaseKind kind = f.plan.phases[next].kind;
  if (kind == PhaseKind::kExpertGateUp) return;
  w.weights.prefetch(next, 0, kind == PhaseKind::kExpertDown ? w.chosen.front() : 0);
}

// Called by the leader: workers of other ranks may still read the pass that ended the last epoch.
bool await_others(Forward& f, const Worker& w) {
  for (int32_t i = 0; i < f.plan.header.workers; ++i) {
    if (!f.exchange.await(i, w.base, f.plan.header.phases - 1)) return false;
  }
  return true;
}

// The last pass has no rows. It counts as one phase, so that the leader sees who has read it.
void end_epoch(Forward& f, Worker& w) {
  const PlanHeader& h = f.plan.header;
  const Chore chore = f.pass.chore;
  if (w.index == w.first_worker) {
    w.kept.run(chore, f.cache, {w.group, h.groups});
  } else if (chore.kind != Chore::kNone) {
    // Or this worker would write into rings, in the next pass, what is still to be saved of them.
    f.exchange.await(static_cast<int32_t>(w.first_worker), w.finished + 1, h.phases - 1);
  }
  w.base = ++w.finished;
  f.exchange.publish(w.index, w.finished, h.phases - 1);
}

bool await(Forward& f, const Worker& w, const PlanPhase& phase) {
  // Whose end a count is; the last pass's are counted backwards from 0.
  const auto awaited = [&](int32_t count) {
    return count > 0 ? count - 1 : f.plan.header.phases + count - 1;
  };
  if (phase.wait_group != kNoWait) {
    const uint32_t count = w.base + static_cast<uint32_t>(phase.wait_group);
    for (int32_t i = 0; i < f.plan.header.group_workers; ++i) {
      const int32_t worker = static_cast<int32_t>(w.first_worker) + i;
      if (!f.exchange.await(worker, count, awaited(phase.wait_group))) return false;
    }
  }
  if (phase.wait_all != kNoWait) {
    const uint32_t count = w.base + static_cast<uint32_t>(phase.wait_all);
    for (int32_t i = 0; i < f.plan.header.workers; ++i) {
      if (!f.exchange.await(i, count, awaited(phase.wait_all))) return false;
    }
  }
  return true;
}

// Notes the stream where a drafter is shown it. A layer's first phase has had it gain all before.
void tap(Forward& f, const Worker& w, const PlanPhase& phase) {
  for (const Tap& tap : f.taps) {
    if (tap.phase != f.index_of(phase)) continue;
    std::copy_n(w.x->as<float>(), f.pass.width * f.plan.header.hidden, tap.rows->as<float>());
  }
}

// The draw is behind the last phase's products, and within that phase.
void run_phase(Forward& f, Worker& w, PassScheduler& scheduler, const PlanPhase& phase) {
  run(f, w, phase);
  if (w.index == 0 && f.pass.offered && !f.taps.empty()) tap(f, w, phase);
  if (w.index == 0 && phase.kind == PhaseKind::kChoose) scheduler.choose_tokens();
}

// Takes the time that the timetable says. What is left without products is what goes from rank to
// rank: reading the others' outputs, the streams of a head over all lanes, the choice of a token.
void run_timed(Forward& f, Worker& w, PassScheduler& scheduler, const PlanPhase& phase,
               int64_t arrived) {
  const Timetable& table = f.exchange.timetable();
  const PhaseTime& time = f.exchange.phase_time(f.index_of(phase), w.index);
  const int64_t end = w.stream.end(time, table.ring, arrived, now_ns());
  const bool exchanges = phase.kind == PhaseKind::kEmbed || phase.kind == PhaseKind::kGather ||
                         phase.kind == PhaseKind::kChoose;
  if (table.computes != 0 || exchanges) {
    run_phase(f, w, scheduler, phase);
  } else {
    update(f, w, phase);
  }
  sleep_until(end);
}

}  // namespace

void work(Forward& f, Worker& w, PassScheduler& scheduler, bool trace) {
  const bool timed = f.exchange.timed(), stamped = trace || timed;
  if (timed) wake_in_time();
  if (w.index == 0 && !await_others(f, w)) return;
  for (;;) {
    ++w.passes;
    if (w.index == 0) {
      scheduler.lay_out_pass();
      f.exchange.publish_pass(w.passes);
    } else if (!f.exchange.await_pass(w.passes)) {  // reads f.pass, which the leader wrote
      return;
    }
    if (f.pass.lent) {
      scheduler.joint()->take_part(w.index);
      continue;
    }
    if (f.pass.help) {
      scheduler.help_to_draw();
      continue;
    }
    const int32_t width = f.pass.width;  // kept: in the last phase the leader writes the next pass
    if (width == 0) return end_epoch(f, w);
    for (const PlanPhase& phase : f.plan.phases) {
      const int64_t arrived = stamped ? now_ns() : 0;
      if (!await(f, w, phase)) return;
      const int64_t begun = trace ? now_ns() : 0;
      timed ? run_timed(f, w, scheduler, phase, arrived) : run_phase(f, w, scheduler, phase);
      if (trace) {
        const int32_t index = static_cast<int32_t>(f.index_of(phase));
        w.spans.push_back({arrived, begun, now_ns(), w.index, index, width});
      }
      f.exchange.publish(w.index, ++w.finished, static_cast<int32_t>(f.index_of(phase)));
      prefetch_next(f, w, phase);
    }
    w.base = w.finished;
  }
}

}  // namespace monolane

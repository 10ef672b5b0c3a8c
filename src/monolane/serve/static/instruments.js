// The readings: phase, tokens per second with its curve, time to the first token, and the rest. Shows
// what it is given; the figures come from the server's `timings`.

import { count, duration, percent, rate } from "./format.js";
import { Meter } from "./meter.js";
import { PACE } from "./race.js";
import { Sparkline } from "./sparkline.js";

const REFRESH_MS = 100; // figures that change faster cannot be read
const NONE = "–";

const PHASES = {
  idle: "ready",
  sent: "sent",
  queued: "queued",
  prefill: "prefill",
  decode: "decode",
  refused: "busy",
  done: "done",
  stopped: "stopped",
  error: "error",
};

export class Instruments {
  #view;
  #curve;
  #meter = new Meter();
  #timings = null;
  #refreshed = 0; // ms

  /** `view`: elements {phase, rate, unit, curve, first, prefill, tokens, cached, mbu, drafts}. */
  constructor(view) {
    this.#view = view;
    this.#curve = new Sparkline(view.curve);
    this.reset();
  }

  /** Back to the state before an answer. */
  reset() {
    this.#meter = new Meter();
    this.#timings = null;
    this.phase("idle");
    this.#write(null, 0);
    this.#curve.draw([], PACE);
  }

  /** Show a phase; `detail` is added to its name. */
  phase(name, detail = "") {
    this.#view.phase.dataset.phase = name;
    this.#view.phase.textContent = (PHASES[name] ?? name) + detail;
  }

  /** Take the timings of a chunk that arrived at `now`. */
  add(timings, now) {
    this.#timings = timings;
    this.#meter.add(timings, now);
  }

  /** Show the readings as of `now`. */
  frame(now) {
    if (this.#timings === null || now - this.#refreshed < REFRESH_MS) return;
    this.#refreshed = now;
    this.#write(this.#timings, this.#meter.rate(now));
    this.#curve.draw(this.#meter.points, PACE);
  }

  /** Show the readings of a whole answer: the mean rate in place of the last second's. */
  finish(timings) {
    if (timings === null) return;
    this.#write(timings, timings.predicted_per_second);
    this.#curve.draw(this.#meter.points, PACE);
    this.#view.unit.textContent = "tokens/s, mean of the answer";
  }

  #write(timings, now) {
    const view = this.#view;
    view.unit.textContent = "tokens/s";
    view.rate.textContent = now > 0 ? rate(now) : NONE;
    view.rate.toggleAttribute("data-none", !(now > 0));
    view.first.textContent = timings === null ? NONE : duration(timings.ttft_ms ?? 0);
    view.prefill.textContent = prefill(timings);
    view.tokens.textContent = tokens(timings);
    view.cached.textContent = timings === null ? NONE : count(timings.cache_n ?? 0);
    view.mbu.textContent = timings?.mbu == null ? NONE : percent(timings.mbu);
    view.drafts.textContent = drafts(timings);
  }
}

function prefill(timings) {
  return timings?.prompt_per_second > 0 ? `${rate(timings.prompt_per_second)} tokens/s` : NONE;
}

function tokens(timings) {
  if (timings === null) return NONE;
  return `${count(timings.prompt_n ?? 0)} + ${count(timings.predicted_n ?? 0)}`;
}

function drafts(timings) {
  if (!(timings?.draft_n > 0)) return NONE;
  const { draft_n, draft_n_accepted } = timings;
  // Where several drafted, what each did: "draft" is a draft model.
  const each = Object.entries(timings.drafters ?? {})
    .map(([name, of]) => `${name} ${count(of.draft_n_accepted)}/${count(of.draft_n)}`);
  const rest = each.length > 1 ? ` (${each.join(", ")})` : "";
  const share = percent(draft_n_accepted / draft_n);
  return `${count(draft_n_accepted)} of ${count(draft_n)}, ${share}${rest}`;
}

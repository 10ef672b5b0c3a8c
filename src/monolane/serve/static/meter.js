// How fast tokens come: samples of (tokens drawn, milliseconds of decode), both by the server's clock,
// so that neither the network nor this page is in the figure. The browser's clock only tells when
// nothing has come for a while.

const WINDOW_MS = 1000; // "now" is the last second
const GRACE_MS = 250; // silence up to here is the network's, not the model's
const MAX_POINTS = 96; // of the curve; then two become one

export class Meter {
  #samples = []; // {tokens, ms} of the last second, and one before it
  #arrived = 0; // browser's clock at the last sample, ms
  #step = 8; // ms between two points of the curve; the server sends every 5
  #edge = { tokens: 1, ms: 0 }; // where the curve's next point begins

  points = []; // {ms, rate}: the curve so far

  /** Take the timings of a chunk that arrived at `now`. */
  add(timings, now) {
    const sample = { tokens: timings.predicted_n, ms: timings.predicted_ms };
    this.#arrived = now;
    this.#samples.push(sample);
    while (this.#samples.length > 2 && this.#samples[1].ms <= sample.ms - WINDOW_MS) {
      this.#samples.shift();
    }
    if (sample.ms - this.#edge.ms >= this.#step) this.#extend(sample);
  }

  /** Tokens per second over the last second; falls towards 0 while nothing comes. */
  rate(now) {
    const last = this.#samples.at(-1);
    if (last === undefined) return 0;
    const silence = Math.max(0, now - this.#arrived - GRACE_MS);
    const first = this.#samples.length > 1 ? this.#samples[0] : { tokens: 1, ms: 0 };
    const ms = last.ms - first.ms + silence;
    return ms > 0 ? ((last.tokens - first.tokens) * 1000) / ms : 0;
  }

  #extend(sample) {
    const ms = sample.ms - this.#edge.ms;
    this.points.push({ ms: sample.ms, rate: ((sample.tokens - this.#edge.tokens) * 1000) / ms });
    this.#edge = sample;
    if (this.points.length <= MAX_POINTS) return;
    const pairs = [];
    for (let at = 0; at + 1 < this.points.length; at += 2) {
      const [one, two] = [this.points[at], this.points[at + 1]];
      pairs.push({ ms: two.ms, rate: (one.rate + two.rate) / 2 });
    }
    if (this.points.length % 2 === 1) pairs.push(this.points.at(-1));
    this.points = pairs;
    this.#step *= 2;
  }
}

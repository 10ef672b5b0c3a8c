// Two answers to one prompt as they come: tokens of both, and at the end who was faster. Stands where
// the race against a fixed pace stands otherwise (race.js).

import { count, rate } from "./format.js";

export class Duel {
  #view;
  #here = null; // timings
  #there = null;
  #left = 2; // sides that have not ended

  /** `view`: as in race.js; `name`: the other side's. */
  constructor(view, name) {
    this.#view = view;
    view.title.textContent = `Against ${name}`;
    view.name.textContent = "there";
    view.text.replaceChildren();
    this.#say("Both answer the same prompt.", false);
    this.#lanes();
  }

  /** This side, as an answer feeds it. */
  get here() {
    return { add: (_, timings) => (this.#here = timings), end: () => this.#end() };
  }

  get there() {
    return { add: (_, timings) => (this.#there = timings), end: () => this.#end() };
  }

  /** Draw; true while a side has not ended. */
  frame() {
    this.#lanes();
    return this.#left > 0;
  }

  #end() {
    this.#left -= 1;
    this.#lanes();
    const [here, there] = [this.#here, this.#there].map((it) => it?.predicted_per_second ?? 0);
    if (this.#left > 0 || here === 0 || there === 0) return;
    const factor = here >= there ? here / there : there / here;
    const winner = here >= there ? "here" : "there";
    const speeds = `${rate(here)} tokens/s here, ${rate(there)} there`;
    this.#say(`${factor.toFixed(factor < 10 ? 2 : 0)}× faster ${winner}: ${speeds}.`, true);
  }

  #say(text, final) {
    this.#view.verdict.textContent = text;
    this.#view.verdict.toggleAttribute("data-final", final);
  }

  #lanes() {
    const { here, there, hereLane, thereLane } = this.#view;
    const [ours, theirs] = [this.#here, this.#there].map((it) => it?.predicted_n ?? 0);
    const most = Math.max(ours, theirs, 1);
    here.textContent = count(ours);
    there.textContent = count(theirs);
    hereLane.value = ours / most;
    thereLane.value = theirs / most;
  }
}

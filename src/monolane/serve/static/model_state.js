// Which model this is and whether it is ready; asks again while it is loading.

import { ServerError, fetchModel, health } from "./server.js";

const RETRY_MS = 1000;

const LABELS = {
  connecting: "connecting",
  loading: "loading the model",
  unreachable: "no connection",
  locked: "needs an API key",
};

export class ModelState {
  #chip;
  #events;
  #entry = null;
  #timer = 0;

  /** `events`: {onModel(entry, key), needKey()}. */
  constructor(chip, events) {
    this.#chip = chip;
    this.#events = events;
  }

  /** What requests call the model. */
  get name() {
    return this.#entry?.id ?? "";
  }

  /** Ask until the server is ready and the model is known. */
  async watch(key) {
    clearTimeout(this.#timer);
    const state = await health();
    if (state !== "ready") {
      this.#show(state);
      this.#timer = setTimeout(() => this.watch(key), RETRY_MS);
      return;
    }
    try {
      this.#entry = await fetchModel({ url: "", key });
    } catch (error) {
      const locked = error instanceof ServerError && error.status === 401;
      this.#show(locked ? "locked" : "unreachable");
      if (locked) this.#events.needKey();
      else this.#timer = setTimeout(() => this.watch(key), RETRY_MS);
      return;
    }
    this.#show("ready");
    this.#events.onModel(this.#entry);
  }

  #show(state) {
    this.#chip.dataset.state = state;
    const { id, monolane } = this.#entry ?? {};
    const facts = [id, monolane?.backend, monolane?.dtype].filter(Boolean);
    this.#chip.textContent = state === "ready" ? facts.join(" · ") : LABELS[state];
  }
}

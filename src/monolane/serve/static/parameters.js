// What a visitor sets: sampling, the system prompt, the key. Kept in this tab's sessionStorage; the
// key under a name of its own, so that no export can hold it.

import { keep, kept } from "./storage.js";

const DEFAULTS = {
  temperature: 0.7,
  top_p: 1,
  top_k: 0,
  min_p: 0.05,
  max_tokens: 512,
  seed: "", // empty: a new one for each answer
  system: "",
};
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens"];

export class Parameters {
  #form;

  constructor(form) {
    this.#form = form;
    this.set({ ...DEFAULTS, ...kept("parameters") });
    form.elements.key.value = kept("key") ?? "";
    form.addEventListener("input", () => this.#keep());
    form.addEventListener("reset", (event) => {
      event.preventDefault(); // the markup holds no values to go back to
      this.set(DEFAULTS);
      this.#keep();
    });
  }

  /** The key of the server, or "". */
  get key() {
    return this.#form.elements.key.value.trim();
  }

  /** All but the key, as set; a number that is none, or out of range, stands at its default. */
  get values() {
    const { elements } = this.#form;
    const values = { seed: elements.seed.value.trim(), system: elements.system.value };
    for (const name of NUMBERS) {
      const valid = elements[name].value !== "" && elements[name].checkValidity();
      values[name] = valid ? Number(elements[name].value) : DEFAULTS[name];
    }
    return values;
  }

  /** Take values, e.g. of an imported file; names that are not known are left alone. */
  set(values) {
    for (const name of Object.keys(DEFAULTS)) {
      if (["number", "string"].includes(typeof values[name])) {
        this.#form.elements[name].value = values[name];
      }
    }
  }

  /** Set the largest `max_tokens` that the server takes. */
  limit(maxTokens) {
    const input = this.#form.elements.max_tokens;
    input.max = maxTokens;
    if (Number(input.value) > maxTokens) input.value = maxTokens;
  }

  /** The sampling fields of a request. Without a seed one is drawn here, so that it can be shown. */
  sampling() {
    const { seed, system: _, ...numbers } = this.values;
    const valid = /^-?\d{1,15}$/.test(seed); // beyond 15 digits JSON would round it
    return { ...numbers, seed: valid ? Number(seed) : Math.floor(Math.random() * 2 ** 32) };
  }

  #keep() {
    keep("parameters", this.values);
    keep("key", this.key === "" ? null : this.key);
  }
}

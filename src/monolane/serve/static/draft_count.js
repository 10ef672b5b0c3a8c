// Tokens of the draft, with the conversation before it, against the model's context: counted by the
// server, a moment after the last key.

import { count } from "./format.js";
import { countTokens } from "./server.js";

const WAIT_MS = 250;
const TOO_LONG = "context_length_exceeded"; // the code of text that cannot fit, and so is not counted

export class DraftCount {
  #element;
  #timer = 0;
  #abort = new AbortController();

  constructor(element) {
    this.#element = element;
  }

  /** Count `body`, {prompt} or {messages}, on `server`; null: there is no draft. */
  update(server, body) {
    clearTimeout(this.#timer);
    this.#abort.abort();
    if (body === null) this.#show("", false);
    else this.#timer = setTimeout(() => this.#count(server, body), WAIT_MS);
  }

  async #count(server, body) {
    this.#abort = new AbortController();
    try {
      const { count: tokens, max_model_len: context } = await countTokens(server, body, this.#abort.signal);
      this.#show(`${count(tokens)} of ${count(context)} tokens`, tokens >= context);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.code === TOO_LONG) this.#show("more than the context holds", true);
      else this.#show("", false);
    }
  }

  #show(text, over) {
    this.#element.textContent = text;
    this.#element.toggleAttribute("data-over", over);
  }
}

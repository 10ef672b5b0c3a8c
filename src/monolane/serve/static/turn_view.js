// One turn on the page. While the answer comes, text is only appended; Markdown is formatted a few
// times per second (chat), or not at all (continue: the prompt and what follows it are one text).

import { Asides } from "./asides.js";
import { copyButton } from "./clipboard.js";
import { curlCommand } from "./curl.js";
import { count, duration, rate } from "./format.js";
import { growingText } from "./growing_text.js";

const SETTLE_MS = 100; // Markdown at most ten times per second
const SETTLE_SHARE = 0.1; // of the time, where one block has grown so long that it costs more

const ENDS = { length: "cut at the token limit", tool_calls: "calls a tool", stopped: "stopped", error: "failed" };

export class TurnView {
  element = document.createElement("article");
  #turn;
  #actions;
  #body = document.createElement("div");
  #footer = document.createElement("footer");
  #stream;
  #asides;
  #next = 0; // ms, when Markdown is formatted again
  #dirty = false;

  /** `actions`: {regenerate(), edit(), withKey()}; the first two are offered on the last turn. */
  constructor(turn, actions) {
    this.#turn = turn;
    this.#actions = actions;
    this.element.className = `turn ${turn.mode}`;
    this.#body.className = "answer";
    this.#asides = new Asides(turn, this.#body);
    if (turn.mode === "chat") {
      this.element.append(label("h2", "You"), label("div", turn.prompt, "prompt"));
      this.element.append(label("h2", "Model"), this.#body, this.#footer);
    } else {
      this.element.append(label("h2", "Continued text"), this.#body, this.#footer);
    }
    this.#stream = growingText(this.#body, turn);
    if (turn.answer !== "") this.#stream.append(turn.answer);
  }

  /** Show more of the answer; Markdown follows when it is time. */
  append(text) {
    this.#stream.append(text);
    this.#dirty = true;
  }

  frame(now) {
    this.#asides.show();
    if (!this.#dirty || now < this.#next) return;
    const begin = performance.now();
    this.#stream.settle();
    this.#next = now + Math.max(SETTLE_MS, (performance.now() - begin) / SETTLE_SHARE);
    this.#dirty = false;
  }

  set busy(busy) {
    this.element.setAttribute("aria-busy", String(busy));
  }

  /** The answer is over: format it, say how it went, offer what can be done with it. */
  finish() {
    this.#stream.settle();
    this.#asides.show();
    this.busy = false;
    this.#footer.replaceChildren();
    const { error } = this.#turn;
    if (error !== null) this.#footer.append(alertLine(error));
    const facts = this.#facts();
    if (facts !== "") this.#footer.append(label("p", facts, "facts"));
    this.#footer.append(this.#buttons());
  }

  #facts() {
    const { timings, finish, request } = this.#turn;
    const facts = [];
    if (timings !== null && timings.predicted_n > 0) {
      facts.push(`${count(timings.predicted_n)} tokens`);
      if (timings.predicted_per_second > 0) {
        facts.push(`${rate(timings.predicted_per_second)} tokens/s`);
      }
      if (timings.ttft_ms !== undefined) facts.push(`first after ${duration(timings.ttft_ms)}`);
      if (request?.body.seed !== undefined) facts.push(`seed ${request.body.seed}`);
    }
    if (ENDS[finish] !== undefined) facts.push(ENDS[finish]);
    return facts.join(" · ");
  }

  #buttons() {
    const turn = this.#turn;
    const row = document.createElement("p");
    row.className = "actions";
    if (turn.answer !== "") row.append(copyButton("Copy", () => turn.answer));
    row.append(button("Regenerate", "last-only", () => this.#actions.regenerate()));
    row.append(button("Edit", "last-only", () => this.#actions.edit()));
    if (turn.request !== null) {
      const command = () => curlCommand(turn.request, this.#actions.withKey());
      row.append(copyButton("Copy as curl", command));
    }
    return row;
  }
}

function label(name, text, className = "") {
  const element = document.createElement(name);
  element.textContent = text;
  if (className !== "") element.className = className;
  return element;
}

function alertLine(text) {
  const line = label("p", text, "error");
  line.setAttribute("role", "alert");
  return line;
}

function button(text, className, action) {
  const element = label("button", text, `quiet ${className}`);
  element.type = "button";
  element.addEventListener("click", action);
  return element;
}

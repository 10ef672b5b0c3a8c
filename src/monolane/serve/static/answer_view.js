// One answer on the page: thoughts, text, calls, and how it went. While it comes, text is only
// appended; it is formatted a few times per second.

import { Asides } from "./asides.js";
import { element } from "./elements.js";
import { count, duration, rate } from "./format.js";
import { growingText } from "./growing_text.js";

const SETTLE_MS = 100; // Markdown at most ten times per second
const SETTLE_SHARE = 0.1; // of the time, where one block has grown so long that it costs more

const ENDS = {
  ...{ length: "cut at the token limit", tool_calls: "calls a tool", stopped: "stopped", error: "failed" },
  null: "unfinished", // its page was closed, or another tab is at it
};

export class AnswerView {
  element = element("div", "side");
  #outcome;
  #body = element("div", "answer");
  #notice = element("p", "notice");
  #footer = element("div", "end");
  #heading;
  #stream;
  #asides;
  #next = 0; // ms, when Markdown is formatted again
  #dirty = false;

  /** Of `outcome` (turn.js) to a prompt, under a heading. */
  constructor(outcome, { mode, prompt }, heading) {
    this.#outcome = outcome;
    this.#heading = element("h2", "", heading);
    this.#asides = new Asides(outcome, this.#body);
    this.#notice.hidden = true;
    this.element.append(this.#heading, this.#body, this.#notice, this.#footer);
    this.#stream = growingText(this.#body, mode, prompt);
    if (outcome.answer !== "") this.#stream.append(outcome.answer);
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

  /** Why nothing comes; "": no reason. */
  set notice(text) {
    this.#notice.hidden = text === "";
    this.#notice.textContent = text;
  }

  /** A mark beside the heading, while the answer comes. */
  set phase(name) {
    this.#heading.dataset.phase = name;
  }

  /** The answer is over: format it, say how it went. */
  finish() {
    this.#stream.settle(true);
    this.#asides.show();
    this.busy = false;
    this.notice = "";
    this.#footer.replaceChildren();
    const { error } = this.#outcome;
    if (error !== null) {
      const line = element("p", "error", error);
      line.setAttribute("role", "alert");
      this.#footer.append(line);
    }
    const facts = this.#facts();
    if (facts !== "") this.#footer.append(element("p", "facts", facts));
  }

  #facts() {
    const { timings, finish, request } = this.#outcome;
    const facts = [];
    if (timings !== null && timings.predicted_n > 0) {
      facts.push(`${count(timings.predicted_n)} tokens`);
      if (timings.predicted_per_second > 0) facts.push(`${rate(timings.predicted_per_second)} tokens/s`);
      if (timings.ttft_ms !== undefined) facts.push(`first after ${duration(timings.ttft_ms)}`);
      if (timings.cache_n > 0) facts.push(`${count(timings.cache_n)} from cache`);
      if (request?.body.seed !== undefined) facts.push(`seed ${request.body.seed}`);
    }
    if (ENDS[finish] !== undefined) facts.push(ENDS[finish]);
    return facts.join(" · ");
  }
}

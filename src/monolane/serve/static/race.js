// The same answer at a fixed 100 tokens/s, beside the live one. Both start with the first token, so
// that only decode is compared. The replay knows how many characters each number of tokens had come
// to, and goes evenly in between.

import { count, duration } from "./format.js";
import { growingText } from "./growing_text.js";

export const PACE = 100; // tokens per second

const SETTLE_MS = 100; // Markdown at most ten times per second

export class Race {
  #view;
  #text;
  #source = "";
  #marks = [{ tokens: 0, end: 0 }]; // characters of #source that `tokens` had come to
  #passed = 0; // the mark that the replay has passed
  #shown = 0; // characters on the page
  #settled = 0; // ms, the last time Markdown was formatted
  #begin = null; // ms of the browser's clock, at the first token
  #live = 0; // tokens
  #liveMs = 0;
  #ended = false;

  /** `view`: elements {title, name, text, here, there, hereLane, thereLane, verdict}. */
  constructor(view, turn) {
    this.#view = view;
    view.title.textContent = `The same text at ${PACE} tokens/s`;
    view.name.textContent = `${PACE}/s`;
    view.text.replaceChildren();
    this.#text = growingText(view.text, turn.mode, turn.prompt);
    this.#say("Both start with the first token.", false);
    this.#lanes(0);
  }

  /** Take a piece of the live answer and its timings. */
  add(text, timings, now) {
    this.#begin ??= now;
    this.#source += text;
    this.#live = timings.predicted_n;
    this.#liveMs = timings.predicted_ms;
    this.#marks.push({ tokens: timings.predicted_n, end: this.#source.length });
  }

  /** The live answer is complete, or was stopped. */
  end() {
    this.#ended = true;
  }

  /** Show the replay as it stands at `now`; true while it has something left to show. */
  frame(now) {
    if (this.#begin === null) return !this.#ended;
    const due = 1 + ((now - this.#begin) * PACE) / 1000;
    const tokens = Math.min(due, this.#live);
    const end = this.#charactersAt(tokens);
    if (end > this.#shown) {
      this.#text.append(this.#source.slice(this.#shown, end));
      this.#shown = end;
      this.#settle(now, SETTLE_MS);
      this.#view.text.scrollTop = this.#view.text.scrollHeight;
    }
    this.#lanes(Math.floor(tokens));
    if (!this.#ended) return true;
    if (due >= this.#live) {
      this.#settle(now, 0);
      this.#judge();
      return false;
    }
    const left = count(Math.ceil(this.#live - tokens));
    this.#say(`Done here after ${duration(this.#liveMs)}; ${left} tokens to go there.`, false);
    return true;
  }

  #charactersAt(tokens) {
    const marks = this.#marks;
    while (this.#passed + 1 < marks.length && marks[this.#passed + 1].tokens <= tokens) {
      this.#passed += 1;
    }
    const from = marks[this.#passed];
    const to = marks[this.#passed + 1];
    if (to === undefined) return from.end;
    const share = (tokens - from.tokens) / (to.tokens - from.tokens);
    return from.end + wholeCharacters(this.#source, from.end, share * (to.end - from.end));
  }

  #settle(now, wait) {
    if (now - this.#settled < wait) return;
    this.#text.settle(this.#ended && wait === 0);
    this.#settled = now;
  }

  #say(text, final) {
    this.#view.verdict.textContent = text;
    this.#view.verdict.toggleAttribute("data-final", final);
  }

  #lanes(tokens) {
    const { here, there, hereLane, thereLane } = this.#view;
    const most = Math.max(this.#live, tokens, 1);
    here.textContent = count(this.#live);
    there.textContent = count(tokens);
    hereLane.value = this.#live / most;
    thereLane.value = tokens / most;
  }

  #judge() {
    if (this.#live < 2) return;
    const paceMs = ((this.#live - 1) * 1000) / PACE;
    const times = `${duration(this.#liveMs)} here, ${duration(paceMs)} at ${PACE} tokens/s`;
    const factor = paceMs / Math.max(this.#liveMs, 1e-3);
    const verdict = factor >= 1 ? `${factor.toFixed(1)}× faster` : "Slower than the replay";
    this.#say(`${verdict}: ${times}.`, true);
  }
}

/** Round `length` down to a boundary between characters: half of a surrogate pair is none. */
function wholeCharacters(text, start, length) {
  const end = Math.floor(length);
  const last = text.charCodeAt(start + end - 1);
  return end > 0 && last >= 0xd800 && last <= 0xdbff ? end - 1 : end;
}

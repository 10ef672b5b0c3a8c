// One answer under way: reads the stream, and shows it frame by frame. What arrives between two
// frames is gathered first, so the page does the same work at 30 and at 3,000 tokens per second.

import { takeCalls } from "./asides.js";
import { ClockTimings } from "./clock_timings.js";
import { ServerError, streamAnswer } from "./server.js";

const MAX_TRIES = 8; // of a server that says it is busy

export class Answer {
  #outcome; // as in turn.js
  #shows; // {view, instruments, race}; the last two may be missing
  #server;
  #signal;
  #clock = new ClockTimings();
  #pending = ""; // arrived, not yet on the page
  #running = true;

  /** Where `signal` aborts, the connection closes, and the server with it stops decoding. */
  constructor(outcome, server, shows, signal) {
    this.#outcome = outcome;
    this.#server = server;
    this.#shows = shows;
    this.#signal = signal;
  }

  /** Run to the end. The outcome then holds the answer and how it ended; returns the error, or null. */
  async run(onFrame) {
    const { instruments, race, view } = this.#shows;
    const outcome = this.#outcome;
    instruments?.reset();
    this.#phase("sent");
    view.busy = true;
    this.#nextFrame(onFrame);
    try {
      await this.#read();
      if (outcome.finish === null) throw new ServerError("The connection ended before the answer did.");
    } catch (error) {
      if (this.#signal.aborted) outcome.finish = "stopped";
      else {
        outcome.finish = "error";
        outcome.error = error instanceof ServerError ? error.message : `The page failed: ${error}`;
      }
      return error;
    } finally {
      this.#running = false;
      this.#showPending();
      race?.end(outcome);
      instruments?.finish(outcome.timings);
      this.#phase({ stop: "done", length: "done", tool_calls: "done" }[outcome.finish] ?? outcome.finish);
      view.finish();
    }
    return null;
  }

  /** Read the stream; where the server is busy, wait as long as it says and ask again. */
  async #read() {
    for (let tries = 1; ; tries += 1) {
      try {
        for await (const event of streamAnswer(this.#server, this.#outcome.request, this.#signal)) {
          this.#take(event);
        }
        return;
      } catch (error) {
        if (error.status !== 429 || this.#outcome.answer !== "" || tries === MAX_TRIES) throw error;
        await this.#waitOut(error);
        this.#clock = new ClockTimings();
      }
    }
  }

  async #waitOut({ message, retryAfter }) {
    for (let left = Math.ceil(retryAfter); left > 0; left -= 1) {
      this.#phase("refused", `, again in ${left} s`);
      this.#shows.view.notice = `${message} Asked again in ${left} s; Stop gives up.`;
      await pause(1000, this.#signal);
    }
    this.#shows.view.notice = "";
    this.#phase("sent");
  }

  #take(event) {
    const now = performance.now();
    const outcome = this.#outcome;
    if (event.phase !== undefined && event.phase !== "done") {
      this.#phase(event.phase, event.ahead > 0 ? `, ${event.ahead} ahead` : "");
    }
    const choice = event.choices?.[0];
    const delta = choice?.delta ?? {};
    const text = delta.content ?? choice?.text ?? "";
    outcome.answer += text;
    this.#pending += text;
    outcome.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
    takeCalls(outcome.calls, delta.tool_calls ?? []);
    const timings = event.timings ?? (this.#server.url === "" ? null : this.#clock.take(event, now));
    if (timings !== null) {
      outcome.timings = timings;
      this.#shows.instruments?.add(timings, now);
      this.#shows.race?.add(text, timings, now);
    }
    if (choice?.finish_reason != null) outcome.finish = choice.finish_reason;
  }

  #phase(name, detail = "") {
    this.#shows.instruments?.phase(name, detail);
    this.#shows.view.phase = name;
  }

  #nextFrame(onFrame) {
    requestAnimationFrame((now) => {
      if (!this.#running) return;
      this.#showPending();
      this.#shows.view.frame(now);
      this.#shows.instruments?.frame(now);
      onFrame();
      this.#nextFrame(onFrame);
    });
  }

  #showPending() {
    if (this.#pending === "") return;
    this.#shows.view.append(this.#pending);
    this.#pending = "";
  }
}

/** Resolve after `ms`; reject at once when `signal` aborts. */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    signal.addEventListener("abort", stop, { once: true });
  });
}

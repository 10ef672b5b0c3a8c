// One answer under way: reads the stream, and shows it frame by frame. What arrives between two
// frames is gathered first, so the page does the same work at 30 and at 3,000 tokens per second.

import { takeCalls } from "./asides.js";
import { ServerError, streamAnswer } from "./server.js";

export class Answer {
  #turn;
  #shows; // {view, instruments, race}
  #abort = new AbortController();
  #pending = ""; // arrived, not yet on the page
  #running = true;

  constructor(turn, shows) {
    this.#turn = turn;
    this.#shows = shows;
  }

  /** Stop it: the connection closes, and the server with it stops decoding. */
  stop() {
    this.#abort.abort();
  }

  /** Run to the end. The turn then holds the answer, its timings and how it ended; never throws. */
  async run(key, onFrame) {
    const { instruments, race, view } = this.#shows;
    const turn = this.#turn;
    instruments.reset();
    instruments.phase("sent");
    view.busy = true;
    this.#nextFrame(onFrame);
    try {
      for await (const event of streamAnswer(turn.request, key, this.#abort.signal)) this.#take(event);
      if (turn.finish === null) throw new ServerError("The connection ended before the answer did.");
    } catch (error) {
      if (this.#abort.signal.aborted) turn.finish = "stopped";
      else {
        turn.finish = "error";
        turn.error = error instanceof ServerError ? error.message : `The page failed: ${error}`;
      }
      return error;
    } finally {
      this.#running = false;
      this.#showPending();
      race.end();
      instruments.finish(turn.timings);
      instruments.phase({ stop: "done", length: "done", tool_calls: "done" }[turn.finish] ?? turn.finish);
      view.finish();
    }
    return null;
  }

  #take(event) {
    const now = performance.now();
    const { instruments, race } = this.#shows;
    if (event.phase !== undefined && event.phase !== "done") {
      instruments.phase(event.phase, event.ahead > 0 ? `, ${event.ahead} ahead` : "");
    }
    const choice = event.choices?.[0];
    const delta = choice?.delta ?? {};
    const text = delta.content ?? choice?.text ?? "";
    this.#turn.answer += text;
    this.#pending += text;
    this.#turn.reasoning += delta.reasoning_content ?? "";
    takeCalls(this.#turn.calls, delta.tool_calls ?? []);
    if (event.timings !== undefined) {
      this.#turn.timings = event.timings;
      instruments.add(event.timings, now);
      race.add(text, event.timings, now);
    }
    if (choice?.finish_reason != null) this.#turn.finish = choice.finish_reason;
  }

  #nextFrame(onFrame) {
    requestAnimationFrame((now) => {
      if (!this.#running) return;
      this.#showPending();
      this.#shows.view.frame(now);
      this.#shows.instruments.frame(now);
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

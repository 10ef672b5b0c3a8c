// The turns so far: what was asked, what was answered, how fast. Lives in this page and this tab's
// sessionStorage; the server keeps nothing. A turn is
//
//   {mode: "chat" | "continue", prompt, answer, request: {path, body} | null,
//    reasoning: text beside the answer, calls: [{name, arguments}] of tools,
//    finish: "stop" | "length" | "tool_calls" | "stopped" | "error" | null, error: text | null,
//    timings: as in docs/serving.md | null}

import { keep, kept } from "./storage.js";

const FORMAT = "monolane-playground";
const MAX_FILE = 8 << 20; // characters of an imported file
const MAX_TURNS = 1000;

export class Conversation {
  turns = [];

  constructor() {
    try {
      this.turns = readTurns(kept("turns") ?? []);
    } catch {
      // Left by another version of this page.
    }
  }

  /** Begin a turn and return it. */
  add(mode, prompt) {
    const turn = {
      ...{ mode, prompt, answer: "", reasoning: "", calls: [] },
      ...{ request: null, finish: null, error: null, timings: null },
    };
    this.turns.push(turn);
    return turn;
  }

  /** Take the last turn away and return it. */
  takeLast() {
    return this.turns.pop();
  }

  save() {
    keep("turns", this.turns);
  }

  clear() {
    this.turns = [];
    this.save();
  }

  /** Return the request that answers `turn`, the last one. */
  request(turn, model, parameters) {
    const body = {
      model,
      ...parameters.sampling(),
      stream: true,
      timings_per_token: true,
    };
    if (turn.mode === "continue") {
      return { path: "v1/completions", body: { ...body, prompt: turn.prompt } };
    }
    return { path: "v1/chat/completions", body: { ...body, messages: this.#messages(parameters) } };
  }

  #messages(parameters) {
    const { system } = parameters.values;
    const messages = system.trim() === "" ? [] : [{ role: "system", content: system }];
    for (const turn of this.turns.filter((turn) => turn.mode === "chat")) {
      messages.push({ role: "user", content: turn.prompt });
      if (turn.answer === "") continue;
      // Templates that show a model its thoughts again read them there.
      const thought = turn.reasoning === "" ? {} : { reasoning_content: turn.reasoning };
      messages.push({ role: "assistant", content: turn.answer, ...thought });
    }
    return messages;
  }

  /** Return the text of a file with the whole conversation. */
  toFile(model, parameters) {
    const file = { format: FORMAT, version: 1, model, parameters, turns: this.turns };
    return JSON.stringify(file, null, 2);
  }

  /** Take a file's turns in place of these; returns its parameters. Throws Error with the reason. */
  fromFile(text) {
    if (text.length > MAX_FILE) throw new Error("expected a file of at most 8 MB");
    const file = JSON.parse(text);
    if (file?.format !== FORMAT || file.version !== 1) {
      throw new Error("expected a conversation that this page exported (version 1)");
    }
    this.turns = readTurns(file.turns);
    this.save();
    return typeof file.parameters === "object" && file.parameters !== null ? file.parameters : {};
  }
}

/** Return checked copies: nothing of a file is used that is not looked at here. */
function readTurns(turns) {
  if (!Array.isArray(turns) || turns.length > MAX_TURNS) {
    throw new Error(`expected at most ${MAX_TURNS} turns`);
  }
  return turns.map((turn, at) => {
    if (typeof turn?.prompt !== "string" || typeof turn.answer !== "string") {
      throw new Error(`turn ${at + 1}: expected a prompt and an answer`);
    }
    return {
      mode: turn.mode === "continue" ? "continue" : "chat",
      prompt: turn.prompt,
      answer: turn.answer,
      reasoning: typeof turn.reasoning === "string" ? turn.reasoning : "",
      calls: readCalls(turn.calls),
      request: readRequest(turn.request),
      finish: ["stop", "length", "tool_calls", "stopped", "error"].includes(turn.finish) ? turn.finish : null,
      error: typeof turn.error === "string" ? turn.error : null,
      timings: readTimings(turn.timings),
    };
  });
}

function readCalls(calls) {
  if (!Array.isArray(calls)) return [];
  return calls.map((call) => ({ name: String(call?.name), arguments: String(call?.arguments) }));
}

function readRequest(request) {
  const paths = ["v1/completions", "v1/chat/completions"];
  const whole = paths.includes(request?.path) && request.body instanceof Object;
  return whole ? { path: request.path, body: request.body } : null;
}

function readTimings(timings) {
  if (typeof timings !== "object" || timings === null) return null;
  const numbers = Object.entries(timings).filter(([, value]) => Number.isFinite(value));
  return numbers.length === 0 ? null : Object.fromEntries(numbers);
}

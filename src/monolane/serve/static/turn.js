// A turn: what was asked, what was answered, how fast. The server keeps nothing of it.
//
//   {id, parent: id of the turn before it | null, mode: "chat" | "continue", prompt,
//    rival: {name, and an outcome as below} | null,
//
//    request: {path, body} | null, answer, reasoning: text beside the answer,
//    calls: [{name, arguments}] of tools,
//    finish: "stop" | "length" | "tool_calls" | "stopped" | "error" | null, error: text | null,
//    timings: as in docs/serving.md | null}
//
// The fields from `request` on are an outcome: the answer of one server to one request. Turns with the
// same parent are versions of each other.

const FINISHES = ["stop", "length", "tool_calls", "stopped", "error"];
const PATHS = ["v1/completions", "v1/chat/completions"];

export function newTurn(mode, prompt, parent) {
  return { id: newId(), parent, mode, prompt, rival: null, ...newOutcome() };
}

export function newOutcome(request = null) {
  return {
    ...{ request, answer: "", reasoning: "", calls: [] },
    ...{ finish: null, error: null, timings: null },
  };
}

/** Whether both answers have ended; else they are under way, or their page was closed before. */
export function isOver({ finish, rival }) {
  return finish !== null && rival?.finish !== null;
}

/** 96 random bits: turns of two tabs never share an id (randomUUID needs a secure origin). */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return checked copies: nothing of a file is used that is not looked at here. Throws Error. */
export function readTurns(turns) {
  if (!Array.isArray(turns)) throw new Error("expected a list of turns");
  const known = new Set();
  let before = null; // files of version 1 have no branches: each turn follows the one before it
  return turns.map((turn, at) => {
    if (typeof turn?.prompt !== "string" || typeof turn.answer !== "string") {
      throw new Error(`turn ${at + 1}: expected a prompt and an answer`);
    }
    const id = readId(turn.id) ?? newId();
    const parent = turn.parent === undefined ? before : turn.parent;
    if (known.has(id) || (parent !== null && !known.has(parent))) {
      throw new Error(`turn ${at + 1}: expected an id of its own, and a parent before it`);
    }
    known.add(id);
    before = id;
    const mode = turn.mode === "continue" ? "continue" : "chat";
    const rival = typeof turn.rival?.answer === "string" ? readRival(turn.rival) : null;
    return { id, parent, mode, prompt: turn.prompt, rival, ...readOutcome(turn) };
  });
}

const readId = (id) => (typeof id === "string" && /^[0-9a-f]{1,32}$/.test(id) ? id : null);

const readRival = (rival) => ({ name: String(rival.name).slice(0, 200), ...readOutcome(rival) });

function readOutcome(given) {
  return {
    request: readRequest(given.request),
    answer: given.answer,
    reasoning: typeof given.reasoning === "string" ? given.reasoning : "",
    calls: readCalls(given.calls),
    finish: FINISHES.includes(given.finish) ? given.finish : null,
    error: typeof given.error === "string" ? given.error : null,
    timings: readTimings(given.timings),
  };
}

function readCalls(calls) {
  if (!Array.isArray(calls)) return [];
  return calls.map((call) => ({ name: String(call?.name), arguments: String(call?.arguments) }));
}

function readRequest(request) {
  const whole = PATHS.includes(request?.path) && request.body instanceof Object;
  return whole ? { path: request.path, body: request.body } : null;
}

function readTimings(timings) {
  if (typeof timings !== "object" || timings === null) return null;
  const numbers = Object.entries(timings).filter(([, value]) => Number.isFinite(value));
  return numbers.length === 0 ? null : Object.fromEntries(numbers);
}

// A server, as this page uses it: health, the model, tokens of a draft, one streamed answer. Paths
// are relative, so the page also works behind a proxy that puts it under a folder.

import { readEvents } from "./events.js";
import { fetchOf } from "./servers.js";

/** What went wrong, in words for the reader; `status` is the HTTP status or 0. */
export class ServerError extends Error {
  constructor(message, status = 0, { retryAfter = 0, code = null } = {}) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter; // seconds, with a status 429
    this.code = code; // the server's own word or number for it
  }
}

/** Return "ready", "loading" (or busy closing down), or "unreachable". */
export async function health() {
  try {
    const response = await fetch("health", { cache: "no-store" });
    return response.ok ? "ready" : "loading";
  } catch {
    return "unreachable";
  }
}

/** Return the first model's entry of `/v1/models`. */
export async function fetchModel(server, signal) {
  const options = { headers: headers(server), cache: "no-store", signal };
  const list = await (await send(server, "v1/models", options)).json().catch(() => null);
  const first = list?.data?.[0];
  if (first === undefined) throw new ServerError(`${server.url}v1/models lists no model.`);
  return first;
}

/** Return {count, max_model_len} of {prompt} or {messages}. */
export async function countTokens(server, body, signal) {
  return (await post(server, "tokenize", body, signal)).json();
}

/** Yield what a server says about one answer: its data events and its phases, as they come. */
export async function* streamAnswer(server, request, signal) {
  const response = await post(server, request.path, request.body, signal);
  try {
    for await (const event of readEvents(response)) {
      if (event.error == null) yield event;
      else throw new ServerError(messageOf(event) ?? "The server failed.", event.error.code);
    }
  } catch (error) {
    // So browsers report a connection that breaks.
    throw error instanceof TypeError ? new ServerError("The connection ended before the answer did.") : error;
  }
}

function post(server, path, body, signal) {
  const kind = { "Content-Type": "application/json" };
  const options = { method: "POST", headers: { ...headers(server), ...kind }, body: JSON.stringify(body), signal };
  return send(server, path, options);
}

async function send(server, path, options) {
  let response;
  try {
    const ask = await fetchOf(server);
    response = await ask(server.url + path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable(server);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const retryAfter = response.status === 429 ? Number(response.headers.get("Retry-After")) || 1 : 0;
  const message = messageOf(body) ?? `The server answered ${response.status}.`;
  throw new ServerError(message, response.status, { retryAfter, code: body?.error?.code });
}

function unreachable(server) {
  if (server.url === "") return new ServerError("The server cannot be reached. Is it still running?");
  const { origin } = location;
  return new ServerError(
    `${server.url} cannot be reached, or does not let pages of ${origin} ask ` +
      `(monolane serve --allow-origin ${origin}).`,
  );
}

const headers = ({ key }) => (key === "" ? {} : { Authorization: `Bearer ${key}` });

/** What a server says went wrong: OpenAI's form, or a text alone. */
const messageOf = (body) => (typeof body?.error === "string" ? body.error : body?.error?.message);

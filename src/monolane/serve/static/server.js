// The server, as this page uses it: health, the model, one streamed answer. Paths are relative, so
// the page also works behind a proxy that puts it under a folder.

import { readEvents } from "./events.js";

/** What went wrong, in words for the reader; `status` is the HTTP status or 0. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
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

/** Return the model's entry of `/v1/models`. */
export async function fetchModel(key) {
  const response = await send("v1/models", { headers: headers(key), cache: "no-store" });
  const { data } = await response.json();
  return data[0];
}

/** Yield what the server says about one answer: its data events and its phases, as they come. */
export async function* streamAnswer(request, key, signal) {
  const response = await send(request.path, {
    method: "POST",
    headers: { ...headers(key), "Content-Type": "application/json" },
    body: JSON.stringify(request.body),
    signal,
  });
  for await (const event of readEvents(response)) {
    if (event.error !== undefined) throw new ServerError(messageOf(event), event.error.code);
    yield event;
  }
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new ServerError(messageOf(body) ?? `The server answered ${response.status}.`, response.status);
}

const headers = (key) => (key === "" ? {} : { Authorization: `Bearer ${key}` });

const messageOf = (body) => body.error?.message;

// The request that asks for a turn's answer.

/** What another server may not know goes out to it only where it changes something. */
const NEUTRAL = { top_p: 1, top_k: 0, min_p: 0 };
/** What OpenAI's API does not have, and may refuse, goes out to it only where the visitor has set it. */
const OURS = ["top_k", "min_p"];

/** Return {path, body} for `turn` of `conversation` by `parameters`; `server` is as in servers.js. */
export function requestFor(conversation, turn, server, parameters) {
  const sampling = parameters.sampling(turn.mode);
  const body = { model: server.model, ...sampling, stream: true };
  if (server.url === "") body.timings_per_token = true;
  else {
    body.stream_options = { include_usage: true };
    for (const [name, value] of Object.entries(NEUTRAL)) if (body[name] === value) delete body[name];
    for (const name of OURS) if (!parameters.isSet(name)) delete body[name];
  }
  if (turn.mode === "continue") return { path: "v1/completions", body: { ...body, prompt: turn.prompt } };
  const messages = messagesTo(conversation.pathTo(turn.id), parameters.values.system);
  return { path: "v1/chat/completions", body: { ...body, messages } };
}

/** Return the messages that `path` holds; an answer that is empty is left out. */
export function messagesTo(path, system) {
  const messages = system.trim() === "" ? [] : [{ role: "system", content: system }];
  for (const turn of path.filter((turn) => turn.mode === "chat")) {
    messages.push({ role: "user", content: turn.prompt });
    if (turn.answer === "") continue;
    // Templates that show a model its thoughts again read them there.
    const thought = turn.reasoning === "" ? {} : { reasoning_content: turn.reasoning };
    messages.push({ role: "assistant", content: turn.answer, ...thought });
  }
  return messages;
}

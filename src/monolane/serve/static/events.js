// Server-sent events from a fetch response. `data` lines hold one JSON value each; comment lines that
// hold a JSON object tell the phase (docs/serving.md); other comments keep the connection open.

/** Yield the value of each `data` line and phase comment; ends with `[DONE]` or with the body. */
export async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        const data = /^data: ?(.*)/.exec(line)?.[1];
        if (data === "[DONE]") return;
        if (data) yield JSON.parse(data);
        else if (line.startsWith(": {")) yield JSON.parse(line.slice(2));
      }
    }
  } finally {
    // Closes the connection when the reader leaves early, so that the server stops.
    reader.cancel().catch(() => {});
  }
}

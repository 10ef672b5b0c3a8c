// The text of an answer that grows on the page: formatted for a chat, as it is for a continuation.

import { MarkdownStream } from "./markdown.js";

const CHUNK = 4000; // characters of one block of plain text: only the last is laid out again

/** Return {append(text), settle()} for the answer of `turn` inside `parent`. */
export function growingText(parent, turn) {
  return turn.mode === "chat" ? new MarkdownStream(parent) : new PlainStream(parent, turn.prompt);
}

/** Text as it is, behind the prompt that it continues. */
class PlainStream {
  #pre = document.createElement("pre");
  #text = document.createTextNode("");

  constructor(parent, prompt) {
    this.#pre.tabIndex = 0; // scrolls by keyboard
    const given = document.createElement("b");
    given.textContent = prompt;
    this.#chunk().prepend(given);
    parent.append(this.#pre);
  }

  append(text) {
    // A new chunk begins only behind the end of a line, where the eye sees no difference.
    if (this.#text.length > CHUNK && this.#text.data.endsWith("\n")) this.#chunk();
    this.#text.appendData(text);
  }

  settle() {}

  #chunk() {
    const chunk = document.createElement("span");
    chunk.className = "chunk";
    this.#text = document.createTextNode("");
    chunk.append(this.#text);
    this.#pre.append(chunk);
    return chunk;
  }
}

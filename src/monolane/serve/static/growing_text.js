// The text of an answer that grows on the page: formatted for a chat, as it is for a continuation.

import { colours, guessLanguage } from "./code_colours.js";
import { MarkdownStream } from "./markdown.js";

const CHUNK = 4000; // characters of one block of plain text: only the last is laid out again

/** Return {append(text), settle(whole)} for the answer to `prompt` inside `parent`. */
export function growingText(parent, mode, prompt) {
  return mode === "chat" ? new MarkdownStream(parent) : new PlainStream(parent, prompt);
}

/** Text as it is, behind the prompt that it continues; in colours if it is code. */
class PlainStream {
  #pre = document.createElement("pre");
  #text = document.createTextNode("");
  #source;
  #given; // characters of the prompt
  #language = null;

  constructor(parent, prompt) {
    this.#pre.tabIndex = 0; // scrolls by keyboard
    this.#source = prompt;
    this.#given = prompt.length;
    const given = document.createElement("b");
    given.textContent = prompt;
    this.#chunk().prepend(given);
    parent.append(this.#pre);
  }

  append(text) {
    this.#source += text;
    // A new chunk begins only behind the end of a line, where the eye sees no difference.
    if (this.#text.length > CHUNK && this.#text.data.endsWith("\n")) this.#chunk();
    this.#text.appendData(text);
  }

  /** Colour the text once it is whole: while it comes, the machine is the model's. */
  settle(whole = false) {
    if (!whole) return;
    this.#language ??= guessLanguage(this.#source);
    const coloured = this.#language === null ? null : colours(this.#source, this.#language);
    if (coloured === null) return;
    this.#pre.replaceChildren(coloured);
    this.#markPrompt();
    this.#chunk("");
  }

  /** Put the prompt into an element of its own again; words across its end are parted. */
  #markPrompt() {
    const walker = document.createTreeWalker(this.#pre, NodeFilter.SHOW_TEXT);
    let left = this.#given;
    while (walker.nextNode() && walker.currentNode.length < left) left -= walker.currentNode.length;
    const range = document.createRange();
    range.setStart(this.#pre, 0);
    range.setEnd(walker.currentNode, left);
    const given = document.createElement("b");
    given.append(range.extractContents());
    this.#pre.prepend(given);
  }

  #chunk(className = "chunk") { // a block, or in line behind coloured text
    const chunk = document.createElement("span");
    chunk.className = className;
    this.#text = document.createTextNode("");
    chunk.append(this.#text);
    this.#pre.append(chunk);
    return chunk;
  }
}

// What an answer holds beside its text: the model's reasoning, above it and folded, and the calls of
// tools, below it. Both come onto the page with their first text, and are inert text.

import { element } from "./elements.js";
import { count } from "./format.js";

export class Asides {
  #turn;
  #body;
  #thought = null; // text node of the reasoning
  #summary = null; // of its fold
  #list = null; // of the calls
  #shown = []; // text node of each call's arguments

  /** Beside `body`, the element that holds the text of an answer; `turn` is its outcome (turn.js). */
  constructor(turn, body) {
    this.#turn = turn;
    this.#body = body;
  }

  /** Show what the turn has gained since the last time. */
  show() {
    const { answer, reasoning, calls, finish } = this.#turn;
    if (reasoning !== "") {
      grow((this.#thought ??= this.#addReasoning()), reasoning);
      const over = answer !== "" || calls.length > 0 || finish !== null;
      const words = count(reasoning.split(/\s+/).filter(Boolean).length);
      this.#summary.textContent = over ? `Thought, ${words} words` : `Thinking, ${words} words`;
      this.#summary.parentElement.toggleAttribute("data-live", !over);
    }
    for (const [at, call] of calls.entries()) {
      grow((this.#shown[at] ??= this.#addCall(call.name)), call.arguments);
    }
  }

  #addReasoning() {
    const details = element("details", "reasoning");
    this.#summary = element("summary", "");
    details.append(this.#summary);
    this.#body.before(details);
    return textIn("pre", details);
  }

  #addCall(name) {
    if (this.#list === null) {
      this.#list = element("ul", "calls");
      this.#list.setAttribute("aria-label", "Tool calls");
      this.#body.after(this.#list);
    }
    const item = element("li", "");
    item.append(element("b", "", name));
    this.#list.append(item);
    return textIn("code", item);
  }
}

/** Take the parts of tool calls that a chunk brings into `calls`, [{name, arguments}]. */
export function takeCalls(calls, parts) {
  for (const { index, function: part } of parts) {
    const call = (calls[index] ??= { name: "", arguments: "" });
    call.name += part?.name ?? "";
    call.arguments += part?.arguments ?? "";
  }
}

function textIn(name, parent) {
  const place = element(name);
  const text = document.createTextNode("");
  place.append(text);
  parent.append(place);
  return text;
}

function grow(node, text) {
  if (text.length > node.length) node.appendData(text.slice(node.length));
}

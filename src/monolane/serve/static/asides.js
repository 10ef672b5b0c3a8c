// What an answer holds beside its text: the model's reasoning, above it and folded, and the calls of
// tools, below it. Both come onto the page with their first text, and are inert text.

export class Asides {
  #turn;
  #body;
  #thought = null; // text node of the reasoning
  #list = null; // of the calls
  #shown = []; // text node of each call's arguments

  /** Beside `body`, the element that holds the text of `turn`'s answer. */
  constructor(turn, body) {
    this.#turn = turn;
    this.#body = body;
  }

  /** Show what the turn has gained since the last time. */
  show() {
    const { reasoning, calls } = this.#turn;
    if (reasoning !== "") grow((this.#thought ??= this.#addReasoning()), reasoning);
    for (const [at, call] of calls.entries()) {
      grow((this.#shown[at] ??= this.#addCall(call.name)), call.arguments);
    }
  }

  #addReasoning() {
    const details = made("details", "reasoning");
    details.append(made("summary", "", "Reasoning"));
    this.#body.before(details);
    return textIn("pre", details);
  }

  #addCall(name) {
    if (this.#list === null) {
      this.#list = made("ul", "calls");
      this.#list.setAttribute("aria-label", "Tool calls");
      this.#body.after(this.#list);
    }
    const item = made("li", "");
    item.append(made("b", "", name));
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

function made(name, className, text = "") {
  const element = document.createElement(name);
  if (className !== "") element.className = className;
  element.textContent = text;
  return element;
}

function textIn(name, parent) {
  const element = document.createElement(name);
  const text = document.createTextNode("");
  element.append(text);
  parent.append(element);
  return text;
}

function grow(node, text) {
  if (text.length > node.length) node.appendData(text.slice(node.length));
}

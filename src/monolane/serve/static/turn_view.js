// One turn on the page: the prompt, its answer or two answers side by side, its versions, and what can
// be done with it.

import { AnswerView } from "./answer_view.js";
import { copyButton } from "./clipboard.js";
import { curlCommand } from "./curl.js";
import { button, element } from "./elements.js";

export class TurnView {
  element;
  rival = null; // AnswerView of the other side
  #turn;
  #actions;
  #versions;
  #answer;
  #footer = element("footer");

  /** `versions`: the turns with the same place. `actions`: {regenerate, edit, choose, withKey}. */
  constructor(turn, versions, actions) {
    this.#turn = turn;
    this.#actions = actions;
    this.#versions = versions;
    this.element = element("article", `turn ${turn.mode}`);
    const chat = turn.mode === "chat";
    if (chat) this.element.append(element("h2", "", "You"), element("div", "prompt", turn.prompt));
    const paired = turn.rival !== null;
    const heading = chat ? "Model" : "Continued text";
    this.#answer = new AnswerView(turn, turn, paired ? "Here" : heading);
    const sides = element("div", "sides");
    sides.append(this.#answer.element);
    if (paired) {
      this.rival = new AnswerView(turn.rival, turn, turn.rival.name);
      sides.append(this.rival.element);
      this.element.classList.add("pair");
    }
    this.element.append(sides, this.#footer);
  }

  append(text) {
    this.#answer.append(text);
  }

  frame(now) {
    this.#answer.frame(now);
  }

  /** Take the keyboard's focus, without a place of its own in the order of Tab. */
  focus() {
    this.element.tabIndex = -1;
    this.element.focus({ preventScroll: true });
  }

  set busy(busy) {
    this.element.setAttribute("aria-busy", String(busy));
  }

  set notice(text) {
    this.#answer.notice = text;
  }

  set phase(name) {
    this.#answer.phase = name;
  }

  /** This side's answer is over. */
  finish() {
    this.#answer.finish();
    this.busy = false;
    this.#footer.replaceChildren(this.#buttons());
  }

  #buttons() {
    const turn = this.#turn;
    const row = element("p", "actions");
    if (this.#versions.length > 1) row.append(this.#steps());
    if (turn.answer !== "") row.append(copyButton("Copy", () => turn.answer));
    row.append(button("Regenerate", "last-only", () => this.#actions.regenerate(turn)));
    row.append(button("Edit", "", () => this.#actions.edit(turn)));
    if (turn.request !== null) {
      const command = () => curlCommand(turn.request, this.#actions.withKey());
      row.append(copyButton("Copy as curl", command));
    }
    return row;
  }

  /** The versions of this turn, stepped through. */
  #steps() {
    const at = this.#versions.indexOf(this.#turn);
    const step = (sign, to, name) => {
      const made = button(sign, "step", () => this.#actions.choose(this.#versions[to], name), name);
      made.disabled = this.#versions[to] === undefined;
      return made;
    };
    const steps = element("span", "steps");
    steps.append(
      step("‹", at - 1, "Version before"),
      element("span", "", `${at + 1}/${this.#versions.length}`),
      step("›", at + 1, "Version after"),
    );
    return steps;
  }
}

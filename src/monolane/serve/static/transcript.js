// The turns on the page, in order, scrolled to the end unless the reader has scrolled up.

import { TurnView } from "./turn_view.js";

const NEAR_END = 48; // pixels from the end that still count as the end

export class Transcript {
  #element;
  #empty; // shown while there is no turn
  #follows = true;

  constructor(element, empty) {
    this.#element = element;
    this.#empty = empty;
    element.addEventListener("scroll", () => {
      const below = element.scrollHeight - element.scrollTop - element.clientHeight;
      this.#follows = below < NEAR_END;
    });
  }

  /** Whether something in it has the keyboard's focus. */
  get holdsFocus() {
    const { activeElement } = document;
    return activeElement !== this.#element && this.#element.contains(activeElement);
  }

  /** Show a turn at the end and return its view. */
  add(turn, versions, actions) {
    const view = new TurnView(turn, versions, actions);
    this.#empty.hidden = true;
    this.#element.append(view.element);
    this.follow(true);
    return view;
  }

  /** Leave the first `turns` on the page. */
  cut(turns) {
    for (const turn of [...this.#element.querySelectorAll(".turn")].slice(turns)) turn.remove();
    this.#empty.hidden = turns > 0;
  }

  /** Scroll to the end, if the reader was there or `always`. */
  follow(always = false) {
    this.#follows ||= always;
    if (this.#follows) this.#element.scrollTop = this.#element.scrollHeight;
  }
}

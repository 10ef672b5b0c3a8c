// Where the visitor writes: the message, its mode, send or stop, and a message edited again.

import { connectAttachments } from "./attachments.js";
import { button } from "./elements.js";
import { EXAMPLES } from "./examples.js";

const PLACEHOLDERS = { chat: "Ask something", continue: "Text or code that the model goes on from" };
const DEMO_NOTE =
  "The demo model has read Python’s standard library and nothing else: it continues code, and was " +
  "never taught to converse.";

export class Composer {
  edited = null; // the turn that is written again
  #draft = null; // {mode, text} that stood in the message before
  #form;
  #actions;
  #stops = false; // what the button does
  #chosen = false; // the mode, by the visitor or the conversation: the model's kind is not asked

  /** `actions`: {busy(), send(mode, text), stop(), editLast(), draft(mode, text, edited)}. */
  constructor(form, actions) {
    this.#form = form;
    this.#actions = actions;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#stops) actions.stop();
      else this.#send();
    });
    this.#message.addEventListener("keydown", (event) => this.#key(event));
    this.#message.addEventListener("input", () => this.#changed());
    for (const radio of form.elements.mode) {
      radio.addEventListener("change", () => this.setMode(radio.value));
    }
    const [open, input] = [form.querySelector("#attach"), form.querySelector("#attached")];
    const say = (problem) => (form.querySelector("#attach-error").textContent = problem);
    connectAttachments({ place: form, open, input }, (text) => this.#insert(text), say);
    this.#showMode();
  }

  /** Whether the button stops an answer; busy() is over earlier, by the time of a save. */
  set stops(stops) {
    this.#stops = stops;
    const send = this.#form.querySelector("#send");
    send.textContent = stops ? "Stop" : "Send";
    send.classList.toggle("stop", stops);
  }

  /** Begin in the mode that suits the model, whose entry of /v1/models this is. */
  suit(entry) {
    const demo = entry.root === "demo";
    document.getElementById("note").textContent = demo ? DEMO_NOTE : "";
    if (demo && !this.#chosen) this.setMode("continue");
  }

  setMode(mode) {
    this.#chosen = true;
    this.#form.elements.mode.value = mode;
    this.#showMode();
  }

  /** Write a message again: sending it makes another version of `turn`. */
  edit(turn) {
    if (this.edited === null) this.#draft = { mode: this.#mode, text: this.#message.value };
    this.edited = turn;
    this.#form.querySelector("#editing").hidden = false;
    this.setMode(turn.mode);
    this.#message.value = turn.prompt;
    this.#changed();
    this.focus();
  }

  leaveEditing() {
    if (this.edited !== null) this.#endEditing();
  }

  focus() {
    this.#message.focus();
  }

  get #message() {
    return this.#form.elements.message;
  }

  get #mode() {
    return this.#form.elements.mode.value;
  }

  #changed() {
    this.#actions.draft(this.#mode, this.#message.value, this.edited);
  }

  /** Put back what stood in the message before. */
  #endEditing() {
    const { mode, text } = this.#draft;
    this.edited = null;
    this.#form.querySelector("#editing").hidden = true;
    this.#message.value = text;
    if (text === "") this.#changed();
    else this.setMode(mode);
  }

  #insert(text) {
    const before = this.#message.value;
    const gap = before === "" || before.endsWith("\n\n") ? "" : before.endsWith("\n") ? "\n" : "\n\n";
    this.#message.value = `${before}${gap}${text}\n`;
    this.#changed();
    this.focus();
  }

  #send() {
    const text = this.#message.value;
    if (text.trim() === "") return;
    this.#actions.send(this.#mode, text);
    if (this.edited !== null) return this.#endEditing();
    this.#message.value = "";
    this.#changed();
  }

  #key(event) {
    if (event.isComposing) return; // Enter that ends a Japanese word sends nothing
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      if (!this.#actions.busy()) this.#send();
    } else if (event.key === "ArrowUp" && this.#message.value === "") {
      event.preventDefault();
      this.#actions.editLast();
    }
  }

  #showMode() {
    const mode = this.#mode;
    this.#message.placeholder = PLACEHOLDERS[mode];
    const buttons = EXAMPLES[mode].map((text) =>
      button(text, "example", () => {
        if (!this.#actions.busy()) this.#actions.send(mode, text);
      }),
    );
    const place = document.getElementById("examples");
    place.dataset.mode = mode;
    place.replaceChildren(...buttons);
    this.#changed();
  }
}

// Where the visitor writes: the message, its mode, send or stop, and the last message edited again.

const HINTS = {
  chat: { placeholder: "Ask something", examples: [
    "Write quicksort in Python and explain each step.",
    "What makes decoding one token at a time slow?",
    "A regular expression for ISO dates, with tests.",
  ] },
  continue: { placeholder: "Text or code that the model goes on from", examples: [
    "def fibonacci(n):",
    "class Stack:",
    "import json\n\ndef main():",
  ] },
};
const DEMO_NOTE =
  "The demo model has read Python’s standard library and nothing else: it continues code, and was " +
  "never taught to converse.";

export class Composer {
  editing = false;
  #form;
  #actions;
  #running = false;
  #chosen = false; // the mode, by the visitor or the conversation: the model's kind is not asked

  /** `actions`: {send(mode, text), stop(), editLast()}. */
  constructor(form, actions) {
    this.#form = form;
    this.#actions = actions;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#running) actions.stop();
      else this.#send();
    });
    this.#message.addEventListener("keydown", (event) => this.#key(event));
    for (const radio of form.elements.mode) {
      radio.addEventListener("change", () => this.setMode(radio.value));
    }
    this.#showMode();
  }

  set running(running) {
    this.#running = running;
    const send = this.#form.querySelector("#send");
    send.textContent = running ? "Stop" : "Send";
    send.classList.toggle("stop", running);
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

  /** Write the last message again: sending it takes the place of `turn`. */
  edit(turn) {
    this.editing = true;
    this.#form.querySelector("#editing").hidden = false;
    this.setMode(turn.mode);
    this.#message.value = turn.prompt;
    this.focus();
  }

  leaveEditing() {
    if (!this.editing) return;
    this.#message.value = "";
    this.#endEditing();
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

  #endEditing() {
    this.editing = false;
    this.#form.querySelector("#editing").hidden = true;
  }

  #send() {
    const text = this.#message.value;
    if (text.trim() === "") return;
    this.#actions.send(this.#mode, text);
    this.#message.value = "";
    this.#endEditing();
  }

  #key(event) {
    if (event.isComposing) return; // Enter that ends a Japanese word sends nothing
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      if (!this.#running) this.#send();
    } else if (event.key === "ArrowUp" && this.#message.value === "") {
      event.preventDefault();
      this.#actions.editLast();
    }
  }

  #showMode() {
    const { placeholder, examples } = HINTS[this.#mode];
    this.#message.placeholder = placeholder;
    const buttons = examples.map((example) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = example;
      button.addEventListener("click", () => {
        if (!this.#running) this.#actions.send(this.#mode, example);
      });
      return button;
    });
    const place = document.getElementById("examples");
    place.dataset.mode = this.#mode;
    place.replaceChildren(...buttons);
  }
}

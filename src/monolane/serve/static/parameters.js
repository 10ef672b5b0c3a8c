// What a visitor sets: sampling, the shape of the answer, the system prompt. Kept in this tab's
// sessionStorage. Two sets exist: that of all answers, and that of the other side of a comparison.

import { keep, kept } from "./storage.js";

const DEFAULTS = {
  temperature: 0.7,
  top_p: 1,
  top_k: 0,
  min_p: 0.05,
  max_tokens: 512,
  frequency_penalty: 0,
  presence_penalty: 0,
  repetition_penalty: 1,
  seed: "", // empty: a new one for each answer
  stop: "",
  schema: "",
  tools: "",
  system: "",
};
const NUMBERS = Object.keys(DEFAULTS).filter((name) => typeof DEFAULTS[name] === "number");
const NEUTRAL = { frequency_penalty: 0, presence_penalty: 0, repetition_penalty: 1 }; // not sent
const JSON_FIELDS = {
  schema: ["a JSON object", (value) => value instanceof Object && !Array.isArray(value)],
  tools: ["a JSON list of tools", Array.isArray],
};

export class Parameters {
  #form;
  #name;
  #defaults = DEFAULTS;

  /** Those in the fields of `form`, kept under `name`. */
  constructor(form, name) {
    this.#form = form;
    this.#name = name;
    this.set({ ...DEFAULTS, ...kept(name) });
    form.addEventListener("input", () => this.#keep());
    form.addEventListener("reset", (event) => {
      event.preventDefault(); // the markup holds no values to go back to
      this.set(this.#defaults);
      this.#keep();
    });
  }

  /** As set; a number that is none, or out of range, stands at its default. */
  get values() {
    const { elements } = this.#form;
    const values = {};
    for (const name of Object.keys(DEFAULTS)) values[name] = elements[name].value;
    for (const name of NUMBERS) {
      const valid = elements[name].value !== "" && elements[name].checkValidity();
      values[name] = valid ? Number(elements[name].value) : this.#defaults[name];
    }
    values.seed = values.seed.trim();
    return values;
  }

  /** Whether a value is another than the default. */
  isSet(name) {
    return this.values[name] !== this.#defaults[name];
  }

  /** Take values; names that are not known are left alone. */
  set(values) {
    for (const name of Object.keys(DEFAULTS)) {
      if (["number", "string"].includes(typeof values[name])) {
        this.#form.elements[name].value = values[name];
      }
    }
    this.#check();
  }

  /** Take defaults that suit the model, and the largest `max_tokens` that its server takes; what was
      set otherwise stays. */
  suit(defaults, maxTokens) {
    const next = { ...DEFAULTS, ...defaults };
    next.max_tokens = Math.min(next.max_tokens, maxTokens);
    const { elements } = this.#form;
    const untouched = ([name]) => elements[name].value === String(this.#defaults[name]);
    const values = Object.fromEntries(Object.entries(next).filter(untouched));
    const most = elements.max_tokens;
    // What was within the bounds until now; other numbers are the visitor's to mend.
    if (most.checkValidity() && Number(most.value) > maxTokens) values.max_tokens = maxTokens;
    most.max = maxTokens;
    this.#defaults = next;
    this.set(values);
  }

  /** The fields of a request. Without a seed one is drawn here, so that it can be shown. */
  sampling(mode) {
    const { seed, stop, schema: _, tools: __, system: ___, ...fields } = this.values;
    for (const [name, value] of Object.entries(NEUTRAL)) if (fields[name] === value) delete fields[name];
    const valid = /^-?\d{1,15}$/.test(seed); // beyond 15 digits JSON would round it
    fields.seed = valid ? Number(seed) : Math.floor(Math.random() * 2 ** 32);
    const stops = stop.split("\n").filter((line) => line !== "").map(unescaped);
    if (stops.length > 0) fields.stop = stops;
    const schema = this.#json("schema");
    if (schema) {
      fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    }
    const tools = this.#json("tools");
    if (tools?.length > 0 && mode === "chat") fields.tools = tools;
    return fields;
  }

  /** The value of a field of JSON; null if it is empty, undefined if it is none. */
  #json(name) {
    const text = this.#form.elements[name].value;
    if (text.trim() === "") return null;
    try {
      const value = JSON.parse(text);
      return JSON_FIELDS[name][1](value) ? value : undefined;
    } catch {
      return undefined;
    }
  }

  #check() {
    for (const [name, [expected]] of Object.entries(JSON_FIELDS)) {
      const wrong = this.#json(name) === undefined;
      this.#form.elements[name].setCustomValidity(wrong ? `Expected ${expected}.` : "");
    }
  }

  #keep() {
    this.#check();
    keep(this.#name, this.values);
  }
}

/** Read \n, \t and \\ in a stop string as JSON does; anything else stands for itself. */
function unescaped(line) {
  return line.replace(/\\([nt\\])/g, (_, letter) => ({ n: "\n", t: "\t", "\\": "\\" })[letter]);
}

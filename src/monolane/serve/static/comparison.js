// What answers are compared with: a fixed pace, this server with other settings, or another server.

import { Parameters } from "./parameters.js";
import { ServerError, fetchModel } from "./server.js";
import { baseUrl } from "./servers.js";
import { keep, kept } from "./storage.js";

const OTHER_SETTINGS = "other settings";

export class Comparison {
  #dialog;
  #form;
  #fields;
  #other; // settings of the other side

  /** `fields`: a copy of the settings' fieldset, for the other side; `onChange()` after each. */
  constructor(dialog, fields, onChange) {
    this.#dialog = dialog;
    this.#form = dialog.querySelector("form");
    this.#fields = fields;
    fields.removeAttribute("id");
    dialog.querySelector(".other-settings").append(fields);
    this.#other = new Parameters(this.#form, "parameters.other");
    const { elements } = this.#form;
    const { kind = "pace", url = "", model = "" } = kept("comparison") ?? {};
    Object.assign(elements.kind, { value: kind });
    elements.url.value = url;
    elements.model.value = model;
    elements.rivalKey.value = kept("rival-key") ?? "";
    this.#form.addEventListener("input", () => {
      this.#show();
      keep("comparison", { kind: this.kind, url: elements.url.value, model: elements.model.value });
      keep("rival-key", elements.rivalKey.value || null);
    });
    dialog.addEventListener("close", onChange);
    this.#show();
  }

  get kind() {
    return this.#form.elements.kind.value;
  }

  /** The other side, before an answer. */
  get label() {
    return this.kind === "settings" ? OTHER_SETTINGS : "another server";
  }

  /** Take what suits the model (parameters.js). */
  suit(defaults, maxTokens) {
    this.#other.suit(defaults, maxTokens);
  }

  open() {
    this.#dialog.showModal();
  }

  /** Return null against a pace, else {name, server, parameters}; `here`: this side's. Throws
      ServerError, and AbortError where `signal` aborts. */
  async rival(here, signal) {
    const { elements } = this.#form;
    if (this.kind === "settings") return { name: OTHER_SETTINGS, server: here.server, parameters: this.#other };
    if (this.kind !== "server") return null;
    const url = baseUrl(elements.url.value);
    if (url === null) throw new ServerError("Compare: expected the other server's address, http:// or https://.");
    const server = { url, key: elements.rivalKey.value.trim(), model: elements.model.value.trim() };
    const known = await fetchModel(server, signal).catch((error) => {
      if (server.model === "" || signal.aborted) throw error;
    });
    server.model ||= known.id;
    return { name: `${server.model} at ${new URL(url).host}`, server, parameters: here.parameters };
  }

  #show() {
    this.#dialog.querySelector(".other-settings").hidden = this.kind !== "settings";
    this.#fields.disabled = this.kind !== "settings"; // then nothing in it can be invalid
    this.#dialog.querySelector(".other-server").hidden = this.kind !== "server";
    this.#form.elements.url.required = this.kind === "server";
  }
}

// The settings dialog: parameters (parameters.js) and the server's key, which no export can hold.

import { keep, kept } from "./storage.js";

const byId = (id) => document.getElementById(id);

/** Connect the dialog; returns {key, askForKey()}. */
export function connectSettings(model) {
  const dialog = byId("settings");
  const key = byId("parameters").elements.key;
  key.value = kept("key") ?? "";
  const settings = {
    get key() {
      return key.value.trim();
    },
    askForKey() {
      if (!dialog.open) dialog.showModal();
      key.focus();
    },
  };
  key.addEventListener("input", () => keep("key", settings.key || null));
  byId("open-settings").addEventListener("click", () => {
    dialog.showModal();
  });
  dialog.addEventListener("close", () => model().watch(settings.key));
  return settings;
}

// The settings dialog: parameters, the key, and the conversation as a file.

const byId = (id) => document.getElementById(id);

/** Connect the dialog; returns {askForKey()}. */
export function connectSettings({ parameters, conversation, model, onImport }) {
  const dialog = byId("settings");
  const failed = byId("file-error");

  byId("open-settings").addEventListener("click", () => {
    failed.textContent = "";
    if (model.entry !== null) parameters.limit(model.entry.monolane?.max_tokens ?? 2 ** 31 - 1);
    dialog.showModal();
  });
  dialog.addEventListener("close", () => model.watch(parameters.key));

  byId("export").addEventListener("click", () => {
    download("monolane-chat.json", conversation.toFile(model.name, parameters.values));
  });
  byId("import").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    event.target.value = ""; // the same file may be chosen again
    try {
      parameters.set(conversation.fromFile(await file.text()));
    } catch (error) {
      failed.textContent = `This file could not be read: ${error.message}`;
      return;
    }
    dialog.close();
    onImport();
  });

  return {
    askForKey() {
      if (!dialog.open) dialog.showModal();
      byId("parameters").elements.key.focus();
    },
  };
}

function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

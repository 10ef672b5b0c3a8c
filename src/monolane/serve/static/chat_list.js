// The list of conversations beside the talk: search, open, rename, delete, undo, files.

import { exportFile, readFile } from "./chat_file.js";
import { Conversation, matches } from "./conversation.js";
import { button, element } from "./elements.js";

const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

export class ChatList {
  #view;
  #library;
  #actions;
  #current = null; // id
  #deleted = null; // record that may come back
  #records = [];

  /** `view`: elements {list, search, deleted, count, file, error, exportAll, importFiles}; `actions`:
      {open(record)}. */
  constructor(view, library, actions) {
    this.#view = view;
    this.#library = library;
    this.#actions = actions;
    view.search.addEventListener("input", () => this.#show());
    view.list.addEventListener("keydown", (event) => this.#key(event));
    view.exportAll.addEventListener("click", () => exportFile(this.#records));
    view.importFiles.addEventListener("click", () => view.file.click());
    view.file.addEventListener("change", () => this.#import());
    library.onChange(() => this.refresh());
    this.refresh();
  }

  /** Mark the conversation that is shown. */
  set current(id) {
    this.#current = id;
    this.#show();
  }

  async refresh() {
    this.#records = await this.#library.list();
    this.#show();
  }

  #show() {
    const { list, search, count } = this.#view;
    if (list.querySelector("input") !== null) return; // a name is being written
    const found = this.#records.filter((record) => matches(record, search.value));
    const focused = document.activeElement?.closest?.("[data-id]")?.dataset.id;
    list.replaceChildren(...found.map((record) => this.#item(record)));
    count.textContent = found.length === 0 ? (search.value === "" ? "No conversations yet." : "Nothing found.") : "";
    if (focused !== undefined) list.querySelector(`[data-id="${focused}"] button`)?.focus();
  }

  #item(record) {
    const item = element("li");
    item.dataset.id = record.id;
    const name = Conversation.from(record).name;
    const open = button("", "open", () => this.#actions.open(record));
    open.append(element("span", "name", name), element("span", "when", when(record.updated)));
    if (record.id === this.#current) open.setAttribute("aria-current", "true");
    item.append(
      open,
      button("✎", "small", () => this.#rename(record.id), `Rename ${name}`),
      button("×", "small", () => this.#remove(record.id), `Delete ${name}`),
    );
    return item;
  }

  /** Up and down between conversations, F2 renames, Delete deletes. */
  #key(event) {
    const item = event.target.closest("[data-id]");
    if (item === null || event.target.nodeName === "INPUT") return;
    const beside = { ArrowDown: item.nextElementSibling, ArrowUp: item.previousElementSibling }[event.key];
    if (beside) beside.querySelector("button").focus();
    else if (event.key === "F2") this.#rename(item.dataset.id);
    else if (event.key === "Delete") this.#remove(item.dataset.id);
    else return;
    event.preventDefault();
  }

  #rename(id) {
    const record = this.#records.find((one) => one.id === id);
    const item = this.#view.list.querySelector(`[data-id="${id}"]`);
    const input = element("input");
    input.value = Conversation.from(record).name;
    input.maxLength = 200;
    input.setAttribute("aria-label", "Name of the conversation");
    item.replaceChildren(input);
    input.select();
    let over = false;
    const end = async (keep) => {
      if (over) return;
      over = true;
      item.replaceChildren();
      item.append(button("", "open", () => {}));
      item.firstChild.focus();
      if (keep) await this.#library.rename(id, input.value.trim());
      this.#show();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter");
    });
    input.addEventListener("blur", () => end(true));
  }

  async #remove(id) {
    const { deleted, search } = this.#view;
    this.#deleted = (await this.#library.get(id)) ?? this.#records.find((one) => one.id === id);
    const name = Conversation.from(this.#deleted).name;
    const undo = button("Undo", "", () => this.#undo());
    deleted.replaceChildren(element("span", "", `Deleted “${name}”.`), undo);
    await this.#library.remove(id);
    if (document.activeElement === document.body) search.focus();
    undo.focus();
  }

  async #undo() {
    const record = this.#deleted;
    this.#view.deleted.replaceChildren();
    await this.#library.put(record);
    await this.refresh();
    await this.#actions.open(record);
    this.#view.list.querySelector(`[data-id="${record.id}"] button`)?.focus();
  }

  async #import() {
    const { file, error } = this.#view;
    const [chosen] = file.files;
    try {
      error.textContent = "";
      const conversations = readFile(await chosen.text());
      await this.#library.putAll(conversations.map(({ record }) => record));
      if (conversations.length > 0) this.#actions.open(conversations[0].record);
    } catch (reason) {
      error.textContent = `This file could not be read: ${reason.message}`;
    } finally {
      file.value = ""; // the same file may be chosen again
    }
  }
}

function when(ms) {
  const today = new Date(ms).toDateString() === new Date().toDateString();
  return (today ? TIME : DAY).format(ms);
}

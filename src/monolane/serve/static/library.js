// The conversations of this browser: in IndexedDB, and in step across its tabs. Where the browser
// keeps nothing (some private windows), they last as long as the page.

const NAME = "monolane";
const STORE = "conversations";

export class Library {
  #database = null;
  #memory = new Map(); // id → record, without a database
  #channel = new BroadcastChannel("monolane.conversations");
  #listeners = [];

  /** Open it; never throws. */
  static async open() {
    const library = new Library();
    try {
      const opening = indexedDB.open(NAME, 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore(STORE, { keyPath: "id" });
      library.#database = await done(opening);
    } catch {
      // Then #memory holds them.
    }
    library.#channel.onmessage = ({ data }) => library.#tell(data, true);
    return library;
  }

  /** Call `listener(id, elsewhere)` after each change; `elsewhere`: another tab made it. */
  onChange(listener) {
    this.#listeners.push(listener);
  }

  /** All records, the last changed first. */
  async list() {
    const records = this.#database ? await done(this.#store("readonly").getAll()) : [...this.#memory.values()];
    return records.sort((one, two) => two.updated - one.updated);
  }

  /** One record, or undefined. */
  async get(id) {
    return this.#database ? done(this.#store("readonly").get(id)) : this.#memory.get(id);
  }

  /** Keep a conversation, with what another tab has added to it since. */
  async save(conversation) {
    const store = this.#database && this.#store("readwrite");
    const kept = store ? await done(store.get(conversation.id)) : undefined;
    if (kept !== undefined) conversation.merge(kept);
    await this.#put(store, conversation.record);
  }

  /** Keep a record in place of what there was. */
  async put(record) {
    await this.#put(this.#database && this.#store("readwrite"), record);
  }

  async remove(id) {
    if (this.#database) await done(this.#store("readwrite").delete(id));
    this.#memory.delete(id);
    this.#changed(id);
  }

  async #put(store, record) {
    const copy = structuredClone(record);
    if (store) await done(store.put(copy));
    else this.#memory.set(record.id, copy);
    this.#changed(record.id);
  }

  #store(mode) {
    return this.#database.transaction(STORE, mode).objectStore(STORE);
  }

  #changed(id) {
    this.#channel.postMessage(id);
    this.#tell(id, false);
  }

  #tell(id, elsewhere) {
    for (const listener of this.#listeners) listener(id, elsewhere);
  }
}

/** The result of a request of IndexedDB. */
function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

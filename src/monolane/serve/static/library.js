// The conversations of this browser: in IndexedDB, and in step across its tabs. What the browser does
// not keep (its disk is full, or it is a private window that keeps nothing) lasts as long as the page.

const NAME = "monolane";
const STORE = "conversations";

export class Library {
  #database = null;
  #memory = new Map(); // id → record that the database does not hold, or not yet
  #known = new Set(); // ids of records that were there: what is no longer there was deleted
  #channel = new BroadcastChannel("monolane.conversations");
  #listeners = [];

  #say;

  /** Open it; never throws. `say(problem)` is told why a change is not kept, or "" once all are. */
  static async open(say = () => {}) {
    const library = new Library();
    library.#say = say;
    try {
      const opening = indexedDB.open(NAME, 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore(STORE, { keyPath: "id" });
      library.#database = await done(opening);
      library.#database.onclose = () => library.#forget();
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
    const stored = this.#database ? await done(this.#store("readonly").getAll()) : [];
    const records = new Map([...stored.map((record) => [record.id, record]), ...this.#memory]);
    return [...records.values()].sort((one, two) => two.updated - one.updated);
  }

  /** One record, or undefined. */
  async get(id) {
    const kept = this.#memory.get(id) ?? (this.#database && (await done(this.#store("readonly").get(id))));
    if (kept) this.#known.add(id);
    return kept ?? undefined;
  }

  /** Keep a conversation, with what another tab has changed since, unless it was deleted there or here.
      `quietly`: no listener is told. */
  async save(conversation, quietly = false) {
    const { id } = conversation;
    const join = (kept) => {
      if (kept === undefined && this.#known.has(id)) return undefined;
      if (kept !== undefined) conversation.merge(kept);
      return conversation.record;
    };
    await this.#change(id, join, quietly);
  }

  /** Name a conversation, whatever else another hand does to it. */
  async rename(id, title) {
    await this.#change(id, (kept) => kept && { ...kept, title });
  }

  /** Keep a record in place of what there was. */
  async put(record) {
    await this.#change(record.id, () => record);
  }

  /** Keep many records, and tell of it once: who listens reads all there are. */
  async putAll(records) {
    for (const record of records) await this.#change(record.id, () => record, true);
    if (records.length > 0) this.#changed(records.at(-1).id);
  }

  async remove(id) {
    this.#memory.delete(id);
    await this.#write((store) => store.delete(id));
    this.#changed(id);
    for (const record of this.#memory.values()) await this.put(record); // there may be room now
  }

  /** Keep what `next(kept)` makes of a record; undefined leaves it. */
  async #change(id, next, quietly = false) {
    let copy;
    const keep = (kept) => {
      const record = next(this.#memory.get(id) ?? kept);
      if (record === undefined) return;
      copy = structuredClone(record);
      this.#memory.set(id, copy);
      this.#known.add(id);
    };
    const written = await this.#write(async (store) => {
      keep(await done(store.get(id)));
      if (copy !== undefined) store.put(copy);
    });
    if (!written && copy === undefined) keep();
    if (written && this.#memory.get(id) === copy) this.#memory.delete(id);
    if (written && this.#memory.size === 0) this.#say("");
    if (copy !== undefined && !quietly) this.#changed(id);
  }

  /** Let `work(store)` write, and wait until it is on the disk; false, and said why, if it is not. */
  async #write(work) {
    if (this.#database === null) return false;
    try {
      const store = this.#store("readwrite");
      await Promise.all([work(store), committed(store.transaction)]);
      return true;
    } catch (error) {
      this.#say(
        `This browser could not keep the conversation (${error.message || error.name}). ` +
          "It lasts as long as this page: export it, or delete others.",
      );
      return false;
    }
  }

  /** The browser has dropped the database, as when the visitor clears its data. */
  #forget() {
    this.#database = null;
    this.#known.clear();
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

/** Resolves when a transaction's writes are on the disk: a full one shows only then. */
function committed(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("the change was not made"));
  });
}

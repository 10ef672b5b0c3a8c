// A conversation: a tree of turns (turn.js), of which one path is shown, from a first turn to `leaf`.

import { isOver, newId, newTurn, readTurns } from "./turn.js";

const NAME_LENGTH = 60; // characters of a name that is the first prompt's first line
const TITLE_LENGTH = 200;

export class Conversation {
  id = newId();
  title = ""; // empty: named by its first prompt
  created = Date.now();
  updated = this.created; // ms since 1970
  leaf = null; // id of the last turn that is shown
  #turns = [];

  /** Read a stored or imported one. Throws Error with what is wrong. */
  static from(record) {
    const conversation = new Conversation();
    conversation.#turns = readTurns(record?.turns);
    if (/^[0-9a-f]{1,32}$/.test(record.id)) conversation.id = record.id;
    if (typeof record.title === "string") conversation.title = record.title.slice(0, TITLE_LENGTH);
    for (const name of ["created", "updated"]) {
      if (Number.isFinite(record[name])) conversation[name] = record[name];
    }
    const known = conversation.#turns.some((turn) => turn.id === record.leaf);
    conversation.leaf = known ? record.leaf : (conversation.#turns.at(-1)?.id ?? null);
    return conversation;
  }

  /** What is stored and exported: plain JSON. */
  get record() {
    const { id, title, created, updated, leaf } = this;
    return { id, title, created, updated, leaf, turns: this.#turns };
  }

  get empty() {
    return this.#turns.length === 0;
  }

  get name() {
    return this.title || nameOf(this.#turns);
  }

  /** The turns that are shown, in order. */
  get path() {
    return this.pathTo(this.leaf);
  }

  pathTo(id) {
    const byId = new Map(this.#turns.map((turn) => [turn.id, turn]));
    const path = [];
    for (let turn = byId.get(id); turn !== undefined; turn = byId.get(turn.parent)) path.unshift(turn);
    return path;
  }

  /** Begin a turn behind `parent`, show it, and return it. */
  add(mode, prompt, parent = this.leaf) {
    const turn = newTurn(mode, prompt, parent);
    this.#turns.push(turn);
    this.leaf = turn.id;
    this.updated = Date.now();
    return turn;
  }

  /** The versions of a turn, oldest first, itself among them. */
  versions(turn) {
    return this.#turns.filter(({ parent }) => parent === turn.parent);
  }

  /** Show a version, and behind it the newest turns that follow it. */
  choose(turn) {
    let last = turn;
    while (last !== undefined) {
      this.leaf = last.id;
      last = this.#turns.findLast(({ parent }) => parent === this.leaf);
    }
  }

  /** Take from the stored conversation its title, and the turns that another tab has added or ended. */
  merge(record) {
    this.title = record.title;
    const own = new Map(this.#turns.map((turn) => [turn.id, turn]));
    const newer = (theirs, ours) => ours === undefined || (isOver(theirs) && !isOver(ours));
    const before = readTurns(record.turns).map((turn) => (newer(turn, own.get(turn.id)) ? turn : own.get(turn.id)));
    for (const turn of before) own.delete(turn.id);
    this.#turns = [...before, ...own.values()];
  }
}

/** The first line with text of the first prompt. */
function nameOf(turns) {
  const line = turns[0]?.prompt.split("\n").find((text) => text.trim() !== "")?.trim() ?? "";
  return line.length > NAME_LENGTH ? `${line.slice(0, NAME_LENGTH)}…` : line || "New conversation";
}

/** Return whether all words of `query` stand in the record's name or turns, in any case. */
export function matches(record, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return true;
  const turns = record.turns.map(({ prompt, answer }) => `${prompt}\n${answer}`);
  const text = [record.title, ...turns].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}

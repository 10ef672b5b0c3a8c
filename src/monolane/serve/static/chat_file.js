// Conversations as a file: JSON that this page writes and reads, also of its first version.

import { Conversation } from "./conversation.js";
import { newId } from "./turn.js";

const FORMAT = "monolane-playground";
const MAX_FILE = 256 << 20; // characters

/** Offer the records as a file to keep. */
export function exportFile(records) {
  const text = JSON.stringify({ format: FORMAT, version: 2, conversations: records }, null, 2);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = records.length === 1 ? "monolane-chat.json" : "monolane-chats.json";
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Return the conversations of a file, under new ids. Throws Error with the reason. */
export function readFile(text) {
  if (text.length > MAX_FILE) throw new Error("expected a file of at most 256 MB");
  const file = JSON.parse(text);
  if (file?.format !== FORMAT || ![1, 2].includes(file.version)) {
    throw new Error("expected conversations that this page exported (version 1 or 2)");
  }
  const records = file.version === 1 ? [{ turns: file.turns }] : file.conversations;
  if (!Array.isArray(records)) throw new Error("expected a list of conversations");
  return records.map((record) => Object.assign(Conversation.from(record), { id: newId() }));
}

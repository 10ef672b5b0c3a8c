// The playground: ties the page's parts together and reacts to the visitor.

import { Answer } from "./answer.js";
import { ChatList } from "./chat_list.js";
import { Comparison } from "./comparison.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { DraftCount } from "./draft_count.js";
import { Duel } from "./duel.js";
import { settingsOf } from "./examples.js";
import { count, rate } from "./format.js";
import { Instruments } from "./instruments.js";
import { connectLayout } from "./layout.js";
import { Library } from "./library.js";
import { ModelState } from "./model_state.js";
import { Parameters } from "./parameters.js";
import { Race } from "./race.js";
import { messagesTo, requestFor } from "./request.js";
import { connectSettings } from "./settings.js";
import { keep, kept } from "./storage.js";
import { Transcript } from "./transcript.js";
import { isOver, newOutcome } from "./turn.js";

const byId = (id) => document.getElementById(id);
const view = (ids) => Object.fromEntries(Object.entries(ids).map(([name, id]) => [name, byId(id)]));

const SAVE_MS = 2000; // an answer under way: a page that is closed then loses no more of it

// Waited for before all else, so that whatever the visitor does meets a whole page.
const library = await Library.open((problem) => {
  if (byId("keep-error").textContent !== problem) byId("keep-error").textContent = problem;
});
let conversation = new Conversation();
let running = null; // AbortController of the answers under way
let over = Promise.resolve(); // when they are over, and kept
let latest = null; // the turn that was asked for last
let race = null;

const layout = connectLayout();
const fields = byId("fields").cloneNode(true); // before values are set
const parameters = new Parameters(byId("parameters"), "parameters");
const settings = connectSettings(() => model);
const comparison = new Comparison(byId("compare"), fields, () => showRace(null));
const transcript = new Transcript(byId("transcript"), byId("empty"));
const instruments = new Instruments(
  view({
    ...{ phase: "phase", rate: "rate", unit: "unit", curve: "curve", first: "first", prefill: "prefill" },
    ...{ tokens: "tokens", cached: "cached", mbu: "mbu", drafts: "drafts" },
  }),
);
const raceView = view({
  ...{ title: "race-title", name: "race-name", text: "replay", here: "here", there: "there" },
  ...{ hereLane: "here-lane", thereLane: "there-lane", verdict: "verdict" },
});
const draft = new DraftCount(byId("draft"));
const model = new ModelState(byId("state"), { onModel: suit, needKey: settings.askForKey });
const composer = new Composer(byId("composer"), { busy, send, stop, editLast, draft: countDraft });
const list = new ChatList(
  view({
    ...{ list: "chat-list", search: "search", deleted: "deleted", count: "chat-count", file: "file" },
    ...{ error: "file-error", exportAll: "export", importFiles: "import" },
  }),
  library,
  { open },
);
const actions = { regenerate, edit, choose, withKey: () => settings.key !== "" };

function here() {
  return { server: { url: "", key: settings.key, model: model.name }, parameters };
}

function suit(entry) {
  composer.suit(entry);
  const defaults = settingsOf(entry);
  const maxTokens = entry.monolane?.max_tokens ?? 2 ** 31 - 1;
  for (const side of [parameters, comparison]) side.suit(defaults, maxTokens);
}

function send(mode, text) {
  const parent = composer.edited === null ? conversation.leaf : composer.edited.parent;
  over = begin(mode, text, parent);
}

function regenerate({ mode, prompt, parent }) {
  if (running === null) over = begin(mode, prompt, parent);
}

function edit(turn) {
  if (running === null) composer.edit(turn);
}

function editLast() {
  const turn = conversation.path.at(-1);
  if (turn !== undefined) edit(turn);
}

function busy() {
  return running !== null;
}

function stop() {
  running?.abort();
}

/** Ask for a turn's answer, and keep it: at once, as it comes, and when it is over. */
async function begin(mode, prompt, parent) {
  running = new AbortController();
  composer.stops = true;
  const asked = conversation;
  const turn = (latest = asked.add(mode, prompt, parent));
  const saving = setInterval(() => library.save(asked, true), SAVE_MS);
  try {
    list.current = asked.id;
    keep("open", asked.id);
    library.save(asked);
    await answer(turn, running.signal);
  } finally {
    clearInterval(saving);
    asked.updated = Date.now();
    running = null; // a slow disk keeps nobody from editing, or from the next answer
    try {
      await library.save(asked); // first: whoever sees that it is over may reload the page
    } finally {
      if (turn === latest) composer.stops = false;
    }
  }
}

async function answer(turn, signal) {
  const ours = here();
  turn.request = requestFor(conversation, turn, ours.server, ours.parameters);
  const rival = await comparison.rival(ours, signal).catch((error) => {
    const end = signal.aborted ? { finish: "stopped" } : { finish: "error", error: error.message };
    turn.rival = { name: "The other server", ...newOutcome(), ...end };
    return null;
  });
  if (rival !== null) {
    const request = requestFor(conversation, turn, rival.server, rival.parameters);
    turn.rival = { name: rival.name, ...newOutcome(request) };
  }
  const focused = transcript.holdsFocus; // what was pressed goes: an example, Regenerate
  transcript.cut(conversation.path.length - 1);
  const turnView = transcript.add(turn, conversation.versions(turn), actions);
  if (focused) turnView.focus();
  if (rival === null) turnView.rival?.finish();
  const duel = rival === null ? null : new Duel(raceView, rival.name);
  showRace(duel ?? new Race(raceView, turn));
  const first = new Answer(turn, ours.server, { view: turnView, instruments, race: duel?.here ?? race }, signal);
  announce("The answer begins.");
  const follow = () => transcript.follow();
  const mine = first.run(follow);
  let theirs = null;
  if (rival !== null) {
    const second = new Answer(turn.rival, rival.server, { view: turnView.rival, race: duel.there }, signal);
    // On one server the second waits for the first: each has the machine to itself.
    if (rival.server.url === "") await mine;
    if (turn.finish !== "stopped") theirs = second.run(follow);
    else turn.rival.finish = "stopped";
  }
  const [error] = await Promise.all([mine, theirs]);
  if (theirs === null) turnView.rival?.finish();
  transcript.follow();
  announce(summary(turn));
  if (error?.status === 401) settings.askForKey();
  // It has gone, it goes, or another model is served there now.
  if ([0, 503, 404].includes(error?.status)) model.watch(settings.key);
}

/** Draw a race until it is through, or another has begun; null: as before an answer. */
function showRace(begun) {
  if (running !== null && begun === null) return;
  race = begun ?? new Race(raceView, { mode: "chat", prompt: "" });
  if (begun === null && comparison.kind !== "pace") new Duel(raceView, comparison.label);
  byId("replay").hidden = comparison.kind !== "pace";
  const frame = (now) => {
    if (race === begun && begun.frame(now)) requestAnimationFrame(frame);
  };
  if (begun !== null) requestAnimationFrame(frame);
}

function summary({ finish, error, timings }) {
  if (finish === "error") return error;
  const tokens = count(timings?.predicted_n ?? 0);
  const speed = rate(timings?.predicted_per_second ?? 0);
  const end = finish === "stopped" ? "Stopped" : "The answer is complete";
  return `${end}: ${tokens} tokens, ${speed} tokens per second.`;
}

function announce(text) {
  byId("announce").textContent = text;
}

function countDraft(mode, text, edited) {
  if (text.trim() === "") return draft.update(null, null);
  if (mode === "continue") return draft.update(here().server, { prompt: text });
  const before = conversation.pathTo(edited === null ? conversation.leaf : edited.parent);
  const messages = messagesTo(before, parameters.values.system);
  draft.update(here().server, { messages: [...messages, { role: "user", content: text }] });
}

/** Show another version of a turn. */
async function choose(turn, name) {
  if (running !== null) return;
  conversation.choose(turn);
  showAll();
  const at = conversation.path.indexOf(turn);
  byId("transcript").querySelectorAll(".turn")[at].querySelector(`[aria-label="${name}"]`)?.focus();
  await library.save(conversation);
}

/** Show a conversation of the library, once what runs is stopped; without one a new one. */
async function open(record) {
  stop();
  await over;
  const kept = record && (await library.get(record.id));
  const same = kept?.id === conversation.id; // as another tab has changed it: an edit goes on
  conversation = kept ? Conversation.from(kept) : new Conversation();
  if (!same) composer.leaveEditing();
  keep("open", kept ? conversation.id : null);
  showAll();
  if (kept) layout.closeChats();
}

function showAll() {
  transcript.cut(0);
  showRace(null);
  for (const turn of conversation.path) {
    const turnView = transcript.add(turn, conversation.versions(turn), actions);
    turnView.finish();
    turnView.rival?.finish();
  }
  const last = conversation.path.at(-1);
  instruments.reset();
  if (last !== undefined) {
    instruments.finish(last.timings);
    if (composer.edited === null) composer.setMode(last.mode);
  }
  list.current = conversation.id;
  transcript.follow(true);
}

library.onChange(async (id, elsewhere) => {
  if (id !== conversation.id) return;
  const now = await library.get(id);
  if (id !== conversation.id) return;
  if (now === undefined) open(null); // deleted: what runs is stopped
  else if (running === null && elsewhere && now.updated > conversation.updated) {
    if (isOver(now.turns.at(-1))) open(now); // else it is still being answered there
  }
});

byId("new").addEventListener("click", async () => {
  await open(null);
  composer.focus();
});
for (const id of ["open-compare", "change-race"]) byId(id).addEventListener("click", () => comparison.open());
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (running !== null) stop();
  else if (!layout.closeChats()) composer.leaveEditing();
});

const last = kept("open");
if (last === null) showAll();
else await open({ id: last });
model.watch(settings.key);

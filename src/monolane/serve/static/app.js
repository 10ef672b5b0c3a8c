// The playground: ties the page's parts together and reacts to the visitor.

import { Answer } from "./answer.js";
import { ChatList } from "./chat_list.js";
import { Comparison } from "./comparison.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { DraftCount } from "./draft_count.js";
import { Duel } from "./duel.js";
import { DEMO_SETTINGS } from "./examples.js";
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
import { newOutcome } from "./turn.js";

const byId = (id) => document.getElementById(id);
const view = (ids) => Object.fromEntries(Object.entries(ids).map(([name, id]) => [name, byId(id)]));

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
const composer = new Composer(byId("composer"), { send, stop, editLast, draft: countDraft });
const model = new ModelState(byId("state"), { onModel: suit, needKey: settings.askForKey });
const library = await Library.open();
const list = new ChatList(
  view({
    ...{ list: "chat-list", search: "search", deleted: "deleted", count: "chat-count", file: "file" },
    ...{ error: "file-error", exportAll: "export", importFiles: "import" },
  }),
  library,
  { open },
);
const actions = { regenerate, edit, choose, withKey: () => settings.key !== "" };

let conversation = new Conversation();
let answers = []; // those under way
let over = Promise.resolve(); // when they are over
let race = null;

const here = () => ({ server: { url: "", key: settings.key, model: model.name }, parameters });

function suit(entry) {
  composer.suit(entry);
  const defaults = entry.root === "demo" ? DEMO_SETTINGS : {};
  const maxTokens = entry.monolane?.max_tokens ?? 2 ** 31 - 1;
  for (const side of [parameters, comparison]) side.suit(defaults, maxTokens);
}

function send(mode, text) {
  const parent = composer.edited === null ? conversation.leaf : composer.edited.parent;
  over = begin(mode, text, parent);
}

function regenerate({ mode, prompt, parent }) {
  if (answers.length === 0) over = begin(mode, prompt, parent);
}

function edit(turn) {
  if (answers.length === 0) composer.edit(turn);
}

function editLast() {
  const turn = conversation.path.at(-1);
  if (turn !== undefined) edit(turn);
}

function stop() {
  for (const answer of answers) answer.stop();
}

async function begin(mode, prompt, parent) {
  composer.running = true;
  const turn = conversation.add(mode, prompt, parent);
  const ours = here();
  turn.request = requestFor(conversation, turn, ours.server, ours.parameters);
  const rival = await comparison.rival(ours).catch((error) => {
    turn.rival = { name: "The other server", ...newOutcome(), finish: "error", error: error.message };
    return null;
  });
  if (rival !== null) {
    const request = requestFor(conversation, turn, rival.server, rival.parameters);
    turn.rival = { name: rival.name, ...newOutcome(request) };
  }
  transcript.cut(conversation.path.length - 1);
  const turnView = transcript.add(turn, conversation.versions(turn), actions);
  if (rival === null) turnView.rival?.finish();
  const duel = rival === null ? null : new Duel(raceView, rival.name);
  showRace(duel ?? new Race(raceView, turn));
  const first = new Answer(turn, ours.server, { view: turnView, instruments, race: duel?.here ?? race });
  answers = [first];
  list.current = conversation.id;
  keep("open", conversation.id);
  announce("The answer begins.");
  const follow = () => transcript.follow();
  const mine = first.run(follow);
  let theirs = null;
  if (rival !== null) {
    const second = new Answer(turn.rival, rival.server, { view: turnView.rival, race: duel.there });
    // On one server the second waits for the first: each has the machine to itself.
    if (rival.server.url === "") await mine;
    if (turn.finish !== "stopped") {
      answers = [first, second];
      theirs = second.run(follow);
    } else turn.rival.finish = "stopped";
  }
  const [error] = await Promise.all([mine, theirs]);
  if (theirs === null) turnView.rival?.finish();
  answers = [];
  composer.running = false;
  transcript.follow();
  announce(summary(turn));
  if (error?.status === 401) settings.askForKey();
  if (error?.status === 0 || error?.status === 503) model.watch(settings.key);
  await library.save(conversation);
}

/** Draw a race until it is through, or another has begun; null: as before an answer. */
function showRace(begun) {
  if (answers.length > 0 && begun === null) return;
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

function countDraft(mode, text) {
  if (text.trim() === "") return draft.update(null, null);
  if (mode === "continue") return draft.update(here().server, { prompt: text });
  const before = conversation.pathTo(composer.edited === null ? conversation.leaf : composer.edited.parent);
  const messages = messagesTo(before, parameters.values.system);
  draft.update(here().server, { messages: [...messages, { role: "user", content: text }] });
}

/** Show another version of a turn. */
async function choose(turn, name) {
  if (answers.length > 0) return;
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
  composer.leaveEditing();
  const kept = record && (await library.get(record.id));
  conversation = kept ? Conversation.from(kept) : new Conversation();
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
    composer.setMode(last.mode);
  }
  list.current = conversation.id;
  transcript.follow(true);
}

library.onChange(async (id, elsewhere) => {
  if (id !== conversation.id || answers.length > 0) return;
  const now = await library.get(id);
  if (now === undefined) open(null);
  else if (elsewhere && now.updated > conversation.updated) open(now);
});

byId("new").addEventListener("click", async () => {
  await open(null);
  composer.focus();
});
for (const id of ["open-compare", "change-race"]) byId(id).addEventListener("click", () => comparison.open());
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (answers.length > 0) stop();
  else if (!layout.closeChats()) composer.leaveEditing();
});

const last = kept("open");
if (last === null) showAll();
else await open({ id: last });
model.watch(settings.key);

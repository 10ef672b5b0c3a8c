// The playground: ties the page's parts together and reacts to the visitor.

import { Answer } from "./answer.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { count, rate } from "./format.js";
import { Instruments } from "./instruments.js";
import { ModelState } from "./model_state.js";
import { Parameters } from "./parameters.js";
import { Race } from "./race.js";
import { connectSettings } from "./settings.js";
import { Transcript } from "./transcript.js";

const byId = (id) => document.getElementById(id);

const conversation = new Conversation();
const parameters = new Parameters(byId("parameters"));
const transcript = new Transcript(byId("transcript"), byId("empty"));
const instruments = new Instruments({
  phase: byId("phase"),
  rate: byId("rate"),
  unit: byId("unit"),
  curve: byId("curve"),
  first: byId("first"),
  prefill: byId("prefill"),
  tokens: byId("tokens"),
  mbu: byId("mbu"),
  drafts: byId("drafts"),
});
const raceView = {
  text: byId("replay"),
  here: byId("here"),
  there: byId("there"),
  hereLane: byId("here-lane"),
  thereLane: byId("there-lane"),
  verdict: byId("verdict"),
};
const composer = new Composer(byId("composer"), { send, stop, editLast });
const model = new ModelState(byId("state"), { onModel: composer.suit.bind(composer), needKey });
const settings = connectSettings({ parameters, conversation, model, onImport: showAll });
const actions = { regenerate, edit: editLast, withKey: () => parameters.key !== "" };

let answer = null; // the one under way
let over = Promise.resolve(); // when it is over
let race = null;

function send(mode, text) {
  if (composer.editing) transcript.removeLast(conversation.takeLast());
  over = begin(conversation.add(mode, text));
}

function regenerate() {
  if (answer !== null) return;
  const { mode, prompt } = conversation.takeLast();
  transcript.removeLast();
  over = begin(conversation.add(mode, prompt));
}

function editLast() {
  const turn = conversation.turns.at(-1);
  if (answer === null && turn !== undefined) composer.edit(turn);
}

function stop() {
  answer?.stop();
}

async function begin(turn) {
  turn.request = conversation.request(turn, model.name, parameters);
  const view = transcript.add(turn, actions);
  race = new Race(raceView, turn);
  startRace(race);
  answer = new Answer(turn, { view, instruments, race });
  composer.running = true;
  announce("The answer begins.");
  const error = await answer.run(parameters.key, () => transcript.follow());
  answer = null;
  composer.running = false;
  conversation.save();
  transcript.follow();
  announce(summary(turn));
  if (error?.status === 401) needKey();
  if (error?.status === 0 || error?.status === 503) model.watch(parameters.key);
}

/** Draw the replay until it is through, or another race has begun. */
function startRace(started) {
  const frame = (now) => {
    if (race === started && started.frame(now)) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
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

function needKey() {
  settings.askForKey();
}

/** Show the conversation as it was kept or imported, once what runs is stopped. */
async function showAll() {
  stop();
  await over;
  composer.leaveEditing();
  transcript.clear();
  race = new Race(raceView, { mode: "chat" });
  for (const turn of conversation.turns) transcript.add(turn, actions).finish();
  const last = conversation.turns.at(-1);
  instruments.reset();
  if (last !== undefined) {
    instruments.finish(last.timings);
    composer.setMode(last.mode);
  }
  transcript.follow(true);
}

byId("new").addEventListener("click", async () => {
  conversation.clear();
  await showAll();
  composer.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || byId("settings").open) return;
  if (answer !== null) stop();
  else composer.leaveEditing();
});

// On a narrow screen the race would push the answer off the page: it waits to be opened.
byId("race").open = window.matchMedia("(min-width: 60rem)").matches;

showAll();
model.watch(parameters.key);

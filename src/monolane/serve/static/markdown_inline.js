// Text within a block: code, bold, italic and links, as DOM nodes. Only createElement and text nodes,
// never markup: what a model writes cannot become anything else. Time is linear in the text: what has
// no end is looked for once, and nesting is bounded.

const MAX_NESTING = 8; // of bold and italic
const MAX_URL = 2048; // characters
const PUNCTUATION = /[!-/:-@[-`{-~]/;

/** Append the nodes of `text` to `parent`. */
export function appendInline(parent, text) {
  const scan = new Scan(text);
  while (scan.at < text.length) step(scan);
  scan.unwind(0);
  parent.append(...scan.frames[0].nodes);
}

/** Return the URL's normal form if a link may lead there (http or https, no user name), else null. */
export function safeUrl(raw) {
  if (raw.length > MAX_URL || !/^https?:\/\//i.test(raw)) return null;
  let url;
  try {
    url = new URL(raw);
  } catch {
    return null;
  }
  const web = url.protocol === "http:" || url.protocol === "https:";
  return web && url.username === "" && url.password === "" ? url.href : null;
}

class Scan {
  constructor(text) {
    this.text = text;
    this.at = 0;
    // frames[0] is the block; each other one is an opened mark with the nodes behind it.
    this.frames = [{ mark: "", nodes: [] }];
    this.pending = "";
    this.codeEnds = new Map(); // length of a run of backticks -> positions of such runs
    this.labelEnd = -1; // the next "](" at or behind `at`, once looked for
    this.labelStart = -1; // the "[" that belongs to it
  }

  literal(count) {
    this.pending += this.text.substr(this.at, count);
    this.at += count;
  }

  flush() {
    if (this.pending === "") return;
    this.frames.at(-1).nodes.push(document.createTextNode(this.pending));
    this.pending = "";
  }

  push(node) {
    this.flush();
    this.frames.at(-1).nodes.push(node);
  }

  /** Turn the frames above `depth` back into text: their marks were never closed. */
  unwind(depth) {
    this.flush();
    while (this.frames.length > depth + 1) {
      const frame = this.frames.pop();
      this.frames.at(-1).nodes.push(document.createTextNode(frame.mark), ...frame.nodes);
    }
  }
}

function step(scan) {
  const { text, at } = scan;
  const next = text[at + 1] ?? "";
  switch (text[at]) {
    case "\\":
      if (PUNCTUATION.test(next)) scan.at += 1;
      return scan.literal(1);
    case "`":
      return code(scan);
    case "*":
    case "_":
      return emphasis(scan);
    case "[":
      return link(scan);
    case "h":
      return bareLink(scan);
    default: {
      // To the next character that could mean something.
      const rest = /[\\`*_[h]/g;
      rest.lastIndex = at + 1;
      return scan.literal((rest.exec(text)?.index ?? text.length) - at);
    }
  }
}

function code(scan) {
  const { text, at } = scan;
  const length = runLength(text, at);
  if (scan.codeEnds.size === 0) findRuns(scan);
  const ends = scan.codeEnds.get(length) ?? [];
  while (ends.length > 0 && ends.at(-1) <= at) ends.pop();
  if (ends.length === 0) return scan.literal(length);
  const element = document.createElement("code");
  const body = text.slice(at + length, ends.at(-1)).replaceAll("\n", " ");
  const padded = body.startsWith(" ") && body.endsWith(" ") && body.trim() !== "";
  element.textContent = padded ? body.slice(1, -1) : body;
  scan.push(element);
  scan.at = ends.at(-1) + length;
  return undefined;
}

/** Note where each run of backticks starts, by length, the last one first. */
function findRuns(scan) {
  for (const match of scan.text.matchAll(/`+/g)) {
    const ends = scan.codeEnds.get(match[0].length) ?? [];
    ends.push(match.index);
    scan.codeEnds.set(match[0].length, ends);
  }
  for (const ends of scan.codeEnds.values()) ends.reverse();
}

function emphasis(scan) {
  const { text, at } = scan;
  const run = runLength(text, at);
  if (run > 3) return scan.literal(run);
  const before = text[at - 1] ?? " ";
  const after = text[at + run] ?? " ";
  const word = /[\p{L}\p{N}_]/u;
  const underscore = text[at] === "_";
  const opens = !/\s/.test(after) && !(underscore && word.test(before));
  const closes = !/\s/.test(before) && !(underscore && word.test(after));
  for (let left = run; left > 0; ) {
    const depth = closes ? findOpened(scan, text[at], left) : -1;
    if (depth > 0) left -= close(scan, depth);
    else if (opens && scan.frames.length <= MAX_NESTING) left -= open(scan, Math.min(left, 2));
    else {
      scan.literal(left);
      left = 0;
    }
  }
  return undefined;
}

/** Return the depth of the frame that `left` marks close first, or -1. */
function findOpened(scan, character, left) {
  const fits = (frame) => frame.mark[0] === character && frame.mark.length <= left;
  const exact = (frame) => fits(frame) && frame.mark.length === 2;
  const depth = left === 2 ? scan.frames.findLastIndex(exact) : -1;
  return depth > 0 ? depth : scan.frames.findLastIndex(fits);
}

function open(scan, length) {
  scan.flush();
  scan.frames.push({ mark: scan.text.substr(scan.at, length), nodes: [] });
  scan.at += length;
  return length;
}

function close(scan, depth) {
  scan.unwind(depth);
  const { mark, nodes } = scan.frames.pop();
  const element = document.createElement(mark.length === 2 ? "strong" : "em");
  element.append(...nodes);
  scan.frames.at(-1).nodes.push(element);
  scan.at += mark.length;
  return mark.length;
}

/** `[label](https://…)`; an image is its own text, for nothing is ever loaded. */
function link(scan) {
  const { text, at } = scan;
  if (scan.labelEnd !== Infinity && scan.labelEnd < at) findLabel(scan);
  if (scan.labelStart !== at || text[at - 1] === "!") return scan.literal(1);
  const from = scan.labelEnd + 2;
  const target = /^[^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)?\)/.exec(text.substr(from, MAX_URL + 1));
  if (target === null) return scan.literal(1);
  const raw = target[0].slice(0, -1);
  const url = safeUrl(raw);
  const label = text.slice(at + 1, scan.labelEnd);
  if (url === null) {
    // No such link is offered; what it says stays readable.
    scan.literal(from + target[0].length - at);
    return undefined;
  }
  scan.push(anchor(url, label));
  scan.at = from + target[0].length;
  return undefined;
}

function findLabel(scan) {
  const end = scan.text.indexOf("](", scan.at);
  scan.labelEnd = end < 0 ? Infinity : end;
  scan.labelStart = end < 0 ? -1 : scan.text.lastIndexOf("[", end - 1);
}

function bareLink(scan) {
  const { text, at } = scan;
  const head = text.substr(at, 8);
  const standsAlone = !/[\p{L}\p{N}_]/u.test(text[at - 1] ?? " ");
  if (!standsAlone || !/^https?:\/\//.test(head)) return scan.literal(1);
  const [raw] = /^[^\s<>"'`*[\]{}|\\^]*/.exec(text.substr(at, MAX_URL));
  const trimmed = raw.replace(/[.,;:!?)]{1,8}$/, "");
  const url = safeUrl(trimmed);
  if (url === null) return scan.literal(head.indexOf("/") + 2);
  scan.push(anchor(url, trimmed));
  scan.at += trimmed.length;
  return undefined;
}

function anchor(url, label) {
  const element = document.createElement("a");
  element.href = url;
  element.rel = "noopener noreferrer nofollow";
  element.target = "_blank";
  element.title = url; // where it leads, whatever its label says
  element.textContent = label;
  return element;
}

function runLength(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

// The block structure of an answer: lines in, a tree of plain objects out, no DOM. A small subset of
// Markdown, each line looked at once per nesting level, so that no answer can make it slow.
//
//   {kind: "paragraph", text}            {kind: "heading", level, text}   {kind: "rule"}
//   {kind: "code", language, text}       {kind: "quote", blocks}
//   {kind: "list", ordered, start, items: [blocks]}
//
// Each block carries `line`, the index of its first line in the lines given.

const MAX_DEPTH = 6; // of quotes and lists; deeper ones stay text

const MARKER = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)/;

/** Return the blocks of `lines`, an array of strings without line ends. */
export function parseBlocks(lines, depth = 0) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const [block, next] = readBlock(lines, at, depth);
    block.line = at;
    blocks.push(block);
    at = next;
  }
  return blocks;
}

function readBlock(lines, at, depth) {
  const line = lines[at];
  const fence = fenceOf(line);
  if (fence !== null) return readCode(lines, at, fence);
  const heading = /^ {0,3}(#{1,6})(?: +(.*))?$/.exec(line);
  if (heading !== null) {
    const text = (heading[2] ?? "").replace(/ #+ *$/, "").trim();
    return [{ kind: "heading", level: heading[1].length, text }, at + 1];
  }
  if (isRule(line)) return [{ kind: "rule" }, at + 1];
  if (depth < MAX_DEPTH) {
    if (isQuote(line)) return readQuote(lines, at, depth);
    if (MARKER.test(line)) return readList(lines, at, depth);
  }
  return readParagraph(lines, at, depth);
}

function readCode(lines, at, fence) {
  const body = [];
  let next = at + 1;
  while (next < lines.length) {
    const line = lines[next];
    next += 1;
    if (closesFence(line, fence)) break;
    body.push(dedent(line, fence.indent));
  }
  return [{ kind: "code", language: fence.language, text: body.join("\n") }, next];
}

function readQuote(lines, at, depth) {
  const body = [];
  let next = at;
  while (next < lines.length && isQuote(lines[next])) {
    body.push(lines[next].replace(/^ {0,3}> ?/, ""));
    next += 1;
  }
  return [{ kind: "quote", blocks: parseBlocks(body, depth + 1) }, next];
}

function readList(lines, at, depth) {
  const first = MARKER.exec(lines[at]);
  const type = markerType(first);
  const items = [];
  let next = at;
  while (next < lines.length) {
    const marker = MARKER.exec(lines[next]);
    if (marker === null || markerType(marker) !== type || isRule(lines[next])) break;
    const [body, end] = readItem(lines, next, marker);
    items.push(parseBlocks(body, depth + 1));
    next = skipBlank(lines, end);
    if (next < lines.length && !MARKER.test(lines[next])) {
      next = end;
      break;
    }
  }
  const ordered = type === "1";
  const start = ordered ? Number.parseInt(first[2], 10) : 1;
  return [{ kind: "list", ordered, start, items }, next];
}

/** Return the lines of one item without its indentation, and the index behind them. */
function readItem(lines, at, marker) {
  const rest = lines[at].slice(marker[0].length);
  // More than four spaces behind a marker belong to the text.
  const padding = marker[3].length > 4 || marker[3].length === 0 ? 1 : marker[3].length;
  const indent = marker[1].length + marker[2].length + padding;
  const body = [rest];
  let next = at + 1;
  let lazy = !isBlank(rest) && fenceOf(rest) === null;
  while (next < lines.length) {
    const line = lines[next];
    if (isBlank(line)) {
      const follow = skipBlank(lines, next);
      if (follow >= lines.length || leadingSpaces(lines[follow]) < indent) break;
      for (; next < follow; next += 1) body.push("");
      lazy = false;
      continue;
    }
    if (leadingSpaces(line) >= indent) body.push(dedent(line, indent));
    else if (lazy && !startsBlock(line)) body.push(line.trimStart());
    else break;
    next += 1;
  }
  return [body, next];
}

function readParagraph(lines, at, depth) {
  const body = [lines[at].trimStart()];
  let next = at + 1;
  while (next < lines.length && !isBlank(lines[next])) {
    if (depth >= MAX_DEPTH ? fenceOf(lines[next]) !== null : startsBlock(lines[next])) break;
    body.push(lines[next].trimStart());
    next += 1;
  }
  return [{ kind: "paragraph", text: body.join("\n").trimEnd() }, next];
}

const isBlank = (line) => line.trim() === "";
const isQuote = (line) => /^ {0,3}>/.test(line);
const markerType = (marker) => (/\d/.test(marker[2]) ? "1" : marker[2]);

/** Return the width of the indentation; a tab counts as four spaces. */
function leadingSpaces(line) {
  let width = 0;
  for (const character of line) {
    if (character === " ") width += 1;
    else if (character === "\t") width += 4;
    else break;
  }
  return width;
}

/** Return the line without its first `width` columns of indentation. */
function dedent(line, width) {
  let at = 0;
  for (let left = width; left > 0 && (line[at] === " " || line[at] === "\t"); at += 1) {
    left -= line[at] === "\t" ? 4 : 1;
  }
  return line.slice(at);
}

function startsBlock(line) {
  return (
    fenceOf(line) !== null ||
    /^ {0,3}#{1,6}( |$)/.test(line) ||
    isRule(line) ||
    isQuote(line) ||
    MARKER.test(line)
  );
}

function skipBlank(lines, at) {
  while (at < lines.length && isBlank(lines[at])) at += 1;
  return at;
}

function isRule(line) {
  if (leadingSpaces(line) > 3) return false;
  const marks = line.replace(/[ \t]/g, "");
  if (marks.length < 3 || !"-*_".includes(marks[0])) return false;
  return marks === marks[0].repeat(marks.length);
}

function fenceOf(line) {
  const match = /^( {0,3})(`{3,}|~{3,})(.*)$/.exec(line);
  if (match === null || (match[2][0] === "`" && match[3].includes("`"))) return null;
  const language = match[3].trim().split(/\s/, 1)[0].slice(0, 32);
  return { indent: match[1].length, mark: match[2], language };
}

function closesFence(line, fence) {
  if (leadingSpaces(line) > 3) return false;
  const marks = line.trim();
  return marks.length >= fence.mark.length && marks === fence.mark[0].repeat(marks.length);
}

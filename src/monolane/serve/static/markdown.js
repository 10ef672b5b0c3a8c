// Markdown of an answer as DOM, whole or while it comes. While it comes, blocks that can change no
// more are made once; the last one is made anew at each `settle`, and text that arrives in between is
// appended to its last text node. So a long answer costs as much per second as a short one.

import { copyButton } from "./clipboard.js";
import { parseBlocks } from "./markdown_blocks.js";
import { appendInline } from "./markdown_inline.js";

/** Return a fragment with the blocks of `text`. */
export function renderMarkdown(text) {
  const fragment = document.createDocumentFragment();
  appendBlocks(fragment, parseBlocks(splitLines(text)));
  return fragment;
}

/** An answer that grows inside `parent`. */
export class MarkdownStream {
  #parent;
  #tail; // the nodes of the last block
  #source = ""; // its text, and what came since
  #shown = 0; // characters of #source that are on the page

  constructor(parent) {
    this.#parent = parent;
    this.#tail = [];
  }

  /** Show more text at once, unformatted: one text node grows. */
  append(text) {
    this.#source += text;
    let last = lastText(this.#tail.at(-1));
    if (last === null) {
      const paragraph = document.createElement("p");
      last = document.createTextNode("");
      paragraph.append(last);
      this.#parent.append(paragraph);
      this.#tail.push(paragraph);
    }
    last.appendData(this.#source.slice(this.#shown));
    this.#shown = this.#source.length;
  }

  /** Format what has come so far. Call it a few times per second, and at the end. */
  settle() {
    const lines = splitLines(this.#source);
    // A last line without its end may still become anything.
    const blocks = parseBlocks(lines.slice(0, -1));
    const open = blocks.at(-1)?.line ?? 0;
    const done = document.createDocumentFragment();
    appendBlocks(done, blocks.slice(0, -1));
    this.#source = lines.slice(open).join("\n");
    const tail = renderMarkdown(this.#source);
    for (const node of this.#tail) node.remove();
    this.#tail = [...tail.childNodes];
    // Blocks drop the spaces at their end; the next piece of text still stands behind them.
    const kept = trailingSpace(lastText(this.#tail.at(-1))?.data ?? "");
    this.#shown = this.#source.length - Math.max(0, trailingSpace(this.#source) - kept);
    this.#parent.append(done, tail);
  }
}

function appendBlocks(parent, blocks) {
  for (const block of blocks) parent.append(BUILDERS[block.kind](block));
}

const BUILDERS = {
  paragraph: (block) => withInline("p", block.text),
  // The page's own headings end at level two.
  heading: (block) => withInline(`h${Math.min(block.level + 2, 6)}`, block.text),
  rule: () => document.createElement("hr"),
  code: buildCode,
  quote(block) {
    const element = document.createElement("blockquote");
    appendBlocks(element, block.blocks);
    return element;
  },
  list: buildList,
};

function withInline(name, text) {
  const element = document.createElement(name);
  appendInline(element, text);
  return element;
}

function buildList(block) {
  const list = document.createElement(block.ordered ? "ol" : "ul");
  if (block.ordered && block.start !== 1) list.start = block.start;
  for (const blocks of block.items) {
    const item = document.createElement("li");
    const [first, ...rest] = blocks;
    // A first paragraph is the item itself: no gaps between the lines of a list.
    if (first?.kind === "paragraph") appendInline(item, first.text);
    else if (first !== undefined) appendBlocks(item, [first]);
    appendBlocks(item, rest);
    list.append(item);
  }
  return list;
}

function buildCode(block) {
  const figure = document.createElement("figure");
  figure.className = "code";
  const caption = document.createElement("figcaption");
  const language = document.createElement("span");
  language.textContent = block.language || "text";
  caption.append(language, copyButton("Copy code", () => code.textContent));
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // scrolls sideways by keyboard
  const code = document.createElement("code");
  code.append(document.createTextNode(block.text));
  pre.append(code);
  figure.append(caption, pre);
  return figure;
}

const trailingSpace = (text) => text.length - text.trimEnd().length;

function splitLines(text) {
  return text.replace(/\r\n?/g, "\n").split("\n");
}

const INLINE = new Set(["A", "EM", "STRONG", "CODE"]);

/** Return the text node at the end of `node` where more text may be appended, or null. */
function lastText(node) {
  while (node != null && node.nodeType !== Node.TEXT_NODE) {
    const child = node.lastChild;
    if (INLINE.has(child?.nodeName) && node.nodeName !== "PRE") {
      const text = document.createTextNode(""); // what follows a link is not part of it
      node.append(text);
      return text;
    }
    node = child;
  }
  return node ?? null;
}

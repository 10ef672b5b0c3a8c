// Markdown of an answer as DOM, whole or while it comes. `marked` reads it (see vendor/README.md), and
// clean.js lets through only the elements that Markdown makes. While an answer comes, blocks that
// can change no more are made once; the last one is made anew at each `settle`, and text that arrives
// in between is appended to its last text node. So a long answer costs as much per second as a short
// one.

import { cleanHtml } from "./clean.js";
import { copyButton } from "./clipboard.js";
import { colours } from "./code_colours.js";
import { getDefaults, Lexer, Parser, Renderer, Tokenizer } from "./vendor/marked.js";

const MAX_DEPTH = 6; // of quotes and lists; deeper ones stay text
const MAX_WORK = 4e6; // characters times marks of one text; the library's time can grow with both
const MAX_URL = 2048; // characters

/** No HTML and no link by reference: both stay text. */
class SafeTokenizer extends Tokenizer {
  #depth = 0;

  html() {}
  tag() {}
  def() {}
  reflink() {}

  blockquote(source) {
    return this.#nested(() => super.blockquote(source));
  }

  list(source) {
    return this.#nested(() => super.list(source));
  }

  #nested(read) {
    if (this.#depth >= MAX_DEPTH) return undefined;
    this.#depth += 1;
    try {
      return read();
    } finally {
      this.#depth -= 1;
    }
  }
}

class BoundedLexer extends Lexer {
  inlineTokens(source, tokens = []) {
    const marks = source.match(/[^\p{L}\p{N}\s]/gu)?.length ?? 0;
    if (marks * source.length <= MAX_WORK) return super.inlineTokens(source, tokens);
    tokens.push({ type: "text", raw: source, text: source, escaped: false });
    return tokens;
  }
}

class SafeRenderer extends Renderer {
  // The page's own headings end at level two.
  heading({ tokens, depth }) {
    const name = `h${Math.min(depth + 2, 6)}`;
    return `<${name}>${this.parser.parseInline(tokens)}</${name}>\n`;
  }

  code({ text, lang }) {
    const language = (lang ?? "").trim().split(/\s/, 1)[0].slice(0, 32);
    return `<pre><code class="${escaped(language)}">${escaped(text)}</code></pre>\n`;
  }

  checkbox({ checked }) {
    return checked ? "☑ " : "☐ ";
  }

  link({ href, raw, tokens }) {
    const url = safeUrl(href);
    // No such link is offered; what it says stays readable.
    if (url === null) return escaped(raw);
    const label = this.parser.parseInline(tokens).replace(/<\/?a\b[^>]*>/g, ""); // of an image in it
    return `<a href="${escaped(url)}">${label}</a>`;
  }

  /** A link to the image: nothing is ever loaded. */
  image({ href, raw, text }) {
    const url = safeUrl(href);
    return url === null ? escaped(raw) : `<a href="${escaped(url)}">${escaped(text || url)}</a>`;
  }
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
  return url.username === "" && url.password === "" ? url.href : null;
}

/** Return a fragment with the blocks of `text`. */
export function renderMarkdown(text) {
  const parser = new Parser({ ...getDefaults(), renderer: new SafeRenderer() });
  const html = parser.parse(newLexer().lex(text));
  const fragment = cleanHtml(html.replace(BLOCK_END, "$1"));
  for (const link of fragment.querySelectorAll("a")) {
    link.rel = "noopener noreferrer nofollow";
    link.target = "_blank";
    link.title = link.href; // where it leads, whatever its label says
  }
  for (const pre of fragment.querySelectorAll("pre")) frameCode(pre);
  return fragment;
}

// The library ends lines behind tags of blocks; escaped text holds none of these tags.
const BLOCK_END = /(<\/?(?:blockquote|h[3-6]|hr|li|ol|p|pre|t(?:able|body|d|h|head|r)|ul)\b[^>]*>)\n/g;

/** An answer that grows inside `parent`. */
export class MarkdownStream {
  #parent;
  #tail = []; // the nodes of the last block
  #source = ""; // its text, and what came since
  #shown = 0; // characters of #source that are on the page

  constructor(parent) {
    this.#parent = parent;
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
    const source = this.#source.replace(/\r\n?/g, "\n");
    const open = openBlock(source);
    const done = renderMarkdown(source.slice(0, open));
    this.#source = source.slice(open);
    const tail = renderMarkdown(this.#source);
    for (const node of this.#tail) node.remove();
    this.#tail = [...tail.childNodes];
    // Blocks drop the spaces at their end; the next piece of text still stands behind them.
    const kept = trailingSpace(lastText(this.#tail.at(-1))?.data ?? "");
    this.#shown = this.#source.length - Math.max(0, trailingSpace(this.#source) - kept);
    this.#parent.append(done, tail);
  }
}

/** Return where the last block begins that has a whole line: it may still change. */
function openBlock(source) {
  // A last line without its end may still become anything.
  const blocks = newLexer().blockTokens(source.slice(0, source.lastIndexOf("\n") + 1), []);
  const last = blocks.findLastIndex((block) => block.type !== "space");
  return blocks.slice(0, Math.max(0, last)).reduce((at, block) => at + block.raw.length, 0);
}

function newLexer() {
  return new BoundedLexer({ ...getDefaults(), tokenizer: new SafeTokenizer() });
}

/** Put a code block into a figure, under its language and a button that copies it. */
function frameCode(pre) {
  const code = pre.firstElementChild;
  const figure = document.createElement("figure");
  figure.className = "code";
  const caption = document.createElement("figcaption");
  const language = document.createElement("span");
  language.textContent = code.className || "text";
  const coloured = colours(code.textContent, code.className);
  if (coloured !== null) code.replaceChildren(coloured);
  code.removeAttribute("class");
  if (code.firstChild === null) code.append(document.createTextNode(""));
  caption.append(language, copyButton("Copy code", () => code.textContent));
  pre.tabIndex = 0; // scrolls sideways by keyboard
  pre.replaceWith(figure);
  figure.append(caption, pre);
}

const escaped = (text) => text.replace(/[&<>"']/g, (mark) => `&#${mark.charCodeAt(0)};`);
const trailingSpace = (text) => text.length - text.trimEnd().length;

const INLINE = new Set(["A", "CODE", "DEL", "EM", "STRONG"]);

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

// The second wall: DOMPurify lets through the elements and addresses listed here and nothing else,
// whatever the libraries before it have made of a model's text (see vendor/README.md).

import "./vendor/purify.js"; // sets window.DOMPurify

const MARKDOWN = {
  ALLOWED_TAGS: [
    "#text", "a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol",
    "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "class", "href", "start"],
  ALLOWED_URI_REGEXP: /^https?:\/\//i,
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const COLOURS = { ...MARKDOWN, ALLOWED_TAGS: ["#text", "span"], ALLOWED_ATTR: ["class"] };

/** Return a fragment with what `html` holds of the elements that Markdown makes. */
export const cleanHtml = (html) => window.DOMPurify.sanitize(html, MARKDOWN);

/** Return a fragment with text and coloured spans alone. */
export const cleanColours = (html) => window.DOMPurify.sanitize(html, COLOURS);

// Code in colours: highlight.js finds the words (see vendor/README.md), style.css colours their classes.

import { cleanColours } from "./clean.js";
import highlighter from "./vendor/highlight.js";

const MAX_CODE = 8000; // characters; longer code stays plain, so that no text can hold up the page
const SAMPLE = 1000; // characters that a language is guessed from
const GUESSES = ["python", "javascript", "c", "cpp", "rust", "go", "java", "bash", "sql", "json"];
const SURE = 3; // relevance, as the library counts it: a few words of the language
const CODE_LINE = /[:;{]$/m; // without a line that ends so, English with its "for" and "import" is text

/** Return a fragment with `text` in colours, or null: too long, or no language that is known. */
export function colours(text, language) {
  if (text.length > MAX_CODE || !highlighter.getLanguage(language)) return null;
  const fragment = cleanColours(highlighter.highlight(text, { language, ignoreIllegals: true }).value);
  // A text node that was lost on the way would falsify the code.
  return fragment.textContent === text ? fragment : null;
}

/** Return the language that a text begins in, or null. */
export function guessLanguage(text) {
  const { language, relevance } = highlighter.highlightAuto(text.slice(0, SAMPLE), GUESSES);
  return relevance >= SURE && CODE_LINE.test(text) ? language : null;
}

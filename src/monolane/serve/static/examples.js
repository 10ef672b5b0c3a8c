// First prompts, for models that converse, and for those that only continue text; and what suits a model.
// The demo model: code as it has read most of it, at a temperature that leaves its lines whole, with a penalty
// that keeps it from repeating itself (tests/serve/playground/test_examples.py).

export const EXAMPLES = {
  chat: [
    "Write quicksort in Python and explain each step.",
    "What makes decoding one token at a time slow? Answer with a table.",
    "A regular expression for ISO dates, with tests.",
  ],
  continue: [
    "import os\n\ndef walk(top):",
    "import os\nimport sys\n\ndef main():",
    "class Stack:\n    def __init__(self):",
  ],
};

const DEMO_SETTINGS = { temperature: 0.7, frequency_penalty: 0.3 };

/** Settings that suit a model, by its entry of /v1/models: what its authors say of drawing, and nothing of
    our own beside that. */
export function settingsOf(entry) {
  const { seed: _, ...said } = entry.monolane?.sampling ?? {};
  if (Object.keys(said).length > 0) return { min_p: 0, ...said };
  return entry.root === "demo" ? DEMO_SETTINGS : {};
}

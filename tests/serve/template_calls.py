"""What chat templates show of tool calls, in small form: template_calls.json, and how it is made.

    python tests/serve/template_calls.py FOLDER

reads the templates in FOLDER (models/templates of llama.cpp, which the source package of
llama-cpp-python 0.3.36 holds) and writes of each which marks of formats it has, and the text
of a turn with two calls, or with one where it takes no more.
"""

import json
import sys
from pathlib import Path
from typing import Any

from monolane.errors import TextError
from monolane.serve._tools.formats import FORMATS
from monolane.serve._tools.prompt import _in_form
from monolane.serve._tools.template_probe import shown_by
from monolane.text import ChatTemplate

PATH = Path(__file__).with_suffix(".json")
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("get_weather", {"city": "Zürich", "days": 2}),
    ("find", {"tags": ["a", "b"], "exact": True, "text": "one <two>\nthree"}),
)
PROPERTIES = {
    "city": {"type": "string", "description": "Where"},
    "days": {"type": "integer", "description": "How long"},
    "tags": {"type": "array", "items": {"type": "string"}, "description": "Which"},
    "exact": {"type": "boolean", "description": "How"},
    "text": {"type": "string", "description": "What"},
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does something",
            "parameters": {
                "type": "object",
                "properties": {key: PROPERTIES[key] for key in arguments},
                "required": [*arguments],
            },
        },
    }
    for name, arguments in CALLS
]
USER = {"role": "user", "content": "What is it like?"}
_MARKS = sorted({mark for one in FORMATS for mark in (*one.shown, *one.lacks)})


def described(source: str) -> dict[str, Any]:
    """Return what a template shows: ``marks``, and ``turn``, the text of calls, if any."""
    template = ChatTemplate(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    marks = [mark for mark in _MARKS if mark in source]
    shown = shown_by(template)
    if not shown.calls:
        return {"marks": marks}
    calls = [
        {"id": f"call{i:05}", "type": "function", "function": {"name": name, "arguments": value}}
        for i, (name, value) in enumerate(CALLS[: None if shown.many else 1])
    ]
    message = _in_form({"role": "assistant", "content": None, "tool_calls": calls}, shown)
    prompt = template.render([USER], tools=TOOLS)
    try:
        whole = template.render([USER, message], tools=TOOLS, add_generation_prompt=False)
    except TextError:  # a result must follow
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "RESULT"} for call in calls
        ]
        whole = template.render([USER, message, *results], tools=TOOLS)
        whole = whole.partition("RESULT")[0]
    same = next(i for i, (a, b) in enumerate(zip(f"{prompt}\0", whole, strict=False)) if a != b)
    if whole.rfind("<", 0, same) > whole.rfind(">", 0, same):  # within a mark
        same = whole.rfind("<", 0, same)
    return {"marks": marks, "turn": whole[same:]}


if __name__ == "__main__":
    found = {
        path.stem: described(path.read_text(encoding="utf-8"))
        for path in sorted(Path(sys.argv[1]).glob("*.jinja"))
    }
    PATH.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

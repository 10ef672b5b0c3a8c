"""What chat templates show of thoughts, in small form: template_thoughts.json, and how it is made.

    python tests/serve/template_thoughts.py FOLDER

reads the templates in FOLDER, as template_calls.py does, and writes of each that shows thoughts
which marks of thinking parts it has, how its prompt ends, and the text of a turn that thinks.
"""

import json
import sys
from pathlib import Path
from typing import Any

from monolane.serve._tools.template_probe import _called, shown_by, thoughts_shown_by
from monolane.serve._tools.thoughts import with_thoughts
from monolane.text import ChatTemplate, thinking_switch
from monolane.text._thinking import _ANSWERS, _HARMONY, _MARKS

PATH = Path(__file__).with_suffix(".json")
THOUGHTS = "Well, a < b.\n\nSo it is."
ANSWER = "Yes, it is."
USER = {"role": "user", "content": "What is it like?"}
_TURN_MARKS = {mark for one in (*_MARKS, _HARMONY) for mark in (one.begin, one.end)}


def described(source: str) -> dict[str, Any] | None:
    """Return ``marks``, ``tail``, the prompt's end, and ``turn``; None: it shows no thoughts.

    The turn has an answer behind the thoughts, or a call where they are shown before calls alone.
    """
    template = ChatTemplate(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    told: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    way = thoughts_shown_by(template, text=True, calls=False)
    if way is None:
        shown = shown_by(template)
        told = _called(1, shown.null, shown.objects)[1]
        way = thoughts_shown_by(template, text=False, calls=True)
    if way is None:
        return None
    variables: dict[str, Any] = {}
    if (switch := thinking_switch(template)) is not None:
        variables[switch] = True
    if "reasoning_effort" in template.variables:
        variables["reasoning_effort"] = "high"
    prompt = template.render([USER], **variables)
    chat = [USER, with_thoughts(told, THOUGHTS, way)]
    whole = template.render(chat, add_generation_prompt=False, **variables)
    same = next(i for i, (a, b) in enumerate(zip(f"{prompt}\0", whole, strict=False)) if a != b)
    if whole.rfind("<", 0, same) > whole.rfind(">", 0, same):  # within a mark
        same = whole.rfind("<", 0, same)
    marks = sorted(mark for mark in _TURN_MARKS | _ANSWERS.keys() if mark in source)
    return {"marks": marks, "tail": prompt[-40:], "turn": whole[same:]}


if __name__ == "__main__":
    found = {
        path.stem: described(path.read_text(encoding="utf-8"))
        for path in sorted(Path(sys.argv[1]).glob("*.jinja"))
    }
    shown = {name: one for name, one in found.items() if one is not None}
    PATH.write_text(json.dumps(shown, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

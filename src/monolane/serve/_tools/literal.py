"""Fixed texts in a Lark grammar."""

import json
import re
from collections.abc import Mapping


def literal_rule(text: str, marks: Mapping[str, int]) -> str:
    """Return the rule of a fixed text, in which marks that are control tokens are those tokens."""
    cuts = "|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or "(?!)"
    parts = filter(None, re.split(f"({cuts})", text))
    return " ".join(f"<[{marks[part]}]>" if part in marks else json.dumps(part) for part in parts)


def regex_of(text: str) -> str:
    """Return a fixed text as it stands in a Lark regex."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")

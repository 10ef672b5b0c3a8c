"""Which text models of Transformers load: `python scripts/model_types.py` writes the page.

Each `model_type` that the installed Transformers generates text with says its default config, which
goes through JSON, as a config.json does, and is read. Only configuration modules are imported, and
no weights are made.
"""

import importlib
import json
import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from monolane.errors import ConfigError
from monolane.model import ASSISTANTS, parse_config

PAGE = Path(__file__).resolve().parents[1] / "docs" / "model-types.md"
LOADS, UNKNOWN = "loads", "no such family"
DRAFTS = "loads as a drafter, with `--draft`"  # tests/engine/test_assistant.py
_ROW = re.compile(r"^\| `(?P<kind>[^`]+)` \| (?P<said>.+) \|$", re.MULTILINE)
_VERSION = re.compile(r"Transformers (\d\S*\d)")
# What a message says first: the file, the field, perhaps inside of another, and what was expected.
_FIELD = re.compile(r"^config\.json: (?P<field>\w+(: \w+)*?): expected ")
_TOP = """\
# Which models of Transformers load

Of each `model_type` that Transformers {version} generates text with: whether the default config
of its class is read, as a config.json, or by which of its fields it is refused. What a family
computes, and which test proves it, is in [families.md](families.md). Published models often say
more than defaults do: a family that loads here refuses some of them by a field, and one
that is refused here by a size may load.

`python scripts/model_types.py` writes this page, and `tests/model/test_model_types.py` compares it.

{summary}

| `model_type` | |
|---|---|
"""


@dataclass(frozen=True)
class Row:
    """One type, and what comes of its default config."""

    kind: str
    said: str


def rows() -> list[Row]:
    """Return a row for each type, in the order of their names."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    kinds = set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    return [Row(kind, read(kind)) for kind in sorted(kinds)]


def read(kind: str) -> str:
    """Return what comes of a type's default config; of a drafter's, which has none, what it is."""
    if kind in ASSISTANTS:
        return DRAFTS
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    try:
        default = auto.CONFIG_MAPPING[kind]()
    except Exception as error:  # of Transformers, or of a library that it asks for
        return f"has no default config: {type(error).__name__}"
    # Through JSON, where keys of layers become strings.
    raw = json.loads(json.dumps(default.to_dict(), default=str)) | {"model_type": kind}
    try:
        parse_config(raw)
    except ConfigError as error:
        return refusal(str(error))
    return LOADS


def refusal(message: str) -> str:
    """Return a cell that names the field by which a config is refused."""
    found = _FIELD.match(message)
    field = message if found is None else found["field"].replace(": ", ".")
    return UNKNOWN if field == "model_type" else f"refused by `{field}`"


def installed() -> str:
    """Return the version of Transformers whose types these are."""
    return version("transformers")


def page(found: list[Row], of: str) -> str:
    """Return the page."""
    count = sum(row.said == LOADS for row in found)
    drafting = sum(row.said == DRAFTS for row in found)
    others = sum(row.said.startswith("refused") for row in found)
    summary = (
        f"{count} of {len(found)} load, {drafting} as drafters; {others} more have a family that "
        "refuses the default, and the others have none."
    )
    lines = [f"| `{row.kind}` | {row.said} |" for row in found]
    return _TOP.format(version=of, summary=summary) + "\n".join(lines) + "\n"


def stated(text: str) -> tuple[str, list[Row]]:
    """Return of which version a page is, and its rows."""
    found = _VERSION.search(text)
    assert found is not None, f"{PAGE}: expected the version of Transformers, got none"
    return found[1], [Row(row["kind"], row["said"]) for row in _ROW.finditer(text)]


if __name__ == "__main__":
    PAGE.write_text(page(rows(), installed()), encoding="utf-8")

"""BFCL's own tools, answers and checker, without the packages of the models that BFCL knows.

``bfcl-eval`` imports the clients of two dozen providers and PyTorch to find one flag of a model.
Stand-ins for these modules keep them out; what scores an answer is the package's own code.
"""

import importlib
import json
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from monolane.errors import DataError, MissingExtraError

# Those of one turn whose functions are Python's, and of the others what decides.
CATEGORIES = (
    *("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
    *("live_irrelevance", "live_relevance"),
)
_NAME = "monolane"  # of a model whose functions have "_" for ".", as OpenAI's API wants them
_PARSERS = {  # of other languages' calls in texts: they need old releases of tree-sitter
    "java_parser": "parse_java_function_call",
    "js_parser": "parse_javascript_function_call",
}
Call = Mapping[str, Mapping[str, Any]]  # {name of the function: its arguments}


@dataclass(frozen=True, slots=True)
class Case:
    """A conversation, the functions that it may call, and the calls that are right."""

    key: str
    category: str
    messages: list[dict[str, Any]]
    functions: list[dict[str, Any]]
    wanted: list[dict[str, Any]]


def require_bfcl() -> None:
    """MissingExtraError if BFCL's package is not installed, or what it needs for this."""
    if not all(map(find_spec, ("bfcl_eval", "tenacity", "filelock"))):
        # Without the clients of other models.
        command = "pip install --no-deps bfcl-eval==2026.3.23 && pip install tenacity filelock"
        raise MissingExtraError("bfcl", "bfcl-eval", command)


def read_cases(category: str, limit: int | None) -> list[Case]:
    """Return the cases of a category from the package's own data, in their order."""
    folder = _folder() / "data"
    file = f"BFCL_v4_{category}.json"
    answers = {}
    if "relevance" not in category:
        answers = {
            row["id"]: row["ground_truth"] for row in _rows(folder / "possible_answer" / file)
        }
    return [
        Case(row["id"], category, row["question"][0], row["function"], answers.get(row["id"], []))
        for row in list(_rows(folder / file))[:limit]
    ]


def as_tools(case: Case) -> list[dict[str, Any]]:
    """Return the functions as OpenAI's API has them, by BFCL's own conversion."""
    found: list[dict[str, Any]] = _module("model_handler.utils").convert_to_tool(
        case.functions,
        _module("constants.type_mappings").GORILLA_TO_OPENAPI,
        _module("constants.enums").ModelStyle.OPENAI_COMPLETIONS,
    )
    return found


def check(case: Case, calls: Sequence[Call]) -> dict[str, Any]:
    """Return {"score": 1}, or {"score": 0, "error", "error_type"}, as BFCL judges calls."""
    if "relevance" in case.category:
        right = bool(calls) != ("irrelevance" in case.category)
        return {"score": int(right)}
    found = _module("eval_checker.ast_eval.ast_checker").ast_checker(
        case.functions,
        list(calls),
        case.wanted,
        _module("constants.enums").Language.PYTHON,
        case.category,
        _NAME,
    )
    if found["valid"]:
        return {"score": 1}
    return {"score": 0, "error": str(found["error"])[:500], "error_type": found["error_type"]}


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"{path}: expected the data of bfcl-eval 2026.3.23 (BFCL v4): {error.strerror}"
        ) from None
    # Not splitlines: JSON may hold U+2028 and other ends of a line as they are.
    yield from (json.loads(line) for line in text.split("\n") if line.strip())


def _folder() -> Path:
    spec = find_spec("bfcl_eval")
    assert spec is not None  # it was required
    assert spec.origin is not None
    return Path(spec.origin).parent


@lru_cache
def _module(name: str) -> Any:
    flag = SimpleNamespace(underscore_to_dot=True)
    _stand_in("constants.model_config", MODEL_CONFIG_MAPPING={_NAME: flag})
    for parser, function in _PARSERS.items():
        _stand_in(f"model_handler.parser.{parser}", **{function: None})
    return importlib.import_module(f"bfcl_eval.{name}")


def _stand_in(name: str, **members: Any) -> None:
    """Put a module with these members in the place of one of BFCL's, unless that is loaded."""
    module = types.ModuleType(f"bfcl_eval.{name}")
    vars(module).update(members)
    sys.modules.setdefault(module.__name__, module)

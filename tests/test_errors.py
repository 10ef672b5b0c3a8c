"""The error tree is the one that its docstring draws, and is raised by nothing but itself."""

import ast
import re
from pathlib import Path

import monolane
from monolane import errors

PACKAGE = Path(monolane.__file__).parent


def test_the_docstring_draws_the_tree() -> None:
    drawn = dict(re.findall(r"── (\w+) +\((\w+)\)", errors.__doc__ or ""))
    real = {
        name: value.__bases__[1].__name__
        for name, value in vars(errors).items()
        if isinstance(value, type) and value is not errors.MonolaneError
    }
    assert drawn == real


def test_a_missing_extra_says_how_to_get_it() -> None:
    error = errors.MissingExtraError("monolane verify", "hf")
    assert "pip install 'monolane[hf]'" in str(error)


def test_no_code_of_ours_exits_the_process_or_runs_pickles() -> None:
    """Only programs may exit; nothing may read a format that runs code."""
    programs = {"__main__", "jail", "scorer"}  # beside the commands; the last runs in the jail
    banned = {"pickle", "dill", "marshal", "cloudpickle", "shelve"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                assert banned.isdisjoint(alias.name for alias in node.names), where
            if isinstance(node, ast.ImportFrom):
                assert node.module not in banned, where
            if (
                isinstance(node, ast.Call)
                and path.parent.name != "cli"
                and path.stem not in programs
            ):
                called = ast.unparse(node.func)
                assert called not in ("sys.exit", "exit", "quit", "os._exit", "eval", "exec"), where

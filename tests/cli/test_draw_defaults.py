"""How a token is drawn where nobody says, from Python, a terminal and the server: one table."""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from monolane import SamplingParams
from monolane._draw import Draw
from monolane._options import options_of
from monolane.cli._chat import chat
from monolane.cli._defaults import terminal_defaults
from monolane.cli._generate import generate
from monolane.engine import SamplingDefaults
from monolane.serve import ServerOptions
from monolane.serve._openai.body import ChatRequest, CompletionRequest

PAGE = Path(__file__).parents[2] / "docs" / "sampling.md"


def told() -> dict[str, list[str]]:
    """Return the rows of the page, by parameter."""
    table = PAGE.read_text().split("<!-- defaults -->")[1].split("<!-- /defaults -->")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| (.*) \|$", table, re.MULTILINE)
    return {name: list(rest) for name, *rest in rows}


def python() -> dict[str, Any]:
    return {x.name: getattr(SamplingParams(), x.name) for x in fields(SamplingParams)}


def terminal() -> dict[str, Any]:
    given = {name: x.default for name, x in inspect.signature(generate).parameters.items()}
    deferred = {name: None for name, said in options_of(Draw).items() if said.deferred}
    return given | terminal_defaults(
        SamplingDefaults(), "auto", **deferred, max_tokens=given["max_tokens"]
    )


def server() -> dict[str, Any]:
    messages = [{"role": "user", "content": "x"}]
    asked = ChatRequest.model_validate({"model": "m", "messages": messages}).asked()
    sampling = {x.name: getattr(asked.sampling, x.name) for x in fields(asked.sampling)}
    return sampling | {"speculation": ServerOptions().speculation}


def test_the_page_says_what_is_drawn_by() -> None:
    page, found = told(), (python(), terminal(), server())
    numbers = [name for name in page if name not in ("seed", "max_tokens")]
    assert {*options_of(Draw)} <= {*page}
    for name in numbers:
        assert page[name] == [str(each[name]) for each in found], name


def test_seeds_and_lengths() -> None:
    page = told()
    assert page["seed"] == [str(python()["seed"]), str(terminal()["seed"]), "a new one each time"]
    assert server()["seed"] != server()["seed"]
    longest = inspect.signature(chat).parameters["max_tokens"].default
    text = CompletionRequest.model_fields["max_tokens"].default
    assert page["max_tokens"] == [
        str(python()["max_tokens"]),
        f"{terminal()['max_tokens']}; `chat` {longest}",
        f"as many as fit; `/v1/completions` {text}",
    ]

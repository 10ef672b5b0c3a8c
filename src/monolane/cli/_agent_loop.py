"""``monolane eval agent-loop``: where an agent's time goes, and what a faster model would save."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from monolane import _env
from monolane.cli import _options as options

_KEY = _env.API_KEY.name


def agent_loop(
    command: Annotated[
        list[str],
        typer.Argument(help="The agent's command, behind --; {url} in it is the proxy's base URL."),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", help="Folder of the record and report.")],
    base_url: Annotated[
        str, typer.Option(help="The OpenAI-compatible server that the agent's model is on.")
    ] = "http://127.0.0.1:8000",
    price: Annotated[
        float | None,
        typer.Option(min=0, help="What the model's node costs per hour, in any currency."),
    ] = None,
    key_from: Annotated[
        str, typer.Option(help="Environment variable that holds the server's API key.")
    ] = _KEY,
    as_json: options.Json = False,
) -> None:
    """Run an agent through a recording proxy, and say where its time went.

    The agent finds the proxy in OPENAI_BASE_URL and OPENAI_API_BASE, or where its command says
    {url}. Of each request the time in the queue, of prefill and of generation is kept, and its
    tokens; what lies between requests is the tools' and the agent's own. The report says what a run
    is bound by, what decode N times as fast would save, and what it costs.
    """
    from monolane.cli._report import print_note
    from monolane.measure import LoadTarget, record_loop, render_account
    from monolane.model import check_place

    check_place(out, beside=False)
    target = LoadTarget.parse(base_url, os.environ.get(key_from, ""))
    found = record_loop(command, target, out, price)
    if as_json:
        sys.stdout.write((out / "loop.json").read_text(encoding="utf-8"))
    else:
        sys.stdout.write(render_account(found))
    print_note(f"written to {out / 'loop.json'}, {out / 'loop.md'}, {out / 'calls.jsonl'}")
    if code := found["exit_code"]:
        print_note(f"the agent's command ended with code {code}")
        raise typer.Exit(code if code > 0 else 128 - code)  # as a shell tells of a signal

"""Runs an agent's command with a recording proxy in the place of its model's server."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monolane.errors import BackendError, RequestError
from monolane.measure._agent_loop.account import account, render_account
from monolane.measure._agent_loop.proxy import RecordingProxy
from monolane.measure._load_exchange import LoadTarget
from monolane.measure._writing import writing_told

# What the common clients read the base URL from; {url} in the command is replaced, too.
_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")


def record_loop(
    command: Sequence[str], target: LoadTarget, folder: Path, price: float | None = None
) -> dict[str, Any]:
    """Run a command until it ends, and return and write the account of its time.

    calls.jsonl grows as requests end; loop.json and loop.md come at the end. RequestError: the
    command cannot be run, or the folder has a record; BackendError: it ended without one request to
    the model, or no request was answered.
    """
    if price is not None and not price >= 0:
        raise RequestError(f"--price: expected 0 or more per hour, got {price}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"--output {folder}: expected a folder: {error.strerror}") from None
    record = folder / "calls.jsonl"
    if record.is_file() and record.stat().st_size:
        raise RequestError(
            f"{record}: expected no record there, found that of another run; name another "
            "--output, or remove it"
        )
    with RecordingProxy(target, record) as proxy:
        url = f"{proxy.url}/v1"
        words = [word.replace("{url}", url) for word in command]
        environment = {**os.environ, **dict.fromkeys(_VARIABLES, url)}
        try:
            code = subprocess.run(words, env=environment, check=False).returncode
        except OSError as error:
            raise RequestError(f"{words[0]}: expected a command: {error.strerror}") from None
        seconds = proxy.now()
        calls = proxy.settle()
        # An answer may end after the agent that has read enough of it.
        seconds = max([seconds, *(call.end for call in calls)])
    if not calls:
        raise BackendError(
            f"{words[0]} ended with code {code} and sent no request to {url}: give it that address "
            f"by {' or '.join(_VARIABLES)}, or write {{url}} where its command wants it"
        )
    if all(call.status != 200 for call in calls):
        record.unlink()  # of nothing that is worth going on from
        raise BackendError(
            f"{target.url}: expected answers of a model, got none: {len(calls)} requests failed, "
            f"the last with HTTP {calls[-1].status}; is the server there, and does it have what "
            "the agent asks for?"
        )
    found = {"command": list(command), "exit_code": code, **account(calls, seconds, price)}
    with writing_told(folder):
        (folder / "loop.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (folder / "loop.md").write_text(render_account(found), encoding="utf-8")
    return found

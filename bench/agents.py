"""Coding agents of others in a loop of their own: run a check, mend what it tells, run it again.

    python bench/agents.py --folder ~/clients --out bench/results --docs docs/serving.md

Not part of the gate: it takes hundreds of megabytes from npm. Each agent is unmodified, and talks
to ``monolane serve`` in the API that it speaks. The model (``_copier.py``) says what it is told to
say: the prompt holds its first answer alone, to run ``check.py``; what that prints holds the next
ones. What is to be edited follows from what the check computed, so that an agent that does not send
a tool's result back, or a server that does not read it, cannot mend the file: two files with
different faults are mended, each by the edit that its own fault asks for.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from _copier import call, order, write_copier
from _document import publish
from _program import run_script
from _server import Server, server
from clients import Client, filled, install

from monolane.measure import Record

START, PATIENCE = 300.0, 600.0  # seconds for a server, and for an agent
BEGIN, END = "<!-- agents -->", "<!-- end of agents -->"
CHECK = "python3 check.py"
DONE = "mean.py passes its check."
FILE = "mean.py"
TEXT = "def mean(x):\n    count = len(x){fault}\n    return sum(x) / count\n"
FAULTS = {"6.0": " - 1", "3.0": " + 1"}  # by what the mean of 2, 4 and 6 is with it


@dataclass(frozen=True)
class Agent:
    """How an agent is called, and how it names its tools.

    ``{url}``, ``{root}`` and ``{prompt}`` are put into the command and the environment. A command
    without the prompt reads it from stdin.
    """

    client: Client
    api: str
    shell: str  # the tool that runs a command
    command: str  # and its argument
    edit: Callable[[Path, str, str], list[str]]  # a file, what is there, what shall be -> answers
    environment: Mapping[str, str]

    def run(self, number: int) -> str:
        """Return an answer that runs the check."""
        return call(number, self.shell, {self.command: CHECK})


def _patch(path: Path, old: str, new: str) -> list[str]:
    """Return answer 2, a call of Codex's own patching tool, which it reads out of commands."""
    lines = [
        "apply_patch <<'EOF'",
        "*** Begin Patch",
        f"*** Update File: {path.name}",
        "@@",
        f"-    {old}",
        f"+    {new}",
        "*** End Patch",
        "EOF",
    ]
    return [call(2, "exec_command", {"cmd": "\n".join(lines)})]


def _read_and_edit(
    read: str, edit: str, keys: Sequence[str]
) -> Callable[[Path, str, str], list[str]]:
    """Return what makes answers 2 and 3: these agents want a file read before they edit it."""
    file, before, after = keys

    def calls(path: Path, old: str, new: str) -> list[str]:
        arguments = {file: str(path), before: old, after: new}
        return [call(2, read, {file: str(path)}), call(3, edit, arguments)]

    return calls


AGENTS: Mapping[str, Agent] = {
    "Codex CLI": Agent(
        Client(
            ("@openai/codex",),
            command=(
                *("codex", "exec", "--skip-git-repo-check", "-m", "local"),
                "--dangerously-bypass-approvals-and-sandbox",
                *("-c", 'model_provider="monolane"'),
                *("-c", 'model_providers.monolane.name="monolane"'),
                *("-c", 'model_providers.monolane.base_url="{url}"'),
                *("-c", 'model_providers.monolane.wire_api="responses"', "{prompt}"),
            ),
            node=True,
        ),
        "Responses",
        "exec_command",
        "cmd",
        _patch,
        {},
    ),
    "Claude Code": Agent(
        Client(
            ("@anthropic-ai/claude-code",),
            command=("claude", "-p", "{prompt}", "--dangerously-skip-permissions"),
            node=True,
        ),
        "Messages",
        "Bash",
        "command",
        _read_and_edit("Read", "Edit", ("file_path", "old_string", "new_string")),
        {
            "ANTHROPIC_BASE_URL": "{root}",
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "local",
            "ANTHROPIC_SMALL_FAST_MODEL": "local",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",  # it refuses to run tools unasked as root elsewhere
        },
    ),
    "opencode": Agent(
        Client(
            ("opencode-ai",),
            command=("opencode", "run", "--model", "monolane/local"),  # escapes quotes in arguments
            node=True,
        ),
        "chat",
        "bash",
        "command",
        _read_and_edit("read", "edit", ("filePath", "oldString", "newString")),
        {},
    ),
}


def main() -> None:
    """Install, run, and write one results file; and the table of the docs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="of environments; may be new")
    parser.add_argument("--only", action="append", choices=AGENTS, help="repeatable")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    parser.add_argument("--docs", type=Path, help="a page whose table of agents is written anew")
    options = parser.parse_args()
    folder = options.folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    # Paths are written in answers: with the line's beginning in less tokens than are compared.
    with tempfile.TemporaryDirectory(prefix="m") as place:
        model = write_copier(Path(place) / "model")
        command = [sys.executable, "-m", "monolane", "serve", "--port", "0", "--no-bandwidth"]
        with server([*command, "--model", str(model), "--name", "local"], START) as ours:
            for number, name in enumerate(options.only or AGENTS):
                work = Path(place) / str(number)
                records.append(record(name, AGENTS[name], ours, folder, work))
                sys.stderr.write(f"{json.dumps(records[-1])}\n")
    publish(records, "agents", options.out)
    if options.docs is not None:
        text = options.docs.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        table = "\n".join([BEGIN, *rows(records), END])
        options.docs.write_text(before + table + rest.partition(END)[2], encoding="utf-8")
    if any("error" in one for one in records):
        raise SystemExit(1)


def record(name: str, agent: Agent, ours: Server, folder: Path, work: Path) -> Record:
    """Return what an agent did with each fault."""
    about = {"name": "agent", "engine": "monolane", "client": name, "api": agent.api}
    place = folder / name.replace(" ", "-")
    about["version"] = install(agent.client, place, folder)
    edits: list[str] = []
    for number, fault in enumerate(FAULTS.values()):
        project = work.with_name(f"{work.name}{number}")
        write_project(project, agent, fault)
        done = run(agent, place, project, ours)
        if error := missing(project, done):
            return about | {"edits": edits, "error": f"with '{fault.strip()}': {error}"}
        edits.append(f"len(x){fault} -> len(x)")
    return about | {"edits": edits}


def write_project(project: Path, agent: Agent, fault: str) -> None:
    """Write a file with a fault, and a check that orders what its result asks for."""
    project.mkdir(parents=True)
    (project / FILE).write_text(TEXT.format(fault=fault), encoding="utf-8")
    line = TEXT.splitlines()[1].strip()
    orders = {}
    for found, one in FAULTS.items():
        edits = agent.edit(project / FILE, line.format(fault=one), line.format(fault=""))
        answers = [*edits, agent.run(2 + len(edits))]
        orders[found] = "".join(order(2 + i, text) for i, text in enumerate(answers))
    orders["4.0"] = order(3 + len(edits), DONE)
    (project / "check.py").write_text(
        "from mean import mean\n\n"
        "found = float(mean([2, 4, 6]))\n"
        'print(f"mean([2, 4, 6]): expected 4.0, got {found}")\n'
        f"orders = {orders!r}\n"
        "print(orders[str(found)])\n",
        encoding="utf-8",
    )


def run(
    agent: Agent, place: Path, project: Path, ours: Server
) -> "subprocess.CompletedProcess[str]":
    """Have an agent mend a project; its own files are in a new home."""
    home = project.with_name(f"home-{project.name}")
    home.mkdir()
    url = f"{ours.url}/v1"
    prompt = f"Run the check, and mend {FILE} until it passes.\n{order(1, agent.run(1))}"
    known = {"url": url, "root": ours.url, "prompt": prompt}
    if agent.client.packages[0] == "opencode-ai":
        (project / "opencode.json").write_text(json.dumps(opencode_config(url)), encoding="utf-8")
    environment = {
        "PATH": f"{place / 'node_modules/.bin'}:{os.environ['PATH']}",
        "HOME": str(home),
        "OPENAI_API_KEY": "none",
        "PYTHONDONTWRITEBYTECODE": "1",  # a file that is edited within a second is read again
        **{key: filled(value, known) for key, value in agent.environment.items()},
    }
    command = [filled(word, known) for word in agent.client.command]
    try:
        return subprocess.run(
            command,
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            input="" if "{prompt}" in agent.client.command else prompt,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"not over within {PATIENCE:g} s")


def opencode_config(url: str) -> dict[str, object]:
    """Return what opencode.json says of the server."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "monolane",
        "options": {"baseURL": url},
        "models": {"local": {"name": "local", "limit": {"context": 131_072, "output": 4096}}},
    }
    return {"provider": {"monolane": provider}, "permission": {"edit": "allow", "bash": "allow"}}


def missing(project: Path, done: "subprocess.CompletedProcess[str]") -> str | None:
    """Return what a run did not do, or None."""
    if done.returncode:
        return f"exit status {done.returncode}: {done.stderr.strip()[-300:]}"
    if (project / FILE).read_text(encoding="utf-8") != TEXT.format(fault=""):
        return f"{FILE} is not mended: {done.stdout.strip()[-300:]}"
    if DONE not in done.stdout:
        return f"expected the last answer {DONE!r}, got {done.stdout.strip()[-300:]!r}"
    return None


def rows(records: Sequence[Record]) -> Iterator[str]:
    """Yield the lines of the table of the docs."""
    yield "| agent | version | API | faults mended |"
    yield "|---|---|---|---|"
    for one in records:
        cells = [one["client"], one["version"], one["api"]]
        cells.append(f"{len(one['edits'])} of {len(FAULTS)}")
        yield "| " + " | ".join(str(cell) for cell in cells) + " |"


if __name__ == "__main__":
    shutil.which("npm") or sys.exit("agents: expected npm on the PATH; install Node.js")
    run_script(main)

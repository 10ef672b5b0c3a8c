"""Unmodified clients of others against ``monolane serve``: each installed, and asked to talk to it.

    python bench/clients.py --folder ~/clients --out bench/results --docs docs/serving.md

Not part of the gate: it takes hundreds of megabytes from PyPI and npm, and minutes. Each client has
an environment of its own in ``--folder``, outside the repository, with the newest version that the
registry gives; a second run takes what is there. What a client does is in ``exchanges``; it prints
a word for each thing that worked. The model is ``smollm2``, or whatever ``--model`` names.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from _document import publish
from _program import run_script
from _server import Server, server

from monolane.measure import Record
from monolane.sources import find_model

EXCHANGES = Path(__file__).with_name("exchanges")
START, PATIENCE = 300.0, 900.0  # seconds for a server, and for a client
BEGIN, END = "<!-- clients -->", "<!-- end of clients -->"
PROMPT = "Say hello."


@dataclass(frozen=True)
class Client:
    """What is installed, and run: a script of ``exchanges``, or a command of the client itself.

    ``{url}``, ``{root}``, ``{model}`` and ``{folder}`` (an empty one) are put into a command.
    """

    packages: tuple[str, ...]  # the first one's version is told
    script: str = ""
    command: tuple[str, ...] = ()
    works: str = ""  # what a command shows by its exit code
    node: bool = False


CLIENTS: Mapping[str, Client] = {
    "openai (Python)": Client(("openai",), "openai_python.py"),
    "openai (Node)": Client(("openai",), "openai_node.mjs", node=True),
    "anthropic (Python)": Client(("anthropic",), "anthropic_python.py"),
    "anthropic (Node)": Client(("@anthropic-ai/sdk",), "anthropic_node.mjs", node=True),
    "AI SDK": Client(("ai", "@ai-sdk/openai-compatible"), "ai_sdk.mjs", node=True),
    "AI SDK Responses": Client(("ai", "@ai-sdk/openai"), "ai_sdk_responses.mjs", node=True),
    "LiteLLM": Client(("litellm", "mcp"), "litellm.py"),
    "LangChain": Client(("langchain-openai",), "langchain.py"),
    "instructor": Client(("instructor",), "instructor.py"),
    "pydantic-ai": Client(("pydantic-ai-slim[openai]",), "pydantic_ai.py"),
    "smolagents": Client(("smolagents[openai]",), "smolagents.py"),
    "llm": Client(("llm",), "llm.py"),
    "mini-swe-agent": Client(("mini-swe-agent",), "mini_swe_agent.py"),
    "lm-eval": Client(("lm-eval[api]", "transformers"), "lm_eval.py"),
    "guidellm": Client(
        ("guidellm",),
        command=(
            *("guidellm", "run", "--backend", "kind=openai_http,target={root},model={model}"),
            *("--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=3"),
            *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16"),
            *("--tokenizer", "kind=huggingface_auto,model={tokenizer}", "--disable-console"),
        ),
        works="a synchronous benchmark of 3 requests",
    ),
    "aider": Client(
        ("aider-chat",),
        command=(
            *(
                "aider",
                "--model",
                "openai/{model}",
                "--message",
                PROMPT,
                "--no-git",
                "--yes-always",
            ),
            *("--no-show-model-warnings", "--no-check-update", "--analytics-disable"),
            *("--edit-format", "ask", "--no-auto-commits", "--map-tokens", "0"),
        ),
        works="a message, streamed",
    ),
    "Codex CLI": Client(
        ("@openai/codex",),
        command=(
            *("codex", "exec", "--skip-git-repo-check", "-m", "{model}"),
            *("-c", 'model_provider="monolane"', "-c", 'model_providers.monolane.name="monolane"'),
            *("-c", 'model_providers.monolane.base_url="{url}"'),
            *("-c", 'model_providers.monolane.wire_api="responses"', PROMPT),
        ),
        works="a turn of `codex exec`",
        node=True,
    ),
    "opencode": Client(
        ("opencode-ai",),
        command=("opencode", "run", "--model", "monolane/{model}", PROMPT),
        works="a turn of `opencode run`",
        node=True,
    ),
}


def main() -> None:
    """Install, run, and write one results file; and the table of the docs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="of environments; may be new")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--only", action="append", choices=CLIENTS, help="repeatable")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    parser.add_argument("--docs", type=Path, help="a page whose table of clients is written anew")
    options = parser.parse_args()
    folder = options.folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "monolane", "serve", "--port", "0", "--no-bandwidth"]
    records = []
    with server([*command, "--model", options.model, "--name", "local"], START) as ours:
        for name in options.only or CLIENTS:
            records.append(record(name, CLIENTS[name], ours, folder, options.model))
            sys.stderr.write(f"{json.dumps(records[-1])}\n")
    publish(records, "clients", options.out)
    if options.docs is not None:
        text = options.docs.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        table = "\n".join([BEGIN, *rows(records), END])
        options.docs.write_text(before + table + rest.partition(END)[2], encoding="utf-8")


def record(name: str, client: Client, ours: Server, folder: Path, model: str) -> Record:
    """Return what a client did."""
    about = {"name": "client", "engine": "monolane", "model": model, "client": name}
    place = folder / name.replace(" ", "-")
    try:
        version = install(client, place, folder)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "").strip().splitlines()
        return about | {"error": f"cannot be installed: {' '.join(lines[-2:]):.200}"}
    about["version"] = version
    done = run(client, place, ours)
    works = client.works if done.returncode == 0 and client.works else ", ".join(words(done.stdout))
    if done.returncode == 0:
        return about | {"works": works}
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    last = [line for line in lines if "error" in line.lower()][-1:] or lines[-1:]
    return about | {"works": works, "error": f"{' '.join(last):.300}"}


def words(text: str) -> Iterator[str]:
    """Yield the words that an exchange printed on lines of their own."""
    for line in text.splitlines():
        if line.isalpha():
            yield line


def install(client: Client, place: Path, folder: Path) -> str:
    """Install a client unless it is there; return its version."""
    first = client.packages[0]
    if client.node:
        module = place / "node_modules" / first
        if not module.exists():
            place.mkdir(exist_ok=True)
            quietly(["npm", "init", "-y"], place)
            quietly(["npm", "install", "--no-audit", "--no-fund", *client.packages], place)
        return str(json.loads((module / "package.json").read_text())["version"])
    if not (place / "bin").exists():
        tools = folder / "tools"
        if not tools.exists():  # uv: many environments share what they have in common
            quietly([sys.executable, "-m", "venv", str(tools)], folder)
            quietly([str(tools / "bin/pip"), "install", "-q", "uv"], folder)
        uv = str(tools / "bin/uv")
        quietly([uv, "venv", "-q", str(place)], folder)
        python = str(place / "bin/python")
        try:
            quietly([uv, "pip", "install", "-q", "--python", python, *client.packages], folder)
        except subprocess.CalledProcessError:
            shutil.rmtree(place)
            raise
    (packages,) = place.glob("lib/python3*/site-packages")
    name = first.partition("[")[0].replace("_", "-")
    return next(
        d.version for d in distributions(path=[str(packages)]) if d.name.replace("_", "-") == name
    )


def quietly(command: Sequence[str], place: Path) -> None:
    """Run a command; CalledProcessError has what it said."""
    subprocess.run(command, cwd=place, check=True, capture_output=True, text=True)


def run(client: Client, place: Path, ours: Server) -> "subprocess.CompletedProcess[str]":
    """Have a client talk to the server."""
    empty = place / "work"
    shutil.rmtree(empty, ignore_errors=True)
    empty.mkdir()
    url, home = f"{ours.url}/v1", place / "home"
    home.mkdir(exist_ok=True)
    programs = place / ("node_modules/.bin" if client.node else "bin")
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(home),
        "OPENAI_BASE_URL": url,
        "OPENAI_API_BASE": url,
        "OPENAI_API_KEY": "none",
        "ROOT_URL": ours.url,
        "MODEL": "local",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZER": str(find_model("demo")),  # only to make texts of a length
    }
    (empty / "opencode.json").write_text(json.dumps(opencode_config(url)))
    if client.script and client.node:
        shutil.copy(EXCHANGES / client.script, place)  # Node looks for modules beside the script
        command = ["node", str(place / client.script)]
    elif client.script:
        command = [str(programs / "python"), "-P", str(EXCHANGES / client.script)]
    else:
        known = {"url": url, "root": ours.url, "model": "local", "folder": str(empty)}
        known["tokenizer"] = environment["TOKENIZER"]
        command = [filled(word, known) for word in client.command]
    try:
        return subprocess.run(
            command,
            cwd=empty,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"not over within {PATIENCE:g} s")


def filled(word: str, known: Mapping[str, str]) -> str:
    """Return a word of a command with what it names."""
    for name, value in known.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def opencode_config(url: str) -> dict[str, object]:
    """Return what opencode.json says of the server."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "monolane",
        "options": {"baseURL": url},
        "models": {"local": {"name": "local", "limit": {"context": 8192, "output": 512}}},
    }
    return {"provider": {"monolane": provider}}


def rows(records: Sequence[Record]) -> Iterator[str]:
    """Yield the lines of the table of the docs."""
    yield "| client | version | works | does not |"
    yield "|---|---|---|---|"
    for one in records:
        cells = [one["client"], one.get("version", ""), one.get("works", ""), one.get("error", "")]
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    run_script(main)

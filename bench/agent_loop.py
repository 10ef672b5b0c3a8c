"""Where the time of a real agent goes: mini-swe-agent edits files by the answers of our server.

    pip install mini-swe-agent                  # anywhere; --agent names its program
    python bench/agent_loop.py --agent mini --out bench/results

Not part of the gate: it needs the agent. Each edit is a run of its own in an empty folder, through
the proxy of ``monolane eval agent-loop``. The model is small, so its answers are held to the form
that the agent reads: a thought, and a command that looks at the file or edits it. Which of the two,
and what the edit is, the model chooses. A check that is run with each edit ends the run when the
file is what was asked for.
"""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from _document import publish
from _program import run_script
from _server import server

from monolane.errors import ConfigError
from monolane.measure import LoadTarget, Record, record_loop

START = 300.0  # seconds for a server
FILE = "settings.py"
DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # what the agent waits for
COMMANDS = (
    r"cat settings\.py",
    r"sed -i 's/[^/'\n]{1,32}/[^/'\n]{1,32}/' settings\.py && \./check",
)
FORM = (
    r"THOUGHT: [A-Za-z][^\n`]{10,240}\.\n\n"
    rf"```mswea_bash_command\n({'|'.join(COMMANDS)})\n```"
)
SYSTEM = f"""You edit files with shell commands. Each answer is a THOUGHT and one command, such as

THOUGHT: I replace the colour red by blue, and check it.

```mswea_bash_command
sed -i 's/red/blue/' {FILE} && ./check
```"""
CHECK = f"""#!/bin/sh
if cmp -s {FILE} .wanted; then echo {DONE}; else echo "Not yet. The file is:"; cat {FILE}; fi
"""


@dataclass(frozen=True)
class Edit:
    """What is asked of the agent: a text, and what shall come of it."""

    task: str
    before: str
    after: str


_CODE = 'NAME = "server"\nPORT = 8000\nDEBUG = True\nprint(NAME, PORT, DEBUG)\n'
EDITS = {
    "port": Edit(
        f"In {FILE}, replace PORT = 8000 by PORT = 9000.", _CODE, _CODE.replace("8000", "9000")
    ),
    "flag": Edit(
        f"In {FILE}, replace DEBUG = True by DEBUG = False.", _CODE, _CODE.replace("True", "False")
    ),
    "name": Edit(f"In {FILE}, replace server by worker.", _CODE, _CODE.replace("server", "worker")),
}


def config(folder: Path, model: str, steps: int) -> str:
    """Return the agent's configuration file. JSON is YAML."""
    return json.dumps(
        {
            "agent": {
                "system_template": SYSTEM,
                "instance_template": f"Task: {{{{task}}}}\n\nThe file is:\n\n{_CODE}",
                "mode": "yolo",
                "confirm_exit": False,
                "step_limit": steps,
            },
            "environment": {"cwd": str(folder)},
            "model": {
                "model_name": f"openai/{model}",
                "model_class": "litellm_textbased",
                "observation_template": "Exit code {{output.returncode}}\n{{output.output}}",
                "cost_tracking": "ignore_errors",
                "model_kwargs": {
                    "api_key": "none",
                    "max_tokens": 256,
                    "temperature": 0,
                    "extra_body": {"structured_outputs": {"regex": FORM}},
                },
            },
        }
    )


def prepare(edit: Edit, folder: Path) -> None:
    """Put into a folder what the agent finds there."""
    (folder / FILE).write_text(edit.before)
    (folder / ".wanted").write_text(edit.after)
    (folder / "check").write_text(CHECK)
    (folder / "check").chmod(0o755)


def run(edit: Edit, agent: str, url: str, work: Path, options: argparse.Namespace) -> Record:
    """Return what became of an edit, and where its time went."""
    folder, home = work / "folder", work / "home"
    folder.mkdir()
    home.mkdir()
    prepare(edit, folder)
    (work / "mini.yaml").write_text(config(folder, options.model, options.steps))
    command = [
        *("env", "MSWEA_CONFIGURED=true", f"MSWEA_GLOBAL_CONFIG_DIR={home}"),
        *("LITELLM_LOCAL_MODEL_COST_MAP=True", "MSWEA_SILENT_STARTUP=1"),
        *(agent, "-c", str(work / "mini.yaml"), "-t", edit.task),
        *("-y", "--exit-immediately", "-o", str(work / "trajectory.json")),
    ]
    found = record_loop(command, LoadTarget.parse(url), work / "loop")
    kept = ("seconds", "parts", "bound_by", "prompt_tokens", "cached_tokens", "tokens", "failed")
    return {
        **{name: found[name] for name in kept},
        "requests": len(found["steps"]),
        "done": (folder / FILE).read_text() == edit.after,
        "exit_code": found["exit_code"],
        # Seconds of the run, if decode were so many times as fast.
        "faster": {str(row["factor"]): row["seconds"] for row in found["faster"]},
    }


def main() -> None:
    """Run the agent, and write a results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agent", default="mini", help="the program of mini-swe-agent")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--steps", type=int, default=8, help="answers of a run, at most")
    parser.add_argument("--out", type=Path, help="folder for the results file")
    options = parser.parse_args()
    if shutil.which(options.agent) is None:
        raise ConfigError(
            f"--agent {options.agent}: expected mini-swe-agent's program, found none; "
            "pip install mini-swe-agent, or name the program"
        )
    command = [sys.executable, "-m", "monolane", "serve", "--port", "0", "--no-bandwidth"]
    records: list[Record] = []
    with server([*command, "--model", options.model], START) as ours:
        for name, edit in EDITS.items():
            about = {"name": "agent_loop", "engine": "monolane", "model": options.model}
            with tempfile.TemporaryDirectory(prefix="monolane-bench-") as work:
                found = run(edit, options.agent, ours.url, Path(work), options)
            records.append({**about, "edit": name, **found})
            sys.stderr.write(f"{json.dumps(records[-1])}\n")
    publish(records, "agent-loop", options.out)


if __name__ == "__main__":
    run_script(main)

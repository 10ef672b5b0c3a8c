"""The command line as a user runs it: a process of its own, its two outputs and its exit code."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

Result = subprocess.CompletedProcess[str]
PROGRAM = [sys.executable, "-W", "error", "-c", "from monolane.cli import main; main()"]


def run(*arguments: str | Path, stdin: str = "", **environment: str) -> Result:
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
        check=False,
    )


def test_generate_puts_the_answer_alone_on_stdout(tiny_model: Path) -> None:
    result = run("generate", "def f(x):", "--model", tiny_model, "-n", 12, "--ignore-eos")
    as_json = run("generate", "def f(x):", "-m", tiny_model, "-n", 12, "--ignore-eos", "--json")
    answer = json.loads(as_json.stdout)
    assert result.returncode == as_json.returncode == 0
    assert result.stdout == answer["text"] + "\n"
    assert len(answer["token_ids"]) == answer["timings"]["generated_tokens"] == 12
    assert answer["finish_reason"] == "length"
    assert "12 tokens · " in result.stderr
    assert "tokens/s · first after " in result.stderr
    assert as_json.stderr == ""


def test_sampling_options_reach_the_engine(tiny_model: Path) -> None:
    common = ("generate", "x", "-m", tiny_model, "-t", 1.5, "-n", 16, "--ignore-eos", "--json")
    texts = [json.loads(run(*common, "--seed", seed).stdout)["text"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_the_prompt_may_come_from_stdin(tiny_model: Path) -> None:
    common = ("-m", tiny_model, "-n", 8, "--ignore-eos")
    piped = run("generate", "-", *common, stdin="import os")
    assert piped.stdout == run("generate", "import os", *common).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["generate"], 2, "monolane generate: expected PROMPT, got none; see"),
        (
            ["generate", "x", "--no-such-option"],
            2,
            "generate: expected an option of it, got --no-such-option; see",
        ),
        (["no-such-command"], 2, "monolane: expected a command, got 'no-such-command'; see"),
        (["generate", "x", "-n", "0"], 2, "max_tokens: expected an integer from 1"),
        (["generate", "x", "--frequency-penalty", "3"], 2, "frequency_penalty: expected a number"),
        (["generate", "x", "--presence-penalty", "3"], 2, "presence_penalty: expected a number"),
        (["chat", "--repetition-penalty", "0"], 2, "repetition_penalty: expected a number"),
        (["generate", "x", "-t", "-1"], 2, "temperature: expected a number from 0 to 100"),
        (
            ["generate", "x", "-m", "/no/such/folder"],
            1,
            "expected 'demo', 'smollm2', a folder or a .gguf file",
        ),
        (
            ["generate", "x", "--backend", "gpu"],
            2,
            "backend: expected one of auto, cuda, cpu, reference",
        ),
        (
            ["generate", "x", "-m", "~nobody-of-this-name/x"],
            1,
            "expected a path to a file or folder",
        ),
        (
            ["generate", "x", "--generation-config", "~nobody-of-this-name"],
            1,
            "--generation-config: expected auto, none, or a JSON file",
        ),
        (
            ["generate", "x", "--heads", "~nobody-of-this-name", "--backend", "cpu"],
            1,
            "expected a path to a file or folder",
        ),
        (
            ["verify", "-m", "/no/such/folder"],
            1,
            "expected 'demo', 'smollm2', a folder or a .gguf file",
        ),
    ],
)
def test_wrong_usage_and_failures(arguments: list[str], code: int, message: str) -> None:
    result = run(*arguments)
    assert result.returncode == code
    assert message in " ".join(result.stderr.replace("│", "").split())
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


# The tiny model is done in a blink: hold its passes up, and tell of the fourth, so that the signal
# comes amid them. All 90 would take 90 s.
SLOW = """
import pathlib, time
import monolane.reference as reference

def held_up(*arguments, forward=reference.ReferenceModel.forward, passes=[]):
    passes.append(0)
    if len(passes) == 4:
        pathlib.Path({amid!r}).touch()
    if len(passes) >= 4:
        time.sleep(1)
    return forward(*arguments)

reference.ReferenceModel.forward = held_up
"""


def test_ctrl_c_ends_cleanly(tiny_model: Path, tmp_path: Path) -> None:
    command = [*PROGRAM, "generate", "x", "-m", str(tiny_model), "-n", "90", "--ignore-eos"]
    command += ["--backend", "reference"]
    amid = tmp_path / "amid"
    command[len(PROGRAM) - 1] = SLOW.format(amid=str(amid)) + command[len(PROGRAM) - 1]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Jobs in the background of a script begin with it ignored, and their children too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    end = time.monotonic() + 120
    while not amid.exists() and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=40)  # a pass is 1 s
    assert process.returncode == 130
    assert "Traceback" not in err
    assert " tokens · " in err
    assert out.endswith("\n")


def test_a_closed_pipe_is_no_failure(tiny_model: Path) -> None:
    command = " ".join(f"'{part}'" for part in [*PROGRAM, "generate", "x", "-m", str(tiny_model)])
    result = subprocess.run(
        ["bash", "-c", f"{command} --ignore-eos | head -c 1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in result.stderr
    assert "Error" not in result.stderr
    assert result.returncode == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&-"])
def test_a_stream_that_the_shell_closed_is_no_failure(closed: str, tmp_path: Path) -> None:
    """Nor does a file that the command writes get its number, and what else is written there."""
    trace = tmp_path / "trace.json"
    words = [*PROGRAM, "sim", "--device", "cpu:1", "--trace", str(trace)]
    result = subprocess.run(
        ["bash", "-c", f"{shlex.join(words)} {closed}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "tiny", "-o", "out"), "monolane: training (monolane.train) needs packages"),
        (
            ("sft", "chats", "-m", "demo", "-o", "out"),
            "monolane: fine-tuning (monolane.tune) needs packages",
        ),
    ],
)
def test_what_is_not_installed_is_told_of_the_command(
    arguments: tuple[str, ...], message: str
) -> None:
    program = "import sys; sys.modules['torch'] = None; from monolane.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(message)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_an_output_that_cannot_be_written_is_named(
    tiny_model: Path, more: tuple[str, ...], unbuffered: str
) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*PROGRAM, "generate", "x", "-m", str(tiny_model), "-n", "4", *more],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("monolane: the output cannot be written: No space left on device;")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", [("generate", "-"), ("chat",)])
def test_an_input_that_is_no_text_is_named(tiny_model: Path, command: tuple[str, ...]) -> None:
    result = subprocess.run(
        [*PROGRAM, *command, "-m", str(tiny_model), "-n", "4"],
        input=b"caf\xe9\n",
        capture_output=True,
        timeout=300,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert result.returncode == 2
    assert b"monolane: stdin: expected text in utf-8, got other bytes:" in result.stderr
    assert b"Traceback" not in result.stderr


def test_chat_says_which_model_can_chat_where_none_is_named() -> None:
    result = run("chat", stdin="hello\n")
    assert result.returncode == 2
    assert "expected a model that can chat, got none: --model smollm2 is one" in result.stderr
    assert result.stdout == ""


def test_chat_ends_a_loop_and_generate_does_not() -> None:
    """The demo model writes zeros for ever.

    A loop is one after 200 tokens. How many more are drawn until it is seen depends on the machine.
    """
    options = ("-m", "demo", "-t", "0")
    chat = run("chat", *options, "-n", "900", stdin="x = 1\n")
    assert chat.returncode == 0
    (times,) = re.findall(r"stopped: the last 1 token came (\d+) times in a row\.", chat.stderr)
    assert 200 <= int(times) < 900
    generate = run("generate", "x = 1", "--chat", *options, "-n", "400", "--json")
    assert len(json.loads(generate.stdout)["token_ids"]) == 400


def test_chat_goes_on_behind_a_line_that_is_longer_than_the_context(tiny_model: Path) -> None:
    result = run("chat", "-m", tiny_model, "-n", 6, stdin=f"a\n{'x = 1 ' * 200}\nb\n")
    assert result.returncode == 0
    assert "and the context holds 96: it was left out" in result.stderr
    assert len([line for line in result.stderr.splitlines() if "first after" in line]) == 2


def test_chat_answers_each_line_and_obeys_its_commands(tiny_model: Path) -> None:
    lines = "hello\n/reset\n/what\n\nagain\n/quit\nnever\n"
    result = run("chat", "-m", tiny_model, "-n", 6, stdin=lines)
    assert result.returncode == 0
    assert result.stderr.count("tokens/s") + result.stderr.count("token") >= 2
    assert result.stderr.count("/reset forgets the conversation") == 2  # at the start and for /what
    assert len([line for line in result.stderr.splitlines() if "first after" in line]) == 2


def test_chat_forgets_the_oldest_when_the_context_is_full(tiny_model: Path) -> None:
    result = run("chat", "-m", tiny_model, "-n", 40, stdin="x = 1\n" * 4)
    assert result.returncode == 0
    assert "the context is full: forgot the" in result.stderr


def test_doctor_tells_what_there_is(tmp_path: Path) -> None:
    result = run("doctor", HF_HUB_CACHE=str(tmp_path))
    for part in (
        "machine",
        "cpu",
        "native core",
        "backends",
        "reference",
        "cuda",
        "MONOLANE_BACKEND",
    ):
        assert part in result.stdout
    rows = json.loads(run("doctor", "--json").stdout)
    assert {"section", "name", "state", "value", "mend"} == rows[0].keys()
    broken = run("doctor", MONOLANE_BACKEND="gpu")
    assert broken.returncode == 1
    assert "unset MONOLANE_BACKEND" in broken.stdout


@pytest.mark.parametrize(
    "command",
    [
        "",
        "generate",
        "chat",
        "verify",
        "export",
        "quantize",
        "train",
        "plan",
        "plan show",
        "bench",
        "trace",
        "board",
        "doctor",
    ],
)
def test_help_is_there(command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.returncode == 0
    assert "Usage" in result.stdout


def test_version() -> None:
    from monolane import __version__

    assert run("--version").stdout == __version__ + "\n"

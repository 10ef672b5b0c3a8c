"""Runs: journals survive kills, intervals are right, reports say what was found and where."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolane
from monolane.errors import BackendError, ConfigError, MonolaneError, RequestError
from monolane.evaluate import (
    Decoding,
    EvalOptions,
    Figure,
    Journal,
    Outcome,
    Question,
    ServerSubject,
    Text,
    bootstrap,
    build_report,
    evaluate,
    make_tasks,
    mean_interval,
    open_engine,
    render_markdown,
    render_page,
    transformers_logits,
    wilson,
    write_report,
)
from monolane.evaluate._intervals import ratio_interval
from monolane.evaluate._perplexity import hash_texts
from monolane.evaluate._report import with_earlier
from monolane.evaluate._target import Subject
from monolane.evaluate._task import AskedTask, Item, Task
from monolane.model import Quantization, quantize_folder, read_config

DEMO = Path(monolane.__file__).parent / "demo"
HEAD = {"task": "t", "seed": 0}


def test_lines_come_back_and_a_cut_last_one_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Journal(path, HEAD) as journal:
        journal.add("a", score=1)
        journal.add("b", 1, score=0)
    whole = path.read_bytes()
    for cut in (b'{"item": "c", "sam', b'{"item": "c", "sample": 0}', b"\xff\n"):
        path.write_bytes(whole + cut)
        with Journal(path, HEAD) as journal:
            assert journal.get("a") == {"item": "a", "sample": 0, "score": 1}
            assert journal.get("b") is None
            assert journal.get("b", 1) is not None
            assert journal.get("c") is None
            journal.add("c", score=1)
        with Journal(path, HEAD) as journal:
            assert journal.get("c") is not None
    path.write_bytes(whole[:5])  # killed while it began
    with Journal(path, HEAD) as journal:
        assert journal.get("a") is None


def test_other_settings_and_broken_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Journal(path, HEAD) as journal:
        journal.add("a", score=1)
    with pytest.raises(RequestError, match="seed is 1 and was 0"):
        Journal(path, {**HEAD, "seed": 1})
    path.write_bytes(path.read_bytes().replace(b'"item"', b'"item', 1) + b'{"item": "b"}\n')
    with pytest.raises(RequestError, match="line 2: expected a JSON object"):
        Journal(path, HEAD)


def test_wilson_is_the_interval_of_the_textbook() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert wilson(8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)  # Newcombe 1998, method 3
    assert wilson(10, 10)[1] == 1.0
    assert mean_interval([1, 1, 0])[2].startswith("Wilson")
    with pytest.raises(ValueError, match="successes"):
        wilson(2, 1)


def test_a_ratio_lies_in_its_own_interval_however_long_one_item_is() -> None:
    parts, wholes = [5.0] * 19 + [0.0], [10.0] * 19 + [10_000.0]
    low, high, how = ratio_interval(parts, wholes)
    assert low <= sum(parts) / sum(wholes) <= high
    assert how.startswith("bootstrap")
    assert ratio_interval([0.0] * 3, [9.0] * 3) == (0, 0, how)  # of what is no share
    low, high, how = ratio_interval([0, 0, 0], [9, 8, 7], share=True)
    assert (low, high) == pytest.approx((0, 0.5615), abs=1e-4)
    assert how.startswith("Wilson")
    assert ratio_interval([9, 8, 7], [9, 8, 7], share=True)[1] == 1


def test_bootstrap_agrees_with_the_normal_interval_of_many() -> None:
    scores = np.random.default_rng(1).normal(5, 2, size=1000)
    low, high, _ = bootstrap([[s] for s in scores], lambda mean: float(mean[0]))
    half = 1.96 * scores.std() / np.sqrt(1000)
    # 2,000 resamples place a percentile within some 4 % of the half width.
    assert (high - low) / 2 == pytest.approx(half, rel=0.12)
    assert low < scores.mean() < high


def test_one_item_drawn_again_tells_nothing() -> None:
    """It had an interval of no width, as if nothing could change the figure."""
    assert mean_interval([0.25])[:2] == ratio_interval([3.0], [4.0])[:2] == (None, None)
    assert mean_interval([1.0])[:2] == pytest.approx((0.2065, 1), abs=1e-4)  # Wilson's has a width
    figure = Figure("mean", 25.0, *mean_interval([0.25])[:2], 1, "bootstrap 95 %, items")
    outcome = Outcome("mine", "Mine", (figure,), {}, {}, ())
    report = build_report({"model": "demo"}, [outcome], "monolane eval")
    assert "| mean | 25.00 % |  | 1 |" in render_markdown(report)
    assert "bootstrap" not in render_page(report)


def test_a_report_shows_each_answer(tmp_path: Path) -> None:
    with open_engine("demo", backend="reference", context=64) as subject:
        tasks: list[Task] = [Sums()]
        report = evaluate(subject, tasks, tmp_path)
    (task,) = report["tasks"]
    assert [(each["item"], each["score"]) for each in task["answers"]] == [
        ("one", 0.0),
        ("one, sample 2", 0.0),
        ("two", 1.0),
        ("two, sample 2", 1.0),
    ]
    lines = (tmp_path / "sums.jsonl").read_text().splitlines()[1:]
    said = [json.loads(line)["answer"]["text"] for line in lines]
    assert [each["said"] for each in task["answers"]] == said
    assert all(len(text) > 1 for text in said)
    page = render_page(report)
    assert "4 answers" in page
    for words in ("one, sample 2: wrong", "two: right", "1 &lt; 2", escape(said[0])):
        assert words in page
    assert "- Answers: 4, each in report.html and report.json" in render_markdown(report)


class Sums(AskedTask):
    """Two questions of two samples; the second is always right."""

    name, title, samples = "sums", "Sums", 2

    def items(self, subject: Subject) -> list[Item]:
        how = Decoding(4, temperature=0.8)
        return [Item(key, Question("1 < 2 ", how, chat=False)) for key in ("one", "two")]

    def judge(self, item: Item, text: str) -> dict[str, Any]:
        return {"score": float(item.key == "two")}

    def figures(self, subject: Subject, lines: Any) -> tuple[Figure, ...]:
        return ()

    def settings(self) -> dict[str, Any]:
        return {}


def test_codes_of_ours_are_not_compared_with_what_transformers_makes_of_them(
    tmp_path: Path,
) -> None:
    quantize_folder(DEMO, tmp_path / "int8", Quantization(8))
    with pytest.raises(ConfigError, match=r"float weights for Transformers, got 8-bit codes, whic"):
        transformers_logits(tmp_path / "int8", read_config(tmp_path / "int8"))


def report_of(model: str) -> dict[str, Any]:
    figure = Figure("pass@1", 50.0, 40.0, 60.0, 164, "Wilson 95 %, problems")
    outcome = Outcome("humaneval+", "HumanEval+", (figure,), {"data_sha256": "ab"}, {}, ("<b>",))
    return build_report({"model": model, "sha256": "cd"}, [outcome], "monolane eval")


def test_published_figures_stand_beside_those_of_their_model_alone() -> None:
    theirs = report_of("kogai/laneformer-2b-it@main")
    assert theirs["tasks"][0]["figures"][0]["published"] == 45.1
    assert "45.10 %" in render_markdown(theirs)
    assert "45.10 %" in render_page(theirs)
    assert "published" not in render_markdown(report_of("demo"))


def test_the_page_needs_nothing_beside_it_and_escapes_what_it_shows() -> None:
    page = render_page(report_of("<script>"))
    assert "<script" not in page
    assert "&lt;b&gt;" in page
    assert not re.search(r"""(src|href)=|url\(|@import""", page)


def test_a_table_that_scrolls_is_reached_by_keyboard_and_has_a_name() -> None:
    told = 'class="wide" tabindex="0" role="region" aria-label="HumanEval+"'
    assert told in render_page(report_of("demo"))


def test_the_command_is_spelled_as_markdown_and_as_a_page_spell_it() -> None:
    report = report_of("demo")
    assert "- Command: `monolane eval`\n" in render_markdown(report)
    assert "<li>Command: <code>monolane eval</code></li>" in render_page(report)
    assert "<li>Model: demo (sha256 cd)</li>" in render_page(report)


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    options = EvalOptions(tasks=("perplexity",), limit=6, window=64)
    command = [
        *(sys.executable, "-m", "monolane", "eval", "--tasks", "perplexity", "--limit", "6"),
        *("--window", "64", "--output", str(tmp_path / "killed")),
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "2 of 6" in line or "3 of 6" in line:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.communicate()
    journal = tmp_path / "killed" / "perplexity.jsonl"
    before = journal.read_bytes()
    with open_engine("demo") as subject:
        again = evaluate(subject, make_tasks(options), tmp_path / "killed")
        fresh = evaluate(subject, make_tasks(options), tmp_path / "fresh")
    assert journal.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    assert again["tasks"] == fresh["tasks"]
    assert len(before.splitlines()) >= 3


def test_parity_of_a_model_with_itself_and_with_rougher_codes(tmp_path: Path) -> None:
    options = EvalOptions(
        tasks=("parity",), limit=2, window=48, against=("cpu:bfloat16", "cpu:int4")
    )
    with open_engine("demo", backend="cpu", dtype="bfloat16") as subject:
        (task,) = evaluate(subject, make_tasks(options), tmp_path)["tasks"]
    found = {figure["metric"]: figure["value"] for figure in task["figures"]}
    assert found["cpu:bfloat16: top-1 agreement"] == 100
    assert found["cpu:bfloat16: logit error, largest"] == 0
    kl = next(figure for figure in task["figures"] if figure["metric"] == "cpu:bfloat16: KL")
    assert (kl["low"], kl["value"], kl["high"]) == (0, 0, 0)
    assert found["cpu:int4: KL"] > 0
    assert found["cpu:int4: top-1 agreement"] < 100


def test_another_limit_goes_on_and_the_report_keeps_what_other_tasks_found(tmp_path: Path) -> None:
    def run(limit: int, *tasks: str, model: str = "demo") -> list[dict[str, Any]]:
        options = EvalOptions(tasks=tasks, limit=limit, window=48, against=("cpu:int8",))
        with open_engine(model, backend="cpu") as subject:
            report = evaluate(subject, make_tasks(options), tmp_path / "out")
        write_report(tmp_path / "out", report)
        return list(report["tasks"])

    _, parity = run(2, "perplexity", "parity")
    for limit in (1, 3):
        first, *others = run(limit, "perplexity")
        assert first["figures"][0]["count"] == limit
        (note,) = others[0]["notes"]
        assert re.fullmatch(r"Found by an earlier command, which ended 20[-\dT:+]+, by .*", note)
        assert others == [{**json.loads(json.dumps(parity)), "notes": [note]}]
    assert len((tmp_path / "out/perplexity.jsonl").read_text().splitlines()) == 1 + 3
    shutil.copytree(DEMO, tmp_path / "other")
    (tmp_path / "other/chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(RequestError, match="expected a run with the same settings"):
        run(1, "perplexity", model=str(tmp_path / "other"))
    (tmp_path / "out/perplexity.jsonl").unlink()  # another subject's figures are not kept
    assert [task["task"] for task in run(1, "perplexity", model=str(tmp_path / "other"))] == [
        "perplexity"
    ]


def outcome(task: str, value: float | None) -> Outcome:
    figures = () if value is None else (Figure("accuracy", value, None, None, 3),)
    return Outcome(task, task, figures, {})


@pytest.mark.parametrize("fault", ["schema", "figures", "task", "tasks", "subject"])
def test_a_report_that_is_none_is_not_taken(tmp_path: Path, fault: str) -> None:
    about = {"model": "demo"}
    found = build_report(about, [outcome("core", 50.0)], "eval")
    fresh = build_report(about, [outcome("bfcl", None)], "eval")
    (tmp_path / "report.json").write_text(json.dumps(found))
    assert [task["task"] for task in with_earlier(fresh, tmp_path)["tasks"]] == ["bfcl", "core"]
    (found if fault in found else found["tasks"][0]).pop(fault)
    (tmp_path / "report.json").write_text(json.dumps(found))
    assert with_earlier(fresh, tmp_path) == fresh


def test_a_task_that_is_missing_now_does_not_take_earlier_figures_away(tmp_path: Path) -> None:
    about = {"model": "demo"}
    found = build_report(about, [outcome("core", 50.0)], "eval")
    (tmp_path / "report.json").write_text(json.dumps(found))
    fresh = build_report(about, [outcome("core", None)], "eval")
    (task,) = with_earlier(fresh, tmp_path)["tasks"]
    assert task["figures"][0]["value"] == 50.0
    (task,) = with_earlier(build_report(about, [outcome("core", 60.0)], "eval"), tmp_path)["tasks"]
    assert task["figures"][0]["value"] == 60.0


def test_texts_of_one_token_are_left_out_and_keep_nobody_elses_place(tmp_path: Path) -> None:
    names = {"a.txt": "x", "b.txt": "import os\n", "c.txt": "def main():\n"}
    for name, text in names.items():
        (tmp_path / name).write_text(text)

    def run(task: str, texts: list[str], out: str) -> dict[str, Any]:
        options = EvalOptions(
            tasks=(task,), text=tuple(tmp_path / name for name in texts), against=("cpu:int8",)
        )
        report = evaluate(subject, make_tasks(options), tmp_path / out)
        return dict(report["tasks"][0])

    with open_engine("demo", backend="cpu") as subject:
        # The demo's tokenizer puts a token before each text: as if it did not.
        subject.engine.prompt_ids = lambda text: subject.token_ids(text, special=False)  # type: ignore[method-assign,assignment,misc]
        assert len(subject.engine.prompt_ids("x")) == 1
        for task in ("parity", "perplexity"):
            found = run(task, [*names], "out")
            assert found["figures"][0]["count"] == 2
            with pytest.raises(RequestError, match="a text of 2 tokens or more, got none"):
                run(task, ["a.txt"], "none")
        lines = (tmp_path / "out" / "parity.jsonl").read_text().splitlines()[1:]
        keys = [json.loads(line)["item"] for line in lines]
        hashes = [hash_texts([Text(name, names[name])])[:16] for name in ("b.txt", "c.txt")]
    assert keys == [f"cpu:int8 {found}" for found in hashes]


def test_another_chat_template_is_another_subject(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    with open_engine(str(folder)) as subject:
        before = subject.about
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with open_engine(str(folder)) as subject:
        after = subject.about
    assert {key for key in before if before[key] != after[key]} <= {"text_sha256", "chat"}
    path = tmp_path / "t.jsonl"
    old = {key: value for key, value in before.items() if key != "text_sha256"}
    for head in (old, before):
        path.unlink(missing_ok=True)
        Journal(path, head).close()
        Journal(path, before).close()  # one from before there was such a sum goes on
    with pytest.raises(RequestError, match="text_sha256 is "):
        Journal(path, {**after, "chat": before["chat"]})


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(
            RequestError, match="t.jsonl: the disk refuses: No space left on device"
        ):
            Journal(tmp_path / "t.jsonl", HEAD)
    Journal(tmp_path / "t.jsonl", HEAD).close()
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RequestError, match="the disk refuses: No space .*; make room or mend it"):
        write_report(tmp_path, report_of("demo"))


def test_perplexity_is_what_the_engine_scores(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("import os\n\n\ndef main():\n    return os.getcwd()\n")
    options = EvalOptions(tasks=("perplexity",), text=(text,), window=512)
    with open_engine("demo") as subject:
        (task,) = evaluate(subject, make_tasks(options), tmp_path / "out")["tasks"]
        from monolane import SamplingParams

        scored = subject.engine.generate(
            text.read_text(), SamplingParams(max_tokens=1, prompt_logprobs=0)
        ).prompt_logprobs
    nats = -sum(each.logprob for each in scored)
    value = task["figures"][0]["value"]
    # Two ways through float32 sums of some 30 terms.
    assert value == pytest.approx(nats / np.log(2) / len(text.read_bytes()), rel=1e-5)


class Fake(BaseHTTPRequestHandler):
    """A server of OpenAI's API that says back what it was asked."""

    asked: list[dict[str, Any]] = []  # noqa: RUF012
    failures = 0
    reply: bytes | None = None

    def do_GET(self) -> None:
        self._say(200, {"data": [{"id": "m", "max_model_len": 100}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append(body)
        if self.path == "/tokenize":
            self._say(200, {"count": 7})
        elif type(self).failures:
            type(self).failures -= 1
            self._say(503, {"error": "busy"})
        elif type(self).reply is not None:
            self._send(200, type(self).reply)
        elif body.get("max_tokens") == 13:
            self._say(400, {"error": {"message": "no"}})
        elif "messages" in body:
            message = {"content": body["messages"][0]["content"].upper()}
            self._say(200, {"choices": [{"message": message, "finish_reason": "stop"}]})
        else:
            self._say(200, {"choices": [{"text": body["prompt"], "finish_reason": "length"}]})

    def _say(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, json.dumps(body).encode())

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def test_a_server_is_asked_as_openai_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with pytest.raises(RequestError, match="expected one of m"):
            ServerSubject(url, "other")
        subject = ServerSubject(url + "/v1")
        assert (subject.name, subject.context) == ("m", 100)
        Fake.failures = 2
        question = Question("hello", Decoding(5, 0.5, 0.9, 3), begun="So", stop=("x",))
        assert subject.ask(question, sample=4).text == "HELLO"
        assert Fake.asked[-1] == {
            "model": "m", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "seed": 7,
            "stop": ["x"],
            "messages": [
                {"role": "user", "content": "hello"}, {"role": "assistant", "content": "So"}
            ],
        }  # fmt: skip
        assert subject.count(question) == 7
        assert Fake.asked[-1]["continue_final_message"] is True
        assert subject.ask(Question("a", Decoding(5), chat=False, begun="b")).text == "ab"
        with pytest.raises(BackendError, match="HTTP 400"):
            subject.ask(Question("a", Decoding(13)))
        Fake.reply, asked = b"<!doctype html>", len(Fake.asked)
        with pytest.raises(BackendError, match="HTTP 200, expected a JSON object, got: <!doctype"):
            subject.ask(Question("a", Decoding(5)))
        assert len(Fake.asked) == asked + 3
        parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
        choices = [{"message": {"content": parts}, "finish_reason": "stop"}]
        Fake.reply = json.dumps({"choices": choices, "timings": [], "usage": "none"}).encode()
        assert subject.ask(Question("a", Decoding(5))).text == "xy"
        for choice in ({"message": {"content": {"x": 1}}}, {"message": {"content": ["x"]}}, "x"):
            Fake.reply = json.dumps({"choices": [choice]}).encode()
            with pytest.raises(BackendError, match="expected a choice with text"):
                subject.ask(Question("a", Decoding(5)))
        Fake.reply = None
        with pytest.raises(RequestError, match="--model"):
            make_tasks(EvalOptions(tasks=("perplexity",), limit=1))[0].run(
                subject, Path(), lambda *_: None
            )
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tasks": ("nonsense",)}, "--tasks: expected"),
        ({"tasks": ()}, "got none"),
        ({"tasks": ("ruler",), "limit": 0}, "--limit"),
        ({"tasks": ("mbpp+",), "samples": 2, "temperature": 0}, "--samples"),
        ({"tasks": ("parity",)}, "--against"),
        ({"tasks": ("parity",), "against": ("gpu",)}, "got 'gpu'"),
        ({"tasks": ("ruler",), "lengths": (4,)}, "--lengths"),
        ({"tasks": ("perplexity",), "window": 1}, "--window"),
        ({"tasks": ("parity",), "against": ("hf",), "window": 1}, "--window"),
        ({"tasks": ("perplexity",), "text": (Path("/nowhere"),)}, "--text /nowhere"),
    ],
)
def test_wrong_options_say_what_was_expected(options: dict[str, Any], words: str) -> None:
    with pytest.raises(MonolaneError, match=re.escape(words)):
        make_tasks(EvalOptions(**options))

"""The retrofit study: its text, its search, its runs and what the report makes of them."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ..tune.conftest import llama

__all__ = ["llama"]  # a fixture

torch = pytest.importorskip("torch", reason="needs monolane[sft]")

FOLDER = Path(__file__).parents[2] / "studies" / "retrofit"
Modules = dict[str, ModuleType]


@pytest.fixture(scope="module")
def modules() -> Iterator[Modules]:
    """The study's files, imported as its scripts import each other."""
    names = ("design", "floor", "text", "choice", "exam", "samples", "study", "report")
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: __import__(name) for name in names}
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)


def result(run: Any, kl: float, nats: float = 3.0) -> dict[str, Any]:
    values = {"nats": nats, "kl": kl, "agreement": 0.5, "accuracy": 0.4, "perplexity": 20.0}
    exam = {"all": values, "library": values}
    return {"run": vars(run) | {}, "text": "x", "tokens": 1, "curve": [], "exam": exam}


def test_the_search_is_as_stated(modules: Modules) -> None:
    study = modules["design"]
    done: list[dict[str, Any]] = []
    for number in range(100):
        run = next(study.search(done), None)
        if run is None:
            break
        done.append(result(run, kl=1.0 if run.rate == 1e-4 else 2.0 + number))
    assert len(done) == 2 * (len(study.RATES) + len(study.ORDERS))
    assert [line["run"]["rate"] for line in done[6:]] == [1e-4] * 2  # the orders: at the best rate
    long, pair = list(study.main_runs(done)), list(study.pair_runs(done))
    assert {run.rate for run in [*long, *pair]} == {1e-4}
    assert [run.variant for run in long] == list(study.VARIANTS)
    assert [(run.variant, run.seed) for run in pair[:4]] == [
        ("delay 0", 0),
        ("delay 2", 0),
        ("delay 0", 1),
        ("delay 2", 1),
    ]
    assert len(pair) == 6
    # Another shape has its own runs, at what the search of the first found.
    assert list(study.pair_runs([result(pair[0], 1.0)], done)) == pair[1:]
    assert {(run.steps, run.seed) for run in long} == {(study.MAIN_STEPS, 0)}
    assert list(study.main_runs([*done, result(long[0], 1.0)])) == long[1:]
    with pytest.raises(SystemExit, match="expected a finished search"):
        list(study.main_runs(done[:-1]))
    # Pieces are as many before the search as the search, when it is done, turns out to need.
    whole = study.forecast([], [])
    assert len(whole) == len(study.VARIANTS) + len(done) + len(pair) + len(long) + 1
    assert 115 < float(whole[-1].split()[0]) < 130  # two hours, as README.md says
    assert len(study.forecast([], done[:-1])) == len(whole) - len(done) + 1
    everything = [*done, *(result(run, 1.0) for run in [*pair, *long])]
    before = [{"variant": variant} for variant in study.VARIANTS]
    assert study.forecast(before, everything) == ["   0.0 min  in all"]


def test_the_lengths_are_as_stated(modules: Modules) -> None:
    study = modules["design"]
    searched: list[dict[str, Any]] = []
    while run := next(study.search(searched), None):
        searched.append(result(run, kl=1.0 if run.rate == 3e-4 else 2.0))
    done: list[dict[str, Any]] = []
    while run := next(study.length_runs(done, searched), None):
        # Low-rank updates are better at the second rate.
        done.append(result(run, kl=0.5 if run.rate == 3e-3 else 0.9))
    ways = [(line["run"]["steps"], line["run"]["rate"], line["run"]["lora"]) for line in done]
    assert ways == [
        (60, 3e-4, 0), (60, 1e-3, 64), (60, 3e-3, 64),
        (120, 3e-4, 0), (120, 3e-3, 64), (240, 3e-4, 0), (240, 3e-3, 64), (480, 3e-4, 0),
    ]  # fmt: skip
    assert {line["run"]["variant"] for line in done} == {"delay 2, early"}
    assert len({study.Run(**line["run"]).name for line in done}) == 8
    assert len(set(modules["samples"].FIFTY)) == 50


def test_the_floor_by_hand(modules: Modules) -> None:
    fall = modules["floor"].fall
    tokens = [60_000, 120_000, 240_000, 480_000]
    found = fall(tokens, [0.4 + 1.1 * (count / 60_000) ** -0.5 for count in tokens])
    assert found.floor == pytest.approx(0.4, abs=0.01)
    assert found.power == pytest.approx(0.5, abs=0.01)
    assert found.at(960_000) == pytest.approx(0.4 + 1.1 / 4, abs=0.003)
    # One that would fall below zero is fitted without a floor.
    straight = fall(tokens, [1.0, 0.7, 0.4, 0.1])
    assert straight.floor == 0
    assert straight.at(120_000) > straight.at(480_000) > 0
    least, most = modules["floor"].floors(tokens, [0.95, 0.675, 0.5375, 0.46875], 0.01)
    assert least < 0.4 < most
    assert modules["floor"].floors(tokens, [1.5, 0.95, 0.675, 0.5375], 0.0) == pytest.approx(
        (0.4, 0.4), abs=0.01
    )
    with pytest.raises(ValueError, match="expected three points or more, got 2"):
        fall(tokens[:2], [1.0, 0.5])


def test_lengths_are_reported(modules: Modules, tmp_path: Path) -> None:
    report, run = modules["report"], modules["design"].Run
    steps = {60: 1.5, 120: 1.2, 240: 1.0, 480: 0.9}
    lines = [
        result(run("delay 2, early", 3e-4, "at_once", count), kl) | {"tokens": 1024 * count}
        for count, kl in steps.items()
    ]
    for rate, kl in ((1e-3, 2.5), (3e-3, 2.0)):
        low = run("delay 2, early", rate, "at_once", 60, lora=64)
        lines.append(result(low, kl) | {"tokens": 61_440})
    for line in lines:
        line["answers"] = {"Why?": f"{line['run']['steps']} {line['run']['rate']}"}
    ways = report.ways(lines)
    assert list(ways) == ["delay 2, early", "delay 2, early, rank 64"]
    assert ways["delay 2, early, rank 64"] == [(61_440, 2.0)], "the better rate"
    full, low_rank = report.length_table(lines)[2:]
    cells = [cell.strip() for cell in full.split("|")]
    assert cells[2:4] == ["61,440, 122,880, 245,760, 491,520", "1.500, 1.200, 1.000, 0.900"]
    # 1.5, 1.2, 1.0: what is lost shrinks by a third each time, so 0.6 is the floor.
    foretold = 0.6 + 0.4 * 2 / 3
    assert float(cells[6]) == pytest.approx(foretold, abs=0.005)
    tokens = [1024 * count for count in steps]
    least, most = modules["floor"].floors(tokens, list(steps.values()), 0.9 - foretold)
    found = [float(word) for word in re.findall(r"[\d.]+", cells[4])]
    assert found[1:] == pytest.approx([least, most], abs=0.02)
    assert found[1] < found[0] < found[2]
    assert low_rank.endswith("| 2.000 |  |  |  |")
    before = [{"variant": "delay 0", "answers": {"Why?": "a|b"}, **exam_of(0.0)}]
    page = report.answers_page(before, lines)
    assert "| Why? | `a│b` | `480 0.0003` | `60 0.003` |" in page
    before.append({"variant": "delay 2, early", **exam_of(5.5)})
    report.draw_length(before, lines, tmp_path / "x.svg")
    assert "before training: 5.50 nats" in (tmp_path / "x.svg").read_text()


def exam_of(kl: float) -> dict[str, Any]:
    return {"exam": {"all": {"kl": kl}}}


def test_the_choice_by_hand(modules: Modules) -> None:
    choice = modules["choice"]
    rows_RC = (np.arange(4)[:, None] + np.arange(100)[None]) % 16  # each counts on from its own
    items = choice.choice_items(rows_RC, 8)
    assert items.shape == (8, 4, 48)
    assert (items[5, 0] == rows_RC[1, 48:96]).all()
    assert (items[5, 1] == [*rows_RC[1, 48:80], *rows_RC[2, 80:96]]).all()
    assert choice.right_choices(Model(1), {"library": items}) == {"library": 1.0, "all": 1.0}
    # One that expects the same token again errs in all alike but where two texts join.
    items[:, 2, -16:] = items[:, 2, 31:32]
    assert choice.right_choices(Model(0), {"library": items})["all"] == 0
    with pytest.raises(SystemExit, match="expected 9 items of 48 tokens"):
        choice.choice_items(rows_RC, 9)


def test_the_report_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import report; print(report.report.__name__)"
    subprocess.run([sys.executable, "-c", code], cwd=FOLDER, check=True)


def test_files_are_in_one_half_only(modules: Modules, tmp_path: Path) -> None:
    text = modules["text"]
    texts = [f"text {i} " * 50 for i in range(200)]
    text._split(tmp_path, "own", [*texts, texts[0]])
    halves = {
        half: [line["text"] for line in modules["design"].read_lines(tmp_path / half / "own.jsonl")]
        for half in ("train", "exam")
    }
    assert sorted(halves["train"] + halves["exam"]) == sorted(texts)  # a copy counts once
    assert 3 <= len(halves["exam"]) <= 25
    again = tmp_path / "again"
    text._split(again, "own", reversed(texts))
    assert (again / "exam" / "own.jsonl").read_text() == (
        tmp_path / "exam" / "own.jsonl"
    ).read_text()


class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Says that the next token is this one and a number more."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more

    def forward(self, input_ids: Any, use_cache: bool) -> Any:
        logits = 5.0 * torch.nn.functional.one_hot((input_ids + self.more) % 16, 16)
        return type("Output", (), {"logits": logits})


def test_the_exam_by_hand(modules: Modules, tmp_path: Path) -> None:
    exam = modules["exam"]
    windows = {"library": np.arange(8)[None], "manuals": np.arange(4)[None] * 2}
    logs = exam.source_logs(tmp_path, Model(1), windows)
    found = exam.examine(Model(1), windows, logs)
    right, total = np.log(np.exp(5) / (np.exp(5) + 15)), np.exp(5) + 15
    assert found["library"]["nats"] == pytest.approx(-right, rel=1e-5)
    assert found["manuals"]["nats"] == pytest.approx(5 - right, rel=1e-5)
    assert (found["library"]["accuracy"], found["manuals"]["accuracy"]) == (1, 0)
    assert found["library"]["kl"] == pytest.approx(0, abs=1e-6)
    assert found["all"]["accuracy"] == pytest.approx(8 / 12)
    assert found["all"]["perplexity"] == pytest.approx(np.exp(found["all"]["nats"]))
    other = exam.examine(Model(2), windows, exam.source_logs(tmp_path, Model(9), windows))
    # The source's are kept: those of Model(1), not of Model(9). Two peaks of 5 are exchanged.
    assert other["all"]["kl"] == pytest.approx(5 * (np.exp(5) - 1) / total, rel=1e-5)
    assert (other["all"]["agreement"], other["manuals"]["accuracy"]) == (0, 1)


def test_a_run_is_done_once_and_reported(
    modules: Modules, llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, report = modules["study"], modules["report"]
    for module in (study, report, modules["design"]):
        monkeypatch.setattr(module, "LANES", 4)
    monkeypatch.setattr(study, "CONTEXT", 48)
    monkeypatch.setattr(study, "_ITEMS", 8)
    monkeypatch.setattr(study, "keep_freed_memory", lambda: None)  # it is for a whole process
    variants = {"delay 0": {"delay": 0}, "delay 1, early": {"delay": 1, "early": True}}
    for module in (study, report):
        monkeypatch.setattr(module, "VARIANTS", variants)

    def prepare(work: Path, model: Path, own: int) -> None:
        lines = Path(__file__).read_text().splitlines()
        modules["text"]._split(work / "text", "library", [f"{line}\n" * 9 for line in lines])

    monkeypatch.setattr(study, "prepare", prepare)
    out = tmp_path / "results"
    common = ["--source", str(llama()), "--threads", "1", "--out", str(out)]
    work = str(tmp_path / "work")
    for _ in range(2):
        assert study.main([work, "before", *common]) == 0
        one = ["--run", "delay 1, early", "3e-3", "--steps", "3"]
        assert study.main([work, "one", *one, *common]) == 0
    before, after = (
        modules["design"].read_lines(out / "before.jsonl"),
        modules["design"].read_lines(out / "runs.jsonl"),
    )
    assert [line["variant"] for line in before] == list(variants)
    assert len(after) == 1
    assert len(after[0]["curve"]) == 3
    # Nothing but rounding, in float32, where nothing is delayed.
    assert before[0]["exam"]["all"]["kl"] == pytest.approx(0, abs=1e-5)
    assert before[1]["exam"]["all"]["kl"] > 0.01
    assert [path.name for path in (tmp_path / "work" / "runs").iterdir()] == [
        "delay-1-early-together-0.003-3-seed0"
    ]
    monkeypatch.setattr(report, "HERE", tmp_path)
    (tmp_path / "README.md").write_text(f"What\n{report._MARK}old\n")
    assert report.main(["--results", str(out)]) == 0
    page = (tmp_path / "README.md").read_text()  # 3 steps of 4 windows of 48
    assert "| delay 1, early | together | 0.003 | 576 | 0 |" in page
    assert "![loss against delay](results/delay.svg)" in page
    assert "delay, layers" in (out / "delay.svg").read_text()
    # The second shape, beside the first: other files, other models.
    monkeypatch.setattr(report, "NINE", 2)
    assert study.main([work, "before", "--lanes", "2", *common]) == 0
    two, late = modules["design"].read_lines(out / "before-2-lanes.jsonl")
    assert two["exam"]["all"]["kl"] == pytest.approx(0, abs=1e-5)
    assert late["exam"]["all"]["kl"] != before[1]["exam"]["all"]["kl"]
    assert len(modules["design"].read_lines(out / "before.jsonl")) == 2
    with pytest.raises(SystemExit):
        study.main([work, "search", "--lanes", "2", *common])
    assert report.main(["--results", str(out)]) == 0
    page = (tmp_path / "README.md").read_text()
    assert page.index("### 2 lanes, before training") > page.index("### Trained back")
    assert "| model | " + " | ".join(modules["samples"].QUESTIONS) + " |" in page
    assert "\n| delay 1, early, before | `" in page
    assert report._cell("a|b\nc`d") == "`a│b\\nc'd`"
    # Loss against tokens: again other files, fifty questions, and low-rank updates beside.
    run = modules["design"].Run
    lengths = [run("delay 1, early", 3e-3, "at_once", 3, lora=rank) for rank in (0, 2)]

    def missing(done: Any, searched: Any) -> list[Any]:
        return [one for one in lengths if one not in modules["design"].runs_of(done)]

    monkeypatch.setattr(study, "length_runs", missing)
    monkeypatch.setattr(study, "LENGTHENED", "delay 1, early")
    assert study.main([work, "length", *common]) == 0
    lines = modules["design"].read_lines(out / "runs-length.jsonl")
    assert [line["run"]["lora"] for line in lines] == [0, 2]
    assert {len(line["answers"]) for line in lines} == {50}
    assert lines[0]["exam"]["all"]["kl"] != lines[1]["exam"]["all"]["kl"]
    assert len(modules["design"].read_lines(out / "before-length.jsonl")) == 2
    assert report.main(["--results", str(out)]) == 0
    page = (tmp_path / "README.md").read_text()
    assert "| delay 1, early, rank 2 | at_once | 0.003 | 576 | 0 |" in page
    assert "![divergence against tokens](results/length.svg)" in page
    assert "| Tell me a joke. | `" in (tmp_path / "ANSWERS.md").read_text()
    monkeypatch.setattr(study, "digest", lambda work: "another")
    with pytest.raises(SystemExit, match="expected results on the text another"):
        study.main([work, "before", *common])

"""The delay study's plan, rule and page: all of it from lines alone, without torch."""

import argparse
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from bench.gpu.monokernel._ledger import Ledger, in_order  # noqa: E402
from studies.delay import block, plan, prepare, report, sources, stop  # noqa: E402
from studies.delay.plan import DIVERGED, DONE, FAILED, PARTS, Run, Study  # noqa: E402
from studies.delay.sizes import RATES, SEARCHED, SEEDS, SIZES, VARIANTS  # noqa: E402

FOLDER = ROOT / "studies" / "delay"


def a_run(variant: str = "delay 2", **wish: Any) -> Run:
    fields = {"rate": 4e-3, "seed": 1, "tokens": SIZES["tiny"].tokens} | wish
    return Run("delay:b1", "tiny", variant, **fields)


# ---- the plan ------------------------------------------------------------------------------------
def a_line(run: Run, nats: float = 4.0, state: str = DONE, **more: Any) -> dict[str, Any]:
    speed = 500_000 if VARIANTS[run.variant].lanes > 1 else 1_500_000
    return {
        "kind": "run", **run.key(), "part": run.part, "state": state, "exam_nats": nats,
        "tokens_per_s": speed, "card": "H100", "text": "t", "seconds": 1.0, "memory_gb": 1.0,
        "mfu": 0.2, "commit": "abc",
    } | more  # fmt: skip


def a_campaign(*differences: float, parts: tuple[str, ...] = ()) -> Study:
    """The search, then a block for each difference."""
    study = Study((), card="H100")
    lines = [a_line(run, abs(run.rate - 4e-3)) for run in study.missing(["delay:b0"])]
    names = ["delay:b1", "delay:b2", "delay:b3", "delay:more-4", "delay:more-5", "delay:more-6"]
    for name, difference in zip(names, differences, strict=False):
        for run in study_of(lines).missing([name]):
            lines.append(a_line(run, 3.0 + difference * (run.variant == "delay 2")))
    return study_of(lines)


def study_of(lines: list[dict[str, Any]]) -> Study:
    return Study(tuple(lines), card="H100")


def test_the_search_comes_first_and_settles_the_rates() -> None:
    study = Study((), card="H100")
    search = study.missing(PARTS)
    assert {run.part for run in search} == {"delay:b0"}
    assert {(run.variant, run.rate) for run in search} == {(v, r) for v in SEARCHED for r in RATES}
    assert {run.seed for run in search} == {0}
    lines = [a_line(run, abs(run.rate - 4e-3)) for run in search]
    assert study_of(lines[:-1]).best_rate("dense") == 4e-3
    assert study_of(lines[:-1]).best_rate("delay 2") is None, "one rate is missing"
    lines[-1] |= {"state": DIVERGED, "exam_nats": None}
    assert study_of(lines).best_rate("delay 2") == 4e-3
    # One that was given up is tried again, one that diverged is not.
    assert study_of(lines).missing(["delay:b0"]) == []
    lines[-1] |= {"state": FAILED, "why": "given up: 9 s to go"}
    assert study_of(lines).missing(["delay:b0"]) == search[-1:]
    blocks = study_of([*lines[:-1], a_line(search[-1], 9.0)]).missing(["delay:b1", "delay:b2"])
    assert [(run.variant, run.seed) for run in blocks] == [
        (variant, seed) for seed in (1, 2) for variant in SEARCHED
    ]


def test_no_seed_of_a_block_is_the_search_s() -> None:
    study = a_campaign(0.01, 0.02, 0.03)
    for name in PARTS:
        for run in study.of_part(name) or ():
            in_search = name.startswith(("delay:b0", "delay:b4"))
            assert (run.seed == 0) == in_search, name
    assert 0 not in SEEDS


def test_the_first_block_settles_the_tokens_of_all() -> None:
    study = a_campaign()
    # 0.5 M tokens/s, in 300 s less 75 for the command and 20 for the run: 102 M.
    assert study.tokens(SIZES["17M"]) == 100_000_000
    slow = [x | {"tokens_per_s": x["tokens_per_s"] // 2} for x in study.lines]
    assert study_of(slow).tokens(SIZES["17M"]) == 50_000_000
    fast = [x | {"tokens_per_s": x["tokens_per_s"] * 2} for x in study.lines]
    assert study_of(fast).tokens(SIZES["17M"]) == 150_000_000, "never more than stated"
    told = {"kind": "bring-up", "card": "H100", "compile_s": 80.0}
    assert study_of([*study.lines, told]).tokens(SIZES["17M"]) == 70_000_000, "145 s are left"
    begun = a_campaign(0.0)
    assert Study(begun.lines, card="H200").tokens(SIZES["17M"]) == 100_000_000
    (share,) = {run.tokens for run in begun.of_part("delay:b5") or () if "80" in run.variant}
    assert share == 80_000_000
    for name in ("delay:b1", "delay:b5", "delay:b7"):  # each fits in a command
        assert all(begun.need(run) + begun.start <= 600 for run in begun.of_part(name) or ())


def test_a_measured_rate_takes_the_place_of_an_estimate() -> None:
    size = SIZES["17M"]
    assert Study((), card="H100").speed(size, "delay 2") == 5e5
    study = study_of([a_line(a_run(), tokens_per_s=7, size="17M")])
    assert study.speed(size, "delay 4") == 7
    assert study.speed(size, "dense") == 1.5e6
    assert Study(study.lines, card="H200").speed(size, "delay 2") == 5e5, "another card"


@pytest.mark.parametrize(
    ("differences", "goes_on"),
    [
        ((0.001, 0.001), None),
        ((0.001, 0.001, 0.001), False),  # within
        ((0.05, 0.05, 0.05), False),  # above
        ((0.01, 0.03, 0.02), True),
        ((0.01, 0.03, 0.02, 0.0), True),
        ((0.01, 0.03, 0.02, 0.0, 0.04, 0.0), False),  # the last look
    ],
)
def test_further_blocks_come_while_the_rule_says_so(
    differences: tuple[float, ...], goes_on: bool | None
) -> None:
    study = a_campaign(*differences)
    assert len(study.differences("delay 2", "dense")) == len(differences)
    missing = study.missing([f"delay:more-{seed}" for seed in (4, 5, 6)])
    assert bool(missing) == bool(goes_on)
    if goes_on:
        assert {run.seed for run in missing} == {len(differences) + 1}, "one block, then a look"
    assert study.look().stop == (goes_on is False)


def test_runs_on_two_texts_do_not_make_a_block() -> None:
    study = a_campaign(0.01)
    lines = [x | {"text": "u"} if x["variant"] == "dense" else x for x in study.lines]
    assert study_of(lines).differences("delay 2", "dense") == {}


def test_the_ledger_and_the_study_have_the_same_parts_in_the_same_order() -> None:
    ordered = [x["part"] for x in in_order(Ledger.read().parts) if x["part"].startswith("delay:")]
    assert ordered == list(PARTS)
    assert all(x["built"] for x in Ledger.read().parts if x["part"] in PARTS)


def test_the_ledger_says_what_a_card_has_done() -> None:
    study = a_campaign(0.0)
    partly = study_of([x for x in study.lines if x["variant"] != "delay 2" or x["seed"] == 0])
    touched = {"delay:b0": 100.0, "delay:b1": 200.0}
    made = block.folded(Ledger.read(), partly, touched, "abc")
    assert made.state("delay:b0", "H100") == "done"
    assert made.state("delay:b1", "H100") == "pending", "whole parts alone"
    assert made.state("delay:b0", "H200") == "pending"
    made = block.folded(Ledger.read(), study, touched, "abc")
    assert made.state("delay:b1", "H100") == "done"
    entry = next(x for x in made.parts if x["part"] == "delay:b1")["cards"]["H100"]
    assert (entry["took_s"], entry["results"]) == (200.0, "../../studies/delay/results/runs.jsonl")
    run = (study.of_part("delay:b1") or [])[2]
    failed = study_of([*partly.lines, a_line(run, state=FAILED, why="OutOfMemoryError: x")])
    assert block.folded(Ledger.read(), failed, touched, "c").state("delay:b1", "H100") == "failed"


def test_files_are_merged_and_of_a_run_done_twice_the_first_counts(tmp_path: Path) -> None:
    run = a_run()
    first, second = a_line(run, 1.0), a_line(run, 2.0)
    given_up = a_line(run, 0.0, state=FAILED)
    assert plan.merged([given_up], [first, first], [second, given_up]) == [given_up, first]
    path = tmp_path / "deep" / "runs.jsonl"
    plan.write_lines(path, [first])
    assert plan.read_lines(path) == [first]
    assert plan.read_lines(tmp_path / "none") == []


def test_what_came_back_is_brought_into_results_and_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    came, results, ledger = (tmp_path / x for x in ("runs.jsonl", "results.jsonl", "ledger.json"))
    study = a_campaign(0.0)
    plan.write_lines(came, study.lines)
    plan.write_lines(results, study.lines[:12])  # an earlier window's search
    Ledger.read().write(ledger)
    place = ["--results", str(results), "--ledger", str(ledger)]
    for new in (3, 0):  # to do it twice changes nothing
        assert block.main(["--fold", str(came), *place]) == 0
        assert capsys.readouterr().out == f"{new} new lines, 15 in all\n"
        assert plan.read_lines(results) == list(study.lines)
        states = [Ledger.read(ledger).state(f"delay:b{i}", "H100") for i in (0, 1, 2)]
        assert states == ["pending", "done", "pending"], "of what is new"
    assert block.main(["--list", *place]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == list(PARTS)
    assert said[1].endswith(": 3 of 3 runs, 0 s to go")


def test_usage_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        block.main(["--carried", str(tmp_path)])
    assert "--carried: expected what prepare.py made, found none in " in capsys.readouterr().err
    (tmp_path / "manifest.json").touch()
    with pytest.raises(SystemExit, match="2"):
        block.main(["--carried", str(tmp_path), "--seconds", "700"])
    assert "--seconds: expected more than 0, at most 600, got 700" in capsys.readouterr().err


def test_commands_beside_one_another_share_the_runs(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def a_command() -> block.Block:
        options = argparse.Namespace(
            work=tmp_path, out=tmp_path / "out", rehearse=False, cpu=True, only="", seconds=100.0
        )
        command = block.Block(options, card="CPU")
        request.addfinalizer(lambda: [file.close() for file in command.claims])
        return command

    one, other = a_command(), a_command()
    first, second = one.next_run(), other.next_run()
    assert first is not None
    assert second is not None
    assert first != second, "what one has taken, the other leaves"
    for command, run, nats in ((one, first, 4.0), (other, second, 5.0)):
        command.lines = plan.merged(command.lines, [on_a_processor(run, nats)])
        command.write()
    assert len(plan.read_lines(tmp_path / "runs.jsonl")) == 2, "neither writes over the other"
    for file in one.claims:  # as a process that ends
        file.close()
    assert a_command().next_run() not in (first, second), "what is done is not done again"
    (tmp_path / "runs.jsonl").unlink()
    again = a_command()
    assert again.next_run() == first, "what was given up is free again"

    for file in again.claims:
        file.close()
    late = a_command()
    claim = late.claim

    def ended_meanwhile(run: Run) -> bool:
        """Claim a run; the first is ended by another command just before."""
        if run == first:
            plan.write_lines(tmp_path / "runs.jsonl", [on_a_processor(run, 4.0)])
        return claim(run)

    monkeypatch.setattr(late, "claim", ended_meanwhile)
    assert late.next_run() not in (None, first), "what ended before it was claimed is done"


# ---- the rule ------------------------------------------------------------------------------------
def test_the_interval_is_students() -> None:
    found = stop.interval([0.01, 0.03], 95)
    # The deviation is 0.01414, by the root of two 0.01; one degree of freedom.
    assert (found.mean, found.margin) == pytest.approx((0.02, 12.706 * 0.01))
    assert stop.interval([0.01, 0.02, 0.03], 99).margin == pytest.approx(9.925 * 0.01 / 3**0.5)
    assert stop.interval([0.1], 99).margin == float("inf")
    with pytest.raises(ValueError, match="expected 1 to 6 differences, got 7"):
        stop.interval([0.0] * 7, 95)


def test_looks_before_the_last_are_at_99_percent() -> None:
    # Within the bounds at 95 %, not at 99 %.
    differences = [0.002, 0.008, 0.004]
    assert stop.look(differences).text.startswith("go on: ")
    assert "(99 %)" in stop.look(differences).text
    assert "(95 %) lies within" in stop.look(differences, last=True).text
    six = [*differences, 0.03, -0.02, 0.01]
    assert stop.look(six).text.startswith("stop: not settled by 6 blocks: ")
    assert stop.look([0.021, 0.0211, 0.0212]).text.endswith("lies wholly above +0.02")
    # Wholly below the bounds is no reason to stop before the last look.
    assert not stop.look([-0.05, -0.05, -0.0501]).stop
    assert not stop.look([]).stop
    assert not stop.look([0.0, 0.0]).stop


# ---- the page ------------------------------------------------------------------------------------
def test_the_report_says_what_the_lines_say() -> None:
    study = a_campaign(0.01, 0.03, 0.02)
    made = report.report(study)
    assert "**The rule**: go on: +0.0200 ± 0.0573 (99 %) is neither" in made
    assert "| 2 | 3.0000 | 3.0000 | 3.0300 | +0.0300 | +0.0000 | -0.0300 |" in made
    assert "| dense | 0.0030 | 0.0020 | 0.0000 | 0.0040 | 0.004 |" in made
    assert "| H100 | 17M | delay 2 | 7 | 500,000 | 1.00 | 1.0 | 20.0% |" in made
    last = replace(study, lines=(*study.lines, {"kind": "last look"}))
    assert "(95 %)" in report.report(last)
    assert "(99 %)" not in report.report(last)
    assert report.report(Study(())) == report.NOTHING + "\n"


def on_a_processor(run: Run, nats: float) -> dict[str, Any]:
    speed = 1500 if run.variant == "delay 2" else 4000
    return a_line(run, nats, card="CPU", tokens_per_s=speed, memory_gb=None, mfu=None)


def test_a_study_on_processors_is_one_beside_that_of_gpus() -> None:
    study = Study((), "cpu", "CPU")
    lines = [on_a_processor(run, run.rate) for run in study.missing(plan.CPU_PARTS)]
    assert len(lines) == 12
    assert {line["rate"] for line in lines} == {4e-3, 8e-3, 16e-3, 32e-3}, (
        "a size has its own rates"
    )
    study = Study(tuple(lines), "cpu", "CPU")
    blocks = study.missing(plan.CPU_PARTS)
    assert [(run.variant, run.seed) for run in blocks] == [
        (variant, seed) for seed in (1, 2, 3) for variant in SEARCHED
    ] + [("dense, 8 layers", seed) for seed in (1, 2, 3)]
    # Never shortened: a run goes on in the next command.
    assert {(run.size, run.tokens, run.rate) for run in blocks} == {("1M", 8_000_000, 4e-3)}
    lines += [on_a_processor(run, 4.0 + run.seed / 100 * (run.seed % 2)) for run in blocks]
    here, there = Study(tuple(lines), "cpu", "CPU"), Study(tuple(lines), card="H100")
    assert not here.missing(plan.CPU_PARTS)
    assert there.missing(PARTS) == Study((), card="H100").missing(PARTS)
    made = report.report(there)
    assert made.startswith(report.NOTHING)
    assert "## On processors" in made
    assert "(95 %)" in made
    assert "(99 %)" not in made
    assert "| CPU | 1M | delay 2 | 7 | 1,500 | 0.75 |  |  |" in made
    assert "| dense, 8 layers | 3 | +0.0000, +0.0000, +0.0000 |" in made
    early = [line for line in lines if line["seed"] < 3]
    early += [{"kind": "text", "text": "t", "card": "CPU", "tokens": 1, "exam_tokens": 1,
               "exam_share": 1.0, "commit": commit} for commit in ("a", "b")]  # fmt: skip
    made = report.report(Study(tuple(early), card="H100"))
    assert "| 2 | 4.0000 |" in made
    assert "%)" not in made, "there is one look, after the last block"
    assert made.count("| t | CPU |") == 1, "a text that two commands read"


def test_the_page_is_that_of_the_results() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    lines = tuple(plan.read_lines(block.RESULTS))
    made = report.report(Study(lines))
    assert readme.endswith(made), "python studies/delay/report.py brings the page up to date"
    assert prepare.table() in readme, "the table of what is carried is that of prepare.py"


# ---- what is carried -----------------------------------------------------------------------------
def test_a_wheel_is_read_without_what_no_one_wrote(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/b.py", "b = 1\n")
        archive.writestr("a/a.py", "a = 1\n")
        archive.writestr("a/copy.py", "a = 1\n")
        archive.writestr("a/made.py", '"""Generated from x by y."""\n')
        archive.writestr("a/table.py", "x" * (sources.MOST_BYTES + 1))
        archive.writestr("a/data.bin", "x")
        archive.writestr("a/vendor/b-1.dist-info/METADATA", "Name: b\nVersion: 1\n\n")
        archive.writestr(
            "a-1.0.dist-info/METADATA", "Name: a\nVersion: 1.0\nLicense-Expression: MIT\n\nText\n"
        )
    seen: set[str] = set()
    found = [x for x in prepare.wheel_texts(wheel) if sources.fresh(x, seen)]
    assert found == ["a = 1\n", "b = 1\n"]
    assert prepare.wheel_metadata(wheel) == {"version": "1.0", "metadata_licence": "MIT"}

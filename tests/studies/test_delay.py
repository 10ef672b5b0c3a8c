"""The delay study: one lane stands for eight, runs are whole, and the rule says what was stated."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs monolane[train]")
pytest.importorskip("tomli_w", reason="needs monolane[train]")

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from bench.gpu.monokernel._ledger import Ledger, in_order  # noqa: E402
from studies.delay import block, plan, prepare, report, sources, stop  # noqa: E402
from studies.delay import text as texts  # noqa: E402
from studies.delay.model import Mixed, cut, logits_of, make_model, summed_nats  # noqa: E402
from studies.delay.plan import DIVERGED, DONE, FAILED, PARTS, Run, Study  # noqa: E402
from studies.delay.sizes import RATES, SEARCHED, SEEDS, SIZES, VARIANTS  # noqa: E402
from studies.delay.training import train  # noqa: E402

FOLDER = ROOT / "studies" / "delay"
TINY = SIZES["tiny"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tensors so small are only slowed down by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- the models ----------------------------------------------------------------------------------
def loss_and_gradients(name: str) -> tuple[float, dict[str, Any]]:
    """Of two rows, in float64."""
    model = make_model(TINY, VARIANTS[name], 3, torch.float64)
    ids = torch.randint(TINY.vocab, (2, 33), generator=torch.Generator().manual_seed(0))
    # Not summed_nats, whose float32 would hide what is proven.
    logits = logits_of(model, ids[:, :-1]).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
    loss.backward()
    return loss.item(), {name: x.grad for name, x in model.named_parameters()}


@pytest.mark.parametrize(("one", "eight"), [("dense", "now"), ("naive 2", "naive 2, eight lanes")])
def test_where_all_streams_are_equal_one_lane_is_all_of_them(one: str, eight: str) -> None:
    assert (VARIANTS[one].lanes, VARIANTS[eight].lanes) == (1, 8)
    expected, wanted = loss_and_gradients(one)
    found, got = loss_and_gradients(eight)
    assert found == pytest.approx(expected, abs=1e-12)
    assert wanted.keys() == got.keys()
    unheard = 0
    for name, gradient in wanted.items():
        if gradient is None:  # of layers that nobody hears
            assert got[name] is None
            unheard += 1
            continue
        # Sums of a few hundred float64 in another order.
        torch.testing.assert_close(got[name], cut(name, gradient, 8), rtol=0, atol=1e-12)
        assert gradient.abs().max() > 1e-6
    # Two norms and seven matrices a layer.
    assert unheard == 9 * VARIANTS[one].unheard


def test_a_delay_is_another_function() -> None:
    dense, delay = loss_and_gradients("dense")[0], loss_and_gradients("delay 2")[0]
    assert abs(dense - delay) > 1e-4


def test_all_variants_begin_with_the_same_matrices() -> None:
    dense = dict(make_model(TINY, VARIANTS["dense"], 5).named_parameters())
    for name in ("naive 2", "delay 2", "delay 4", "delay 2, unscaled"):
        model = make_model(TINY, VARIANTS[name], 5)
        lanes = VARIANTS[name].lanes
        for key, parameter in model.named_parameters():
            assert torch.equal(parameter, cut(key, dense[key], lanes)), (name, key)
    other = dict(make_model(TINY, VARIANTS["dense"], 6).named_parameters())
    assert not torch.equal(other["lm_head.weight"], dense["lm_head.weight"])


def test_the_sizes_are_those_that_are_stated() -> None:
    def count(size: str, variant: str) -> tuple[int, int]:
        fields = VARIANTS[variant].config_fields(SIZES[size])
        width, inner, layers = (
            fields[x] for x in ("hidden_size", "intermediate_size", "num_hidden_layers")
        )
        matrices = layers * (4 * width * width + 3 * width * inner)
        return matrices, matrices + 2 * fields["vocab_size"] * width

    assert count("17M", "delay 2") == count("17M", "dense") == (12_779_520, 16_973_824)
    assert count("33M", "delay 2") == (26_542_080, 32_833_536)


def test_gradients_of_passes_add_up_in_float32() -> None:
    mixed = Mixed(make_model(TINY, VARIANTS["naive 2"], 0))
    assert {x.dtype for x in mixed.model.parameters()} == {torch.bfloat16}
    assert {x.dtype for x in mixed.masters.parameters()} == {torch.float32}
    ids = torch.arange(66).reshape(2, 33)
    parts = []
    for row in ids.split(1):
        summed_nats(logits_of(mixed.model, row[:, :-1]), row[:, 1:]).backward()
        parts.append({n: x.grad.float() for n, x in mixed.model.named_parameters()
                      if x.grad is not None})  # fmt: skip
        mixed.collect()
        assert all(x.grad is None for x in mixed.model.parameters())
    masters = dict(mixed.masters.named_parameters())
    assert {n for n, x in masters.items() if x.grad is not None} == set(parts[0])
    for name, gradient in parts[0].items():
        assert torch.equal(masters[name].grad, gradient + parts[1][name])
    with torch.no_grad():
        for x in masters.values():
            x += 0.25
    mixed.publish()
    for name, x in mixed.model.named_parameters():
        assert torch.equal(x, masters[name].bfloat16())


# ---- the text ------------------------------------------------------------------------------------
def a_text(count: int = 6000, vocab: int = TINY.vocab) -> texts.Text:
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(vocab, size=count).astype(np.int16))
    exam = torch.from_numpy(rng.integers(vocab, size=(4, TINY.context + 1)))
    counts = torch.ones(4, TINY.context, dtype=torch.bool)
    return texts.Text(ids, texts.Exam(exam, counts, 3.0), "d" * 16, ())


def test_the_order_is_a_function_of_seed_and_step() -> None:
    text = a_text(64 * 12 + 1)  # 11 rows of 64, and one for the beginning
    starts = text.order(1, 10, 4, 64)
    assert starts.shape == (10, 4)
    assert torch.equal(starts[:5], text.order(1, 5, 4, 64)), "a shorter run reads the same"
    assert not torch.equal(starts, text.order(2, 10, 4, 64))
    for passage in starts.flatten().split(11)[:3]:
        assert len(set((passage // 64).tolist())) == 11, "each row once"
    assert int(starts.max()) + 64 < len(text.ids)
    rows = text.rows(starts[0], 64)
    assert torch.equal(rows[1], text.ids[starts[0, 1] : starts[0, 1] + 65].long())


def test_what_occurs_in_the_training_text_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_CHUNK", 64)  # pieces across the chunks' edges
    rng = np.random.default_rng(1)
    train, exam = rng.integers(30, size=1000), rng.integers(30, size=300)
    exam[50:80] = train[55:85]  # across an edge
    exam[200:213] = train[400:413]
    exam[100:130] = exam[50:80]  # a piece that the exam has twice
    pieces = {tuple(train[i : i + 13]) for i in range(len(train) - 12)}
    expected = [i < 12 or tuple(exam[i - 12 : i + 1]) in pieces for i in range(len(exam))]
    found = texts.occurs(*(torch.from_numpy(x.astype(np.int16)) for x in (exam, train)))
    assert found.tolist() == expected
    assert sum(expected) == 12 + 18 + 18 + 1


def test_shards_keep_their_ids(tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(8192, size=5000).astype(np.uint16)
    sources.write_ids(tmp_path / "a.xz", ids)
    assert np.array_equal(sources.read_ids(tmp_path / "a.xz"), ids)


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


# ---- a run ---------------------------------------------------------------------------------------
def a_run(variant: str = "delay 2", **wish: Any) -> Run:
    fields = {"rate": 4e-3, "seed": 1, "tokens": TINY.tokens} | wish
    return Run("delay:b1", "tiny", variant, **fields)


def test_a_run_learns_and_says_what_it_did() -> None:
    text = a_text(vocab=16)
    line = train(a_run(), text, CPU, lambda: 1e9, False)
    assert json.loads(json.dumps(line)) == line
    assert line["state"] == DONE
    assert line["steps"] == 24
    assert [step for step, _ in line["exam_curve"]] == [6, 12, 18, 24]
    assert line["loss_curve"][-1] < line["loss_curve"][0] - 1
    again = train(a_run(), text, CPU, lambda: 1e9, False)
    assert again["exam_nats"] == line["exam_nats"]
    other = train(a_run(seed=2), text, CPU, lambda: 1e9, False)
    assert other["exam_nats"] != line["exam_nats"]


def test_a_run_that_would_end_too_late_is_given_up() -> None:
    # 24 steps: the clock is read at the exam after 12.
    line = train(a_run(), a_text(), CPU, lambda: 0.0, False)
    assert line["state"] == FAILED
    assert line["why"].startswith("given up: ")
    assert len(line["exam_curve"]) < 4
    assert line["tokens_per_s"] > 0, "the next plan knows the rate"


def test_a_loss_that_is_not_finite_is_no_accident() -> None:
    line = train(a_run(rate=1e30), a_text(), CPU, lambda: 1e9, False)
    assert line["state"] == DIVERGED
    assert json.loads(json.dumps(line, allow_nan=False)) == line


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
    begun = a_campaign(0.0)
    assert Study(begun.lines, card="H200").tokens(SIZES["17M"]) == 100_000_000
    (share,) = {run.tokens for run in begun.of_part("delay:b5") or () if "80" in run.variant}
    assert share == 80_000_000
    for name in ("delay:b1", "delay:b5", "delay:b7"):  # each fits in a command
        assert all(begun.need(run) + plan.START <= 600 for run in begun.of_part(name) or ())


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


def test_the_page_is_that_of_the_results() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    lines = tuple(plan.read_lines(block.RESULTS))
    made = report.report(Study(lines))
    assert readme.endswith(made), "python studies/delay/report.py brings the page up to date"
    assert prepare.table() in readme, "the table of what is carried is that of prepare.py"


# ---- all of it -----------------------------------------------------------------------------------
# What the other machine has not, beside the native core that nobody builds there.
ABSENT = """
import sys
class Absent:
    names = {"gguf", "llguidance", "starlette", "uvicorn", "datatrove", "zstandard"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names or name == "monolane._core":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def script(name: str, *words: str, absent: Path | None = None) -> str:
    environment = os.environ | ({} if absent is None else {"PYTHONPATH": str(absent)})
    command = [sys.executable, str(FOLDER / name), "--rehearse", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_rehearsal_goes_the_whole_way(tmp_path: Path) -> None:
    """Prepared, trained in several commands, reported: everything that a window does."""
    absent = tmp_path / "absent"
    absent.mkdir()
    (absent / "sitecustomize.py").write_text(ABSENT)
    carried, out = tmp_path / "carried", tmp_path / "out"
    said = script("prepare.py", "--out", str(carried))
    assert "asyncio" in said
    manifest = json.loads((carried / "manifest.json").read_text())
    assert {x["use"] for x in manifest["packages"]} == {"trained on", "held out"}
    place = ["--eager", "--carried", str(carried), "--work", str(tmp_path / "work"),
             "--out", str(out), "--commit", "abc", "--seconds", "600"]  # fmt: skip
    said = script("block.py", "--only", "delay:b0", *place, absent=absent)
    assert said.splitlines()[-2] == "rule: no block is done: nothing can be said"
    assert said.splitlines()[-1] == "next: nothing: no run is missing"
    assert Ledger.read(out / "gpu-ledger.json").state("delay:b0", "CPU") == "done"
    # The rest, as the ledger orders it: the search is not repeated.
    said = script("block.py", *place, absent=absent)
    assert "delay:b0 " not in said
    lines = plan.read_lines(out / "runs.jsonl")
    study = Study(tuple(lines), True, "CPU")
    assert len({x["text"] for x in lines if "text" in x}) == 1
    assert study.missing(PARTS) == []
    done = [name for name in PARTS if study.is_done(name)]
    assert set(PARTS) - set(done) <= {"delay:more-4", "delay:more-5", "delay:more-6"}
    ledger = Ledger.read(out / "gpu-ledger.json")
    assert all(ledger.state(name, "CPU") == "done" for name in done if name != "delay:b0")
    weights = b"".join(
        x.read_bytes() for x in sorted(out.glob("model.safetensors.*"))
    )  # fmt: skip
    from safetensors.torch import load

    assert load(weights)["lm_head.weight"].shape == (TINY.vocab, TINY.hidden)
    losses = next(x for x in lines if x["kind"] == "bring-up")["losses"]
    # Products in bfloat16, whose 8 bits round each output by up to 0.4 %; a mean of some thousand
    # tokens is nearer.
    assert losses["now"] == pytest.approx(losses["dense"], rel=4e-3)
    assert losses["naive 2, eight lanes"] == pytest.approx(losses["naive 2"], rel=4e-3)
    made = script("report.py", "--results", str(out / "runs.jsonl"))
    assert made.startswith("**The rule**: ")
    for heading in ("### Blocks", "### Beside the blocks", "### The search", "### Speed"):
        assert heading in made


@pytest.mark.slow
def test_what_does_not_fit_is_not_begun(tmp_path: Path) -> None:
    carried = tmp_path / "carried"
    script("prepare.py", "--out", str(carried))
    said = script("block.py", "--eager", "--carried", str(carried), "--work", str(tmp_path / "w"),
                  "--out", str(tmp_path / "o"), "--seconds", "19", "--then", "300")  # fmt: skip
    assert not [x for x in plan.read_lines(tmp_path / "o" / "runs.jsonl") if x["kind"] == "run"]
    assert said.splitlines()[-1].startswith(
        "next: python studies/delay/block.py --rehearse --seconds 300 --then 300 --eager "
        f"--carried {carried} "
    )

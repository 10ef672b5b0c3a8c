"""The delay study: one lane stands for eight, runs are whole, and the rule says what was stated."""

import json
import os
import subprocess
import sys
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

from bench.gpu.monokernel._ledger import Ledger  # noqa: E402
from monolane.train._config import Optimizer  # noqa: E402
from monolane.train._optimiser import Optimiser  # noqa: E402
from studies.delay import plan, sources, training  # noqa: E402
from studies.delay import text as texts  # noqa: E402
from studies.delay.checkpoint import Checkpoint  # noqa: E402
from studies.delay.model import Mixed, cut, logits_of, make_model, summed_nats  # noqa: E402
from studies.delay.plan import DIVERGED, DONE, FAILED, PARTS, Run, Study  # noqa: E402
from studies.delay.sizes import SIZES, VARIANTS  # noqa: E402
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
    assert count("1M", "delay 2") == (798_720, 1_847_296)


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


# ---- a run ---------------------------------------------------------------------------------------
def a_run(variant: str = "delay 2", **wish: Any) -> Run:
    fields = {"rate": 4e-3, "seed": 1, "tokens": TINY.tokens} | wish
    return Run("delay:b1", "tiny", variant, **fields)


def test_a_size_says_in_which_precision_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = train(a_run(), a_text(), CPU, lambda: 1e9, False)
    monkeypatch.setitem(SIZES, "tiny", replace(TINY, dtype="float32"))
    exact = train(a_run(), a_text(), CPU, lambda: 1e9, False)
    assert rounded["exam_nats"] != exact["exam_nats"]
    assert rounded["exam_nats"] == pytest.approx(exact["exam_nats"], abs=0.05)
    model = make_model(TINY, VARIANTS["dense"], 1)
    found = {x.dtype for x in Mixed(model, "float32").model.parameters()}
    assert found == {torch.float32}


@pytest.mark.parametrize("variant", ["dense", "naive 2", "delay 2"])
def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setattr(training, "_CHECK", 2)  # steps; the first exam is after six
    run, text = a_run(variant), a_text()
    whole = train(run, text, CPU, lambda: 1e9, False)
    checkpoint = Checkpoint.of(tmp_path, run, "sources", text.digest)
    commands, states = 0, []
    line = None
    while line is None:
        reads = iter([1.0] * 5 + [-1.0] * 9)  # each command has time for six steps
        line = train(run, text, CPU, lambda: next(reads), False, checkpoint=checkpoint)
        commands += 1
        states.append(line is None and checkpoint.path.is_file())
    assert commands == 4
    assert states == [True, True, True, False]
    assert whole is not None
    timings = ("tokens_per_s", "seconds", "exam_s", "first_step_s")
    for name in set(whole) - set(timings):
        assert line[name] == whole[name], name
    assert line["seconds"] > 0
    # Another seed, other sources and another text do not begin there.
    checkpoint.path.rename(tmp_path / "kept")
    for other in (
        Checkpoint.of(tmp_path, run, "others", text.digest),
        Checkpoint.of(tmp_path, run, "sources", "other"),
        Checkpoint.of(tmp_path, a_run(variant, seed=2), "sources", text.digest),
    ):
        (tmp_path / "kept").replace(other.path)
        mixed = Mixed(make_model(TINY, VARIANTS[variant], 1))
        optimiser = Optimiser(mixed.masters, Optimizer())
        assert other.read(mixed, optimiser, torch.zeros(24)) is None
        other.path.rename(tmp_path / "kept")


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


# ---- all of it -----------------------------------------------------------------------------------
# What the other machine has not, beside the native core that nobody builds there.
ABSENT = """
import importlib.util, sys

def absent(name):
    names = {"gguf", "llguidance", "starlette", "uvicorn", "datatrove", "zstandard"}
    return name.partition(".")[0] in names or name == "monolane._core"

class Absent:
    def find_spec(self, name, path=None, target=None):
        if absent(name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if absent(name) else find(name, package)
sys.meta_path.insert(0, Absent())
"""


def script(name: str, *words: str, absent: Path | None = None) -> str:
    environment = os.environ | ({} if absent is None else {"PYTHONPATH": str(absent)})
    command = [sys.executable, str(FOLDER / name), "--rehearse", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What prepare.py makes of Python's own library."""
    folder = tmp_path_factory.mktemp("carried")
    assert "asyncio" in script("prepare.py", "--out", str(folder))
    return folder


@pytest.mark.slow
def test_the_rehearsal_goes_the_whole_way(tmp_path: Path, carried: Path) -> None:
    """Prepared, trained in two commands, reported: everything that a window does."""
    absent = tmp_path / "absent"
    absent.mkdir()
    (absent / "sitecustomize.py").write_text(ABSENT)
    out = tmp_path / "out"
    manifest = json.loads((carried / "manifest.json").read_text())
    assert {x["use"] for x in manifest["packages"]} == {"trained on", "held out"}
    place = ["--eager", "--carried", str(carried), "--work", str(tmp_path / "work"),
             "--out", str(out), "--commit", "abc", "--seconds", "600"]  # fmt: skip
    said = script("block.py", "--only", "delay:b0", *place, absent=absent)
    assert said.splitlines()[-2] == "rule: no block is done: nothing can be said"
    assert said.splitlines()[-1] == "next: nothing: no run is missing"
    assert Ledger.read(out / "gpu-ledger.json").state("delay:b0", "CPU") == "done"
    # Another command: the search is not repeated.
    parts = ("delay:b1", "delay:b2", "delay:b3", "delay:b5", "delay:b7")
    said = script("block.py", *place, "--only", ",".join(parts), absent=absent)
    assert "delay:b0 " not in said
    lines = plan.read_lines(out / "runs.jsonl")
    study = Study(tuple(lines), "rehearsal", "CPU")
    assert len({x["text"] for x in lines if "text" in x}) == 1
    assert [name for name in PARTS if study.is_done(name)] == ["delay:b0", *parts]
    ledger = Ledger.read(out / "gpu-ledger.json")
    assert all(ledger.state(name, "CPU") == "done" for name in parts)
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
def test_what_does_not_fit_is_not_begun(tmp_path: Path, carried: Path) -> None:
    said = script("block.py", "--eager", "--carried", str(carried), "--work", str(tmp_path / "w"),
                  "--out", str(tmp_path / "o"), "--seconds", "19", "--then", "300")  # fmt: skip
    assert not [x for x in plan.read_lines(tmp_path / "o" / "runs.jsonl") if x["kind"] == "run"]
    assert said.splitlines()[-1].startswith(
        "next: python studies/delay/block.py --rehearse --seconds 300 --then 300 --eager "
        f"--carried {carried} "
    )

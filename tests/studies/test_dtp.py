"""The DTP study: its variants are what they claim, runs are kept, and the report says both."""

import json
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "studies" / "dtp"


@pytest.fixture(scope="module")
def dtp() -> Iterator[dict[str, ModuleType]]:
    """The study's files, imported as its scripts import each other."""
    names = ("variants", "rules", "text", "study", "report")
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: __import__(name) for name in names}
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)


FILES = sorted((FOLDER.parents[1] / "src" / "monolane" / "model").glob("*.py"))


@pytest.fixture(scope="module")
def text(dtp: dict[str, ModuleType]) -> Any:
    dtp["text"]._HELD_OUT = 0.4  # few files: some of them shall be held out
    return dtp["text"].read_text(FILES * 2)


def model(dtp: dict[str, ModuleType], variant: str, size: str = "tiny") -> Any:
    study = dtp["study"]
    return study.make_model(dtp["variants"].SIZES[size], study.Run(variant, 1e-3, 0))


def with_weights_of(dense: Any, now: Any, lanes: int) -> Any:
    """Give the lanes of ``now`` their shares of the weights of ``dense``."""
    with torch.no_grad():
        for (name, into), (other, parameter) in zip(
            now.named_parameters(), dense.named_parameters(), strict=True
        ):
            assert name == other
            if "norm" in name:
                continue  # ones in both
            if name.endswith(("wo.weight", "w2.weight")):  # cut along the columns
                parts = parameter[0].chunk(lanes, dim=1)
                into.copy_(torch.stack(parts))
            else:
                into.copy_(parameter.reshape(into.shape))
    return now


def test_all_variants_have_the_same_parameters_but_for_norm_scales(dtp: Any) -> None:
    def sizes(variant: str) -> dict[str, int]:
        named = model(dtp, variant).named_parameters()
        return {name: p.numel() for name, p in named if "norm" not in name}

    dense = sizes("dense")
    for variant in dtp["variants"].VARIANTS:
        assert sizes(variant) == dense


def test_now_is_the_dense_model(dtp: Any) -> None:
    dense, now = model(dtp, "dense"), model(dtp, "now")
    with_weights_of(dense, now, dtp["variants"].LANES)
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        expected, found = (m(input_ids=ids, use_cache=False).logits for m in (dense, now))
    # Eight partial sums instead of one: float32, and logits of about 0.1.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_now_and_dense_have_one_curve_with_shared_scales_and_a_replicated_head(
    dtp: Any, text: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, size = dtp["study"], dtp["variants"].SIZES["medium-tiny"]
    size = replace(size, steps=20)
    models = {variant: model(dtp, variant, "medium-tiny") for variant in ("dense", "now")}
    with_weights_of(models["dense"], models["now"], dtp["variants"].LANES)
    # In float64: sums in another order differ by 1e-16, which 20 updates do not carry far.
    models = {variant: model.double() for variant, model in models.items()}
    monkeypatch.setattr(study, "make_model", lambda size, run: models[run.variant])
    dense, now = (study.train(size, study.Run(v, 4e-3, 0), text, "cpu") for v in models)
    assert dense["parameters"] == now["parameters"]
    assert dense["held_out_nats"] < math.log(2048) - 0.05  # something was learnt
    # A loss near 8 is told in float32, whose numbers are 4.8e-7 apart there: one of them. With a
    # scale of its own for each lane the curves are 5e-5 to 2e-4 apart.
    found, expected = (np.array(line["held_out_curve"])[:, 1] for line in (now, dense))
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-7)


def test_the_exchanges_of_each_variant_by_hand(dtp: Any) -> None:
    late_LBTD, o_LBTD = torch.randn(2, 3, 1, 2, 4).unbind(0)
    rule = dtp["rules"].LaneReduce
    naive = dtp["rules"].Naive(rule("after"))
    assert torch.equal(naive(o_LBTD, late_LBTD), late_LBTD.sum(0, keepdim=True))
    assert not naive(o_LBTD, None).any()
    unscaled = dtp["rules"].Unscaled(rule("never"))
    assert torch.equal(unscaled(o_LBTD, None), o_LBTD)
    assert not torch.equal(rule("never")(o_LBTD, None), o_LBTD)
    unscaled = dtp["rules"].Unscaled(rule("after"))
    assert torch.equal(unscaled(o_LBTD, late_LBTD), rule("after")(o_LBTD, late_LBTD))


@pytest.mark.parametrize("size", ["tiny", "medium-tiny"])
def test_variants_are_different_functions(dtp: Any, size: str) -> None:
    ids = torch.arange(24).reshape(2, 12)
    found = dtp["variants"].SIZES[size]
    variants = [v for v in (*found.variants, *found.controls) if v != "dense"]
    seen = set()
    for variant in variants:
        if variant == "delay 2, own scales":
            continue  # scales are ones at first
        with torch.no_grad():
            made = model(dtp, variant, size)
            seen.add(float(made(input_ids=ids, use_cache=False).logits.sum()))
    assert len(seen) == len(variants) - ("delay 2, own scales" in variants)


def test_rows_follow_from_seed_and_step(dtp: Any, text: Any) -> None:
    first = text.batch(0, 5, 3, 16)
    assert np.array_equal(first, text.batch(0, 5, 3, 16))
    assert not np.array_equal(first, text.batch(1, 5, 3, 16))
    assert not np.array_equal(first, text.batch(0, 6, 3, 16))
    # Files come twice: as often as once, and the halves are apart.
    assert dtp["text"].read_text(FILES).digest == text.digest


def test_the_rate_warms_up_stays_and_falls_to_zero(dtp: Any) -> None:
    rates = [dtp["study"].learning_rate(step, 100, 1.0) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[4:70] == [1.0] * 66
    assert rates[99] == pytest.approx(1 / 30)
    assert all(before > after for before, after in pairwise(rates[70:]))


def test_a_study_goes_on_where_it_stopped(
    dtp: Any, text: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = dtp["study"]
    monkeypatch.setattr(study, "read_text", lambda files: text)
    done: list[str] = []

    def train(size: Any, run: Any, text: Any, device: str, state: Any) -> dict[str, Any]:
        done.append(f"{run.variant} {run.learning_rate} {run.seed}")
        nats = 5.0 + run.learning_rate if run.variant == "never" else 5.0 - run.learning_rate
        return {
            "variant": run.variant,
            "learning_rate": run.learning_rate,
            "seed": run.seed,
            "held_out_nats": nats,
            "text": text.digest[:16],
            "seconds": 1.0,
        }

    monkeypatch.setattr(study, "train", train)
    arguments = ["tiny", "--seeds", "2", "--out", str(tmp_path)]
    study.main(arguments)
    variants = len(dtp["variants"].FIRST)
    assert len(done) == len(set(done)) == variants * 3  # two rates, and a second seed
    assert {"never 0.001 1", "dense 0.002 1"} <= set(done)  # each at its own best rate
    path = tmp_path / "tiny.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-5]) + "\n")
    before = list(done)
    study.main(arguments)
    assert done[len(before) :] == before[-5:]
    study.main([*arguments, "--seeds", "4", "--first-seed", "3"])  # one of several processes
    assert {run.rpartition(" ")[2] for run in done[len(before) + 5 :]} == {"3"}
    assert len(done) == len(before) + 5 + variants
    path.write_text(path.read_text().replace(text.digest[:16], "0" * 16))
    with pytest.raises(SystemExit, match="the standard library differs"):
        study.main(arguments)


def test_a_run_learns_and_says_what_it_did(dtp: Any, text: Any) -> None:
    study, size = dtp["study"], dtp["variants"].SIZES["tiny"]
    line = study.train(size, study.Run("delay 2", 1e-3, 0), text, "cpu")
    assert json.loads(json.dumps(line)) == line | {
        "held_out_curve": [list(point) for point in line["held_out_curve"]]
    }
    assert line["held_out_nats"] == pytest.approx(math.log(2048), abs=0.1)
    bits = line["held_out_nats"] / math.log(2) / text.held_out_bytes_per_token
    assert line["held_out_bits_per_byte"] == pytest.approx(bits)
    again = study.train(size, study.Run("delay 2", 1e-3, 0), text, "cpu")
    assert again["held_out_nats"] == line["held_out_nats"]


def test_a_killed_run_goes_on_to_the_same_bits(
    dtp: Any, text: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, size = dtp["study"], dtp["variants"].SIZES["medium-tiny"]
    run, state = study.Run("naive 2", 1e-3, 0), tmp_path / "run.pt"
    whole = study.train(size, run, text, "cpu")
    batch, steps = text.batch, []

    def killed(seed: int, step: int, *shape: int) -> Any:
        steps.append(step)
        if steps == [0, 1, 2]:
            raise KeyboardInterrupt
        return batch(seed, step, *shape)

    monkeypatch.setattr(type(text), "batch", lambda self, *place: killed(*place))
    with pytest.raises(KeyboardInterrupt):
        study.train(size, run, text, "cpu", state)
    found = study.train(size, run, text, "cpu", state)
    assert steps == [0, 1, 2, 2, 3]
    assert found | {"seconds": 0} == whole | {"seconds": 0}
    assert not state.exists()


LAUNCHER = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
sys.path.insert(0, sys.argv[1])
import study
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context, initializer=study._begin, initargs=(1,))
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 3600)
    time.sleep(3600)
"""


def test_workers_end_with_a_killed_launcher(tmp_path: Path) -> None:
    script = tmp_path / "launcher.py"
    script.write_text(LAUNCHER)
    command = [sys.executable, str(script), str(FOLDER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        worker = int(launcher.stdout.readline())
        launcher.kill()
        # The worker has the pipe, too: it is at its end when both are gone.
        ended = bool(select.select([launcher.stdout], [], [], 60)[0])
        if not ended:
            os.kill(worker, signal.SIGKILL)
    assert ended


def test_medium_does_its_controls_and_the_long_runs_take_its_rates(dtp: Any) -> None:
    study, sizes = dtp["study"], dtp["variants"].SIZES
    size, long = sizes["medium"], sizes["medium-long"]
    done: list[dict[str, Any]] = []
    phases = []
    while runs := list(study.to_do(size, 5, done)):
        phases.append(len(runs))
        done += [
            a_line(run.variant, run.learning_rate, run.seed, abs(run.learning_rate - 8e-3))
            for run in runs
        ]
    assert phases == [12, 4 * 4 + 3 * 2]
    assert {line["learning_rate"] for line in done[12:]} == {8e-3}
    # Its rates are known, so no seed waits for another.
    runs = list(study.to_do(long, 2, [], searched=done))
    assert runs == [study.Run(variant, 8e-3, seed) for seed in (0, 1) for variant in long.variants]
    lines = [a_line(run.variant, run.learning_rate, run.seed, 4.0) for run in runs[:4]]
    assert list(study.to_do(long, 2, lines, searched=done)) == runs[4:]
    with pytest.raises(SystemExit, match="run medium first"):
        list(study.to_do(long, 2, []))
    # Nothing is foretold of what is done, and all of what is not.
    assert study.forecast(size, 5, done, 2)[-1].split()[0] == "0.0"
    hours = [
        float(study.forecast(s, n, [], 2)[-1].split()[0]) / 60 for s, n in ((size, 5), (long, 2))
    ]
    assert 2 < sum(hours) < 3.5  # as README.md says


def a_line(variant: str, rate: float, seed: int, nats: float) -> dict[str, Any]:
    return {
        "variant": variant,
        "learning_rate": rate,
        "seed": seed,
        "held_out_nats": nats,
        "parameters": 10,
        "seconds": 1.0,
        "held_out_curve": [[1, nats + 1], [2, nats]],
    }


def test_verdicts_compare_seed_by_seed(dtp: Any, tmp_path: Path) -> None:
    lines = [
        a_line("now", 1e-3, 0, 4.0),
        a_line("now", 2e-3, 0, 4.5),
        a_line("now", 1e-3, 1, 5.0),
        a_line("never", 1e-3, 0, 4.2),
        a_line("never", 2e-3, 0, 4.1),
        a_line("never", 2e-3, 1, 5.3),
    ]
    now, never = sorted(dtp["report"].verdicts(lines), key=lambda v: v.mean)
    assert (now.variant, now.learning_rate, now.difference) == ("now", 1e-3, 0.0)
    assert (never.variant, never.learning_rate) == ("never", 2e-3)
    assert never.differences == pytest.approx((0.1, 0.3))
    # Student's t for one degree of freedom, by the deviation 0.1414, by the root of two.
    assert never.margin == pytest.approx(12.706 * 0.1)
    table = dtp["report"].table(lines)
    assert table[-1] == "| never | 10 | 0.002 | 2 | 4.7000 | +0.2000 ± 1.2706 |"
    pytest.importorskip("matplotlib")
    tiny = dtp["variants"].SIZES["tiny"]
    files = dtp["report"].draw(tiny, lines, tmp_path)
    assert files == [f"tiny-{what}.svg" for what in ("differences", "rates", "curves")]
    first = [(tmp_path / file).read_bytes() for file in files]
    dtp["report"].draw(tiny, lines, tmp_path)
    assert [(tmp_path / file).read_bytes() for file in files] == first
    # Where rates are another size's, there is no search to be shown.
    assert dtp["report"].draw(replace(tiny, rates_of="small"), lines, tmp_path) == files[::2]


def test_the_page_is_that_of_the_results(dtp: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = dtp["report"].report(dtp["study"].RESULTS, tmp_path)
    readme = (FOLDER / "README.md").read_text()
    assert readme.endswith(made), "python studies/dtp/report.py brings the page up to date"

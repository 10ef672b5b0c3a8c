"""Diagnosis by words: faults put in on purpose, and whether the first wrong phase is the one named.

A copy of the kernels has a switch for every fault, so that one compiled kernel shows them all; what
is predicted comes from the shipped ones.
"""

from __future__ import annotations

import ctypes
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import emulation
import numpy as np
import pytest

from bench.gpu._stage import Budget, NotMeasuredError, Stage
from bench.gpu.monokernel import _events, words
from bench.gpu.monokernel._bound import DEVIATIONS, PRECISION
from bench.gpu.monokernel._difference import Prediction, compare
from bench.gpu.monokernel._kept import KeptModel, Left
from bench.gpu.monokernel._model import Model
from bench.gpu.monokernel._scale import REHEARSAL
from monolane._results import Record, check_record
from monolane.cuda import GpuInfo, _epoch
from monolane.cuda._compile import compile_kernel, compiler_version
from monolane.cuda._kernel_header import specialisation
from monolane.cuda._lay_out import lay_out
from monolane.cuda._program import Exchange, shares_of
from monolane.errors import MissingExtraError
from monolane.model import Role, parse_config
from monolane.plan import DeviceDescription, build

CASE = words.Case("bfloat16", 8)
WIDTH, DTYPE = CASE.width, CASE.dtype
LAYER, BLOCK = 2, 5  # of a fault, if it is one block's and one layer's: lane 2, its second block
QUICK_RUNS = 4  # instead of the dozen that bounds are made of


# ---- faults --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Fault:
    """``before`` becomes ``after``, in which HERE(layer) is true where the fault is switched on."""

    file: str
    before: str
    after: str
    kind: str  # what must be named,
    phase: str
    why: str  # "missing", "stamp" or "bound"
    layer: int | None = LAYER
    number: int = 0  # of the pass
    blocks: tuple[int, ...] = (BLOCK,)  # whose words are wrong


SWITCH = """#include "specialisation.h"
extern "C" { EXPORTED u32 planted; }
#define HERE(number, at) \\
  (planted == (number) && b.worker == 5 && (at) == 2 && b.state->pass_number == 0)
#define ON(number) (planted == (number) && b.worker == 5)
"""
FAULTS = {
    "a wrong value in one layer": Fault(
        "stream.cuh",
        "*x += gain[k];",
        "*x += HERE(1, layer) && module == MLP && i == 3 ? gain[k] + 1 : gain[k];",
        "STREAM", "DOWN", "bound",
    ),
    "squares of one row": Fault(
        "stream.cuh",
        "publish(square_words(b, event) + t * even(BLOCKS) + b.member, bits_of_float(sum),",
        "if (HERE(2, event) && t == 1) sum *= 2;\n      "
        "publish(square_words(b, event) + t * even(BLOCKS) + b.member, bits_of_float(sum),",
        "SQUARES", "DOWN", "bound", layer=0,
    ),
    "queries of another row": Fault(
        "qkv.cuh",
        "const f32 value = qkv_total(b, bias, t, r, row);",
        "const u32 other = HERE(3, layer) ? (r + 1) % rows : r;\n    "
        "const f32 value = qkv_total(b, bias, t, other, row);",
        "QKV", "QKV", "bound",
    ),
    "keys of another layer": Fault(
        "attend.cuh",
        "attend_tile(b, s, query, base, cached_tile(b, layer, kv_head, 0, slot, base),",
        "const bool there = planted == 4 && b.worker == 4 && layer == 2;\n    "
        "attend_tile(b, s, query, base,\n                "
        "cached_tile(b, layer - there, kv_head, 0, slot, base),",
        "PARTIAL", "ATTEND", "bound", blocks=(4,),
    ),
    "a block whose hidden values do not come": Fault(
        "monokernel.cu",
        "publish(out + t * even(INNER) + own.begin + r, bits_of_float(hidden), stamp);",
        "if (!HERE(5, layer)) "
        "publish(out + t * even(INNER) + own.begin + r, bits_of_float(hidden), stamp);",
        "HIDDEN", "GATE_UP", "missing",
    ),
    "lanes that are swapped": Fault(
        "stream.cuh",
        "Word* raw = raw_words(b, layer, module, b.lane);",
        "const bool swapped = planted == 6 && layer == 2 && module == ATTENTION;\n  "
        "Word* raw = raw_words(b, layer, module, swapped ? b.lane ^ 1 : b.lane);",
        "LANES", "OUT", "bound", blocks=tuple(range(8)),
    ),
    "an old copy of the stream": Fault(
        "monokernel.cu",
        "normalise_stream(b, 2 * layer + PROGRAM[STEP].event, norm_scale<KIND>(b, layer));",
        "const u32 old = KIND == PHASE_GATE_UP && HERE(7, layer) ? 2 : 0;\n    "
        "normalise_stream(b, 2 * layer + PROGRAM[STEP].event - old, norm_scale<KIND>(b, layer));",
        "HIDDEN", "GATE_UP", "bound",
    ),
    "queries stamped one event too early": Fault(
        "qkv.cuh",
        "const u32 stamp = b.stamp(event_after(layer, ATTENTION));\n  const u32 rows = queries.end",
        "const u32 stamp = b.stamp(event_after(layer, ATTENTION)) - HERE(8, layer);\n  "
        "const u32 rows = queries.end",
        "QKV", "QKV", "stamp",
    ),
    "an offer with another token": Fault(
        "choose.cuh",
        "publish(out + 1, best.token, b.stamp(LAST_EVENT));\n  }\n}\n\n// Reads",
        "if (ON(9) && b.state->pass_number == 1) best.token = 0;\n    "
        "publish(out + 1, best.token, b.stamp(LAST_EVENT));\n  }\n}\n\n// Reads",
        "CANDIDATES", "HEAD", "bound", layer=None, number=1,
    ),
    "a logit of another row": Fault(
        "choose.cuh",
        "post_to<AWAIT_LOGITS>(b, decider(w), logit_words(b, w) + token, bits_of_float(value),",
        "if (ON(10)) value = ROW_TOTAL(b, HEAD_TILES, t, (r + 1) % rows);\n        "
        "post_to<AWAIT_LOGITS>(b, decider(w), logit_words(b, w) + token, bits_of_float(value),",
        "LOGITS", "HEAD", "bound", layer=None,
    ),
    "a decision that nobody made": Fault(
        "choose.cuh",
        "if (b.thread == 0) post<AWAIT_DECISION>(b, decision, token, b.stamp(LAST_EVENT));",
        "if (planted == 11) token = (token + 1) % VOCAB;\n      "
        "if (b.thread == 0) post<AWAIT_DECISION>(b, decision, token, b.stamp(LAST_EVENT));",
        "DECISION", "CHOOSE", "bound", layer=None, blocks=(1,),
    ),
    "a wish to end that nobody has": Fault(
        "choose.cuh",
        "post<AWAIT_CONTROL>(b, b.p.control_words + buffer, b.asked, stamp);",
        "post<AWAIT_CONTROL>(b, b.p.control_words + buffer, b.asked + (planted == 12), stamp);",
        "CONTROL", "CHOOSE", "bound", layer=None, blocks=(0,),
    ),
    "a block that stops": Fault(
        "monokernel.cu",
        "u32 rows = own.end - own.begin, stamp = b.stamp(event_after(layer, MLP));",
        "while (HERE(13, layer)) nap();\n  "
        "u32 rows = own.end - own.begin, stamp = b.stamp(event_after(layer, MLP));",
        "HIDDEN", "GATE_UP", "missing",
    ),
    "queries that turn the other way": Fault(
        "attend.cuh",
        "finish_head(layer, tables[n], x);",
        "if (planted == 14 && b.worker == 4 && layer == 2 && b.state->pass_number == 0) {\n        "
        "for (u32 k = 0; k < PAIRS_EACH; ++k) tables[n].turn[k][1] *= -1;\n      }\n      "
        "finish_head(layer, tables[n], x);",
        "PARTIAL", "ATTEND", "bound", blocks=(4,),
    ),
}  # fmt: skip
STOPS = "a block that stops"


@pytest.fixture(scope="session")
def work(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled kernels are kept from run to run, where those of tests/cuda are, and as long."""
    if emulation.find_compiler() is None:
        pytest.skip(emulation.NO_COMPILER)
    cache = getattr(request.config, "cache", None)  # none where the provider is off
    return tmp_path_factory.mktemp("words") if cache is None else cache.mkdir("kernels").parent


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels with all faults in them."""
    folder = tmp_path_factory.mktemp("planted") / "kernels"
    shutil.copytree(emulation.KERNELS, folder)
    _replace(folder / "block.cuh", '#include "specialisation.h"\n', SWITCH)
    for fault in FAULTS.values():
        _replace(folder / fault.file, fault.before, fault.after)
    return folder


def _replace(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, f"{path.name} has changed: {before!r}"
    path.write_text(text.replace(before, after))


def stage(work: Path, emit: Any = None) -> Stage:
    return Stage(REHEARSAL, work, Budget(1000.0), emit or (lambda record: None))


def quick(monkeypatch: pytest.MonkeyPatch, runs: int = QUICK_RUNS, checks: int = 1) -> None:
    monkeypatch.setattr(words, "RUNS", runs)
    monkeypatch.setattr(words, "_CHECKS", checks)


@pytest.fixture(scope="module")
def prediction(work: Path) -> Prediction:
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        return words.predict_case(stage(work), CASE)


@dataclass
class Planted:
    """A kernel with switches."""

    model: KeptModel

    @property
    def switch(self) -> Any:
        kernels = self.model._resident.kernels._compiled[0]
        library, _ = kernels[WIDTH]
        return ctypes.c_uint32.in_dll(library._lib, "planted")

    def run(self, prediction: Prediction, number: int, behind: Sequence[int] = ()) -> Left:
        self.switch.value = number
        try:
            return self.model.run(words.advances(WIDTH, prediction.seed), behind)
        finally:
            self.switch.value = 0


@pytest.fixture(scope="module")
def faulty(work: Path, planted: Path) -> Iterator[Planted]:
    model = _open(work, planted)
    yield Planted(model)
    model.close()


def _open(work: Path, kernels: Path, **more: Any) -> KeptModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulation, "KERNELS", kernels)
        return words._open(stage(work), CASE, watchdog=1.0, hang=1000.0, **more)


def check(record: Record, fault: Fault) -> None:
    first = record["first"]
    assert (first["kind"], first["phase"]) == (fault.kind, fault.phase), record["error"]
    assert (first["layer"], first["pass"]) == (fault.layer, fault.number), record["error"]
    assert first["blocks"] == list(fault.blocks)
    assert first["lane"] == fault.blocks[0] // 2
    assert first["why"].startswith(fault.why)
    assert f"first wrong: {fault.kind} of {fault.phase}" in record["error"]
    check_record({"name": "words", **record})


@pytest.mark.parametrize("name", [name for name in FAULTS if name != STOPS])
def test_the_first_wrong_phase_is_named(faulty: Planted, prediction: Prediction, name: str) -> None:
    left = faulty.run(prediction, 1 + list(FAULTS).index(name))
    record = words.tell(faulty.model.layout, prediction, left, pinned=False)
    fault = FAULTS[name]
    check(record, fault)
    assert bool(left.trouble) == (fault.why in ("missing", "stamp"))
    if left.trouble:  # whom the watchdog heard of waits behind the word that did not come
        assert "waited in vain" in record["trouble"]
    # Whoever is named was right up to there; blocks of other lanes may go on.
    for block in fault.blocks:
        assert record["reached"][block] != "nothing"


def test_behind_other_tokens(work: Path, faulty: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of the passes that fed them are forgotten; stamps go on."""
    quick(monkeypatch, runs=2, checks=0)
    case = words.CASES[-1]
    prediction = words.predict_case(stage(work), case)
    assert prediction.first_pass == words.PASSES[WIDTH]
    number = 1 + list(FAULTS).index("keys of another layer")
    left = faulty.run(prediction, number, words.before(case, prediction.seed))
    first = words.tell(faulty.model.layout, prediction, left, pinned=False)["first"]
    assert (first["kind"], first["layer"], first["pass"]) == ("PARTIAL", LAYER, 3)
    number = 1 + list(FAULTS).index("a block whose hidden values do not come")
    left = faulty.run(prediction, number, words.before(case, prediction.seed))  # in pass 0
    record = words.tell(faulty.model.layout, prediction, left, pinned=False)
    assert record["error"].startswith("before the words that are kept: block")


def test_the_switches_are_off(faulty: Planted, prediction: Prediction) -> None:
    left = faulty.run(prediction, 0)
    record = words.tell(faulty.model.layout, prediction, left, pinned=False)
    assert record["words_wrong"] == {}
    assert "too early" in record["then"]


@pytest.mark.parametrize("pinned", [False, True])
def test_a_block_that_stops_for_ever(
    work: Path,
    planted: Path,
    prediction: Prediction,
    pinned: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The launch never ends: its words are read while it runs."""
    model = _open(work, planted, pinned=pinned)

    def monotonic() -> float:  # the host's patience ends once other blocks have given up
        return time.monotonic() + (1e6 if model._read_fault().any() else 0.0)

    clock = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    monkeypatch.setattr(_epoch, "time", clock)
    try:
        left = Planted(model).run(prediction, 1 + list(FAULTS).index(STOPS))
    finally:  # the switch is off: the block goes on, and the launch ends
        model.device.close()
    record = words.tell(model.layout, prediction, left, pinned)
    check(record, FAULTS[STOPS])
    assert model.lost
    assert "expected a token within" in record["trouble"]
    assert "waited in vain" in record["trouble"]
    assert record["reached"][BLOCK] == "SQUARES of OUT 2, pass 0"


# ---- no fault ------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", words.CASES, ids=lambda case: case.prefix)
def test_nothing_is_wrong(work: Path, monkeypatch: pytest.MonkeyPatch, case: words.Case) -> None:
    """In another schedule; and the emulator's own bits are met."""
    quick(monkeypatch, runs=1, checks=0)
    found = words.predict_case(stage(work), case)
    record = words.run_case(stage(work), found, case)
    assert "error" not in record, record
    assert record["words_wrong"] == {}
    assert record["words_unequal"] == 0
    assert record["words_compared"] == sum(
        int(x.astype(bool).sum()) for x in found.words.stamps.values()
    )


def test_a_kernel_that_keeps_its_words_computes_what_the_products_does(
    work: Path, prediction: Prediction
) -> None:
    kept = words._open(stage(work), CASE)
    layout = kept.layout
    usual = Model(
        stage(work), widths=(WIDTH,), slots=2, context=layout.plan.context,
        weights=words._weights(), dtype=DTYPE, sms=words.SMS,
    )  # fmt: skip
    assert (layout.kept_passes, usual.layout.kept_passes) == (words.PASSES[WIDTH], 0)
    wanted = words.advances(WIDTH, prediction.seed)
    drawn = [(x.slot, x.token_id) for x in usual.run(*wanted)]
    logits = usual.executor._resident.logit_rows[: wanted[0].budget]
    assert tuple(drawn) == prediction.tokens
    assert np.array_equal(logits, prediction.logits)
    for model in (kept, usual):
        model.close()


def test_bounds_hold_errors_that_were_not_among_those_they_are_made_of(
    work: Path, prediction: Prediction
) -> None:
    model = words._open(stage(work), CASE)
    model.device.noise = 2.0 ** -PRECISION[DTYPE], 99  # type: ignore[attr-defined]
    found = compare(
        model.layout, prediction, _words(model.run(words.advances(WIDTH, prediction.seed)))
    )
    model.close()
    assert found.wrong == {}
    assert found.unequal > found.compared / 2
    # Not too wide either: six deviations hold the largest of 90,000 differences, and little more.
    assert 3 / DEVIATIONS < found.nearest <= 1


def _words(left: Left) -> _events.Words:
    assert left.words is not None, left.trouble
    return left.words


# ---- the file ------------------------------------------------------------------------------------
def test_every_event_of_a_pass_is_compared(prediction: Prediction, faulty: Planted) -> None:
    """In the program's order; those of guides and of lanes that nobody reads do not occur."""
    layout = faulty.model.layout
    listed = _events.events_of(layout)
    of_layer = [
        "QKV",
        "PARTIAL",
        "LANES",
        "STREAM",
        "SQUARES",
        "HIDDEN",
        "LANES",
        "STREAM",
        "SQUARES",
    ]
    names = [x.what.name for x in listed]
    assert names[:2] == ["STREAM", "SQUARES"]
    assert names[2:-5] == 6 * of_layer
    assert names[-5:] == ["GUIDE", "LOGITS", "CANDIDATES", "CONTROL", "DECISION"]
    written = {what for what, stamps in prediction.words.stamps.items() if stamps.any()}
    assert written == {Exchange[name] for name in names} - {Exchange.GUIDE}
    for what, kind in _events.kinds_of(layout).items():
        there = prediction.words.stamps[what] != 0
        for turn in range(there.shape[1]):
            owners = np.broadcast_to(kind.owners_in(turn), there[:, turn].shape)
            assert (owners[there[:, turn]] != _events.NOBODY).all(), what


def test_layers_that_deal_rows_out_by_turns_have_other_owners() -> None:
    """Each word has one, as many words each as it has rows; in a kernel that keeps its words."""
    fields = {"model_type": "llama", "hidden_size": 96, "intermediate_size": 296,
              "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 1,
              "head_dim": 32, "vocab_size": 64, "max_position_embeddings": 64}  # fmt: skip
    device = DeviceDescription(
        name="a device", workers=4, bandwidth=1e9, compute=1e9, source="a test", tile_rows=16
    )
    layout = lay_out(build(parse_config(fields), device, DTYPE, max_width=1), kept_passes=1)
    assert layout.share_layers == 2
    for what, roles in (
        (Exchange.QKV, (Role.Q, Role.K, Role.V)),
        (Exchange.HIDDEN, (Role.GATE,)),
    ):
        kind, both = _events.kinds_of(layout)[what], []
        for layer in range(4):
            rows = shares_of(layout.plan, layer)
            wanted = sum(np.diff(rows[role].bounds) for role in roles)
            found = np.bincount(kind.owners_in(layer).ravel(), minlength=layout.blocks)
            np.testing.assert_array_equal(found, wanted)
            both.append(found)
        assert (both[0] != both[1]).any(), what


def test_a_prediction_survives_its_file(prediction: Prediction, tmp_path: Path) -> None:
    sizes = []
    for name in ("one", "two"):
        with (tmp_path / name).open("wb") as file:
            np.savez_compressed(file, **prediction.pack("a."))
        sizes.append((tmp_path / name).read_bytes())
    assert sizes[0] == sizes[1], "the same bytes whenever it is made"
    # Of two megabytes: three dtypes, each at width 8 and with 4 rows to these 11 at width 1; and
    # one case more of width 8.
    assert len(sizes[0]) * (3 * (1 + 4 / 11) + 1) < 2 << 20
    with np.load(tmp_path / "one") as file:
        found = Prediction.unpack(file, "a.")
    assert (found.seed, found.tokens, found.sizes) == (
        prediction.seed, prediction.tokens, prediction.sizes,
    )  # fmt: skip
    for what, values in prediction.words.values.items():
        assert np.array_equal(found.words.values[what], values)
        assert np.array_equal(found.bounds[what], prediction.bounds[what])


def test_without_a_prediction_a_gpu_measures_nothing(work: Path) -> None:
    on_a_gpu = replace(stage(work), scale=replace(REHEARSAL, emulated=False))
    with pytest.raises(NotMeasuredError, match=r"words\.npz in the carried folder"):
        words.words(on_a_gpu, "words")


def test_another_layout_is_refused(work: Path, prediction: Prediction) -> None:
    other = replace(prediction, sizes=prediction.sizes | {"qkv_words": 1})
    record = words.run_case(stage(work), other, CASE)
    assert "predict anew" in record["error"]


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(i, marks=pytest.mark.exhaustive) for i in range(1, 6))]
)
def test_the_kernels_compile_for_a_gpu(number: int) -> None:
    try:
        compiler_version()
    except MissingExtraError as error:
        pytest.skip(str(error))
    h200 = GpuInfo("NVIDIA H200", (9, 0), 132, 227 << 10, 140 << 30, 141 << 30)
    found = list(words.layouts(h200))
    assert len(found) == 6
    assert found[number].kept_passes == words.PASSES[found[number].width]
    headers = {"specialisation.h": specialisation(found[number])}
    assert compile_kernel("monokernel.cu", headers, "sm_90a").cubin.startswith(b"\x7fELF")

"""The GPU suite of the monokernel without a GPU: its tables, its checks, its peers, and a
rehearsal of the whole on the emulated device."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import table
from bench.gpu import _device
from bench.gpu._campaign import SOFT, chosen, find_part
from bench.gpu._stage import Budget, CheckError, NotMeasuredError, Stage, expect, speed
from bench.gpu.monokernel import _build, sanitizer, switches, variants
from bench.gpu.monokernel._carried import Installed
from bench.gpu.monokernel._ledger import Ledger
from bench.gpu.monokernel._parts import build_seconds, parts
from bench.gpu.monokernel._random_weights import (
    make_block,
    named_parts,
    numpy_tensor,
    random_weights,
    read_block,
    wide_weights,
)
from bench.gpu.monokernel._scale import FULL, REHEARSAL
from bench.gpu.monokernel._wanted import Wanted, wanted
from bench.gpu.monokernel.correctness import check_choices, relative
from bench.gpu.monokernel.phases import clock_step, tabulate
from bench.gpu.monokernel.speed import widths_context
from monolane import _results
from monolane._results import Record
from monolane.cuda import GpuInfo, _executor
from monolane.cuda._plan_device import lay_out_widths
from monolane.cuda._switches import ALL, PREDICTIONS, Switch
from monolane.errors import BackendError
from monolane.model import Role
from monolane.reference import ReferenceModel

RUN = Path(__file__).resolve().parents[2] / "bench" / "gpu" / "monokernel" / "run.py"
H200 = GpuInfo("NVIDIA H200", (9, 0), 132, 227 << 10, 140 << 30, 141 << 30)


def stage(work: Path, records: list[Record], seconds: float = 100.0) -> Stage:
    return Stage(REHEARSAL, work, Budget(seconds), records.append, {"engine": "monolane"})


# ---- weights -------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    make_block(REHEARSAL.config, folder)
    return folder


def test_a_folder_that_has_another_models_weights(tmp_path: Path) -> None:
    """As after a rehearsal with the same --work."""
    small = replace(REHEARSAL.config, vocab_size=REHEARSAL.config.vocab_size // 2)
    for config in (small, REHEARSAL.config):
        make_block(config, tmp_path)
        head = random_weights(config, tmp_path).outer[Role.HEAD]
        assert head.size == config.vocab_size * config.hidden_size


def test_weights_are_the_same_at_every_call_and_differ_from_each_other(work: Path) -> None:
    one, two = (random_weights(REHEARSAL.config, work) for _ in range(2))
    queries = one.layers[0][Role.Q]
    assert queries.tobytes() == two.layers[0][Role.Q].tobytes()
    assert queries.tobytes() != one.layers[1][Role.Q].tobytes()
    block = read_block(work)
    for spec, part in named_parts(REHEARSAL.config):
        assert part.begin + spec.size <= block.size
        exact = np.log2(part.scale) == round(float(np.log2(part.scale)))
        assert exact, "bfloat16 holds the scaled weights exactly only if it is a power of two"
    norm = one.outer[Role.FINAL_NORM].astype(np.float32)
    assert 0.02 < norm.std() < 0.4, "scales that are all alike hide a wrong lane"


def test_wide_weights_are_the_same_values(work: Path) -> None:
    wide, stored = (f(REHEARSAL.config, work) for f in (wide_weights, random_weights))
    for ours, theirs in zip(
        (wide.outer, *wide.layers), (stored.outer, *stored.layers), strict=True
    ):
        for role, array in theirs.items():
            assert ours[role].dtype == np.float32
            assert np.array_equal(ours[role], array.astype(np.float32)), role


# ---- where the microseconds are ------------------------------------------------------------------
def made_up_times(passes: int = 3, layers: int = 2, lanes: int = 2, blocks: int = 2) -> Any:
    """Every phase: 1 us of waiting, 2 of working (block 1 of each lane: 4), 0.5 between."""
    times = np.zeros((passes, 5 * layers + 2, lanes * blocks, 3), np.uint64)
    for block in range(lanes * blocks):
        now = 1_000_000
        for p in range(passes):
            for phase in range(5 * layers + 2):
                work_ns = 4000 if block % blocks == 1 else 2000
                times[p, phase, block] = now, now + 1000, now + 1000 + work_ns
                now += 1000 + work_ns + 500
    return times


def test_a_trace_adds_up() -> None:
    times = made_up_times()
    rows = {row["phase"]: row for row in tabulate(times, layers=2, blocks=2)}
    assert list(rows) == ["QKV", "ATTEND", "OUT", "GATE_UP", "DOWN", "HEAD", "CHOOSE"]
    out = rows["OUT"]
    assert (out["calls"], out["waiting_us"], out["working_us"]) == (2, 2.0, 6.0)
    assert (out["between_us"], out["slowest_us"]) == (1.0, 2.0)
    assert rows["HEAD"]["calls"] == 1
    total = sum(row["waiting_us"] + row["working_us"] + row["between_us"] for row in rows.values())
    passes = np.diff(times[:, 0, :, 0].astype(np.int64), axis=0).mean() / 1e3
    assert total == pytest.approx(passes)
    assert clock_step(times) == 500


def test_a_block_without_a_share_waits_all_the_time() -> None:
    times = made_up_times()
    times[:, 1, 0, 1] = 0  # ATTEND of layer 0: block 0 never begins
    row = tabulate(times, layers=2, blocks=2)[1]
    assert row["waiting_us"] == pytest.approx(2.0 + 2.0 / 4)
    assert row["working_us"] == pytest.approx(6.0 - 2.0 / 4)


# ---- checks --------------------------------------------------------------------------------------
def test_errors_are_measured_and_nan_never_passes() -> None:
    expected = np.array([[3.0, 4.0]], np.float32)
    assert relative(expected + np.float32(0.5), expected) == pytest.approx(0.5**0.5 / 5)
    assert relative(np.array([[3.0, np.nan]], np.float32), expected) == float("inf")


def test_a_greedy_token_may_differ_only_within_the_error() -> None:
    logits = np.array([[0.0, 1.0, 0.9], [2.0, 0.0, 0.0]], np.float32)
    assert check_choices(logits, (1, 0), 0.01) == 2
    assert check_choices(logits, (2, 0), 0.06) == 1
    with pytest.raises(CheckError, match=r"greedy token 0: expected one within 0\.08"):
        check_choices(logits, (2, 0), 0.04)


def test_a_failed_check_leaves_no_figure(work: Path) -> None:
    records: list[Record] = []
    made = stage(work, records)

    def wrong() -> Record:
        expect(False, "logits: expected those, got these")
        return {"median": 1.0}

    def lost() -> Record:
        raise BackendError("cuda: gone")

    def left_out() -> Record:
        raise NotMeasuredError("no tool")

    for measure in (wrong, lost, left_out, lambda: speed([3.0, 1.0, 2.0], 10**9)):
        made.attempt("decode", measure, context=8)
    assert [set(r) & {"error", "not_measured", "median"} for r in records] == [
        {"error"}, {"error"}, {"not_measured"}, {"median"},
    ]  # fmt: skip
    assert records[0]["error"] == "CheckError: logits: expected those, got these"
    assert records[3]["gb_per_s"] == 2.0
    spent = stage(work, records, seconds=0.0)
    spent.attempt("decode", lost)
    assert "0 s were spent" in records[-1]["not_measured"]


# ---- what the machine has ------------------------------------------------------------------------
def test_the_first_part_has_the_time_that_compiling_takes() -> None:
    assert [round(build_seconds(n)) for n in (64, 16, 4, 1)] == [90, 90, 220, 300]
    assert SOFT * build_seconds(4) >= 33 + 88 * 6 / 4, "in which it may begin a kernel"


def test_kernels_that_time_does_not_reach_are_left_to_the_parts(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile_one(item: Wanted, arch: str) -> Record:
        compiled.append(item.name)
        made.budget.seconds = 0.0
        return {"kernel": item.name}

    made = stage(work, [])
    made.scale = replace(REHEARSAL, emulated=False)
    monkeypatch.setattr(_build, "gpu_info", lambda emulated: H200)
    monkeypatch.setattr(_build, "compiler", lambda arch: f"nvrtc {arch}")
    monkeypatch.setattr(_build, "_compile", compile_one)
    both = [Wanted("one", "pack.cu"), Wanted("two", "pack.cu")]
    monkeypatch.setattr(_build, "_missing", lambda stage, installed: both)
    monkeypatch.setattr(_build.os, "cpu_count", lambda: 1)
    record = _build._all_kernels(made)
    assert compiled == ["one"]
    assert (record["compiled"], record["left_to_parts"]) == (1, 1)


def test_only_what_the_parts_need_is_compiled(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_build, "gpu_info", lambda emulated: H200)
    made = replace(stage(work, []), scale=FULL, wanted=("build", "decode", "phases"))
    found = [item for item in _build._missing(made, Installed()) if item.layout is not None]
    assert [item.layout.width for item in found if item.layout] == [1, 8, 64]
    assert {item.name for item in found} == {"product"}


def test_sequences_of_the_widest_pass_are_cut_to_the_memory(work: Path) -> None:
    def context(gigabytes: float) -> int:
        return widths_context(FULL, replace(H200, free_bytes=int(gigabytes * 1e9)))

    assert [context(x) for x in (140, 20, 15)] == [4608, 2304, 1152]
    with pytest.raises(NotMeasuredError, match=r"64 sequences of 1,152 tokens take .* are free"):
        context(10)


def test_what_many_sequences_run_is_compiled_before() -> None:
    """On a GPU that is too small for the usual context too."""
    small = replace(H200, free_bytes=0, total_bytes=20 << 30)
    found = [x.layout for x in wanted("widths", FULL, small) if x.layout]
    assert [(x.plan.context, x.width) for x in found] == [(2304, w) for w in FULL.widths]


# ---- variants and sanitizers ---------------------------------------------------------------------
@pytest.mark.parametrize("variant", variants.VARIANTS, ids=lambda x: x.name)
def test_every_variant_fits_and_differs_where_it_says(variant: Any) -> None:
    config, context = FULL.config, 1300
    (usual,) = lay_out_widths(config, H200, "bfloat16", context, (1,))
    (found,) = variant.layouts(config, H200, "bfloat16", context, (1,))
    wished = {
        "warps": (variant.warps, found.warps),
        "slot_bytes": (variant.slot_bytes, found.slot_bytes),
        "ring_slots": (variant.ring_slots, found.ring_slots),
        "blocks": (variant.blocks, found.blocks),
        "chunk": (variant.chunk, found.plan.device.chunk),
    }
    for name, (wish, got) in wished.items():
        assert wish in (None, got), name
    same = (found.shared, found.tilings, found.blocks, found.plan.device.chunk) == (
        usual.shared, usual.tilings, usual.blocks, usual.plan.device.chunk,
    )  # fmt: skip
    assert same == (variant.name == "product")


def test_the_switches_begin_with_the_product() -> None:
    """Base has the kernels that decode has; what float8 has already is not timed again."""
    for dtype, count in (("bfloat16", 11), ("float8", 10)):
        found = switches.layouts(FULL, H200, dtype)
        product = lay_out_widths(FULL.config, H200, dtype, 1300, (1, 8, 64))[0]
        base = found[switches.BASE]
        assert (base.shared, base.tilings) == (product.shared, product.tilings)
        assert len(found) == count
        assert found[switches.TOGETHER].switches == ALL
    assert found[switches.TOGETHER].slot_bytes == 12 << 10


def test_a_switch_wins_that_is_faster_in_every_round() -> None:
    times = {"base": [10.0, 12.0, 11.0], "norm": [9.0, 11.0, 9.0], "gate": [9.0, 13.0, 11.0],
             "keys": [11.0, 13.0, 14.0]}  # fmt: skip
    made = {name: switches.compare(times, name, "bfloat16") for name in times}
    assert [made[name]["verdict"] for name in times] == ["base", "wins", "neither", "loses"]
    assert (made["norm"]["saved_us"], made["norm"]["saved_us_least"]) == (1.0, 1.0)
    assert made["norm"]["predicted_us_least"] == PREDICTIONS[Switch.NORM].bfloat16[0]
    assert "predicted_us_least" not in made["base"]


FAKE_SANITIZER = """#!/bin/sh
[ "$2" = racecheck ] && { echo "========= Error: Device not supported"; exit 1; }
[ "$2" = synccheck ] && { echo "========= ERROR SUMMARY: 3 errors"; exit 86; }
echo "========= ERROR SUMMARY: 0 errors"
"""


def test_what_the_sanitizers_run_is_compiled_before(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def lay_out(config: Any, gpu: GpuInfo, *wish: Any, **more: Any) -> Any:
        asked.append(lay_out_widths(config, gpu, *wish, **more))
        raise BackendError("enough is known")

    monkeypatch.setattr(_executor, "lay_out_widths", lay_out)
    with pytest.raises(BackendError):
        sanitizer.small_model(stage(work, []), "small-model")
    info = _device.gpu_info(emulated=True)
    for part in ("sanitizer:memcheck", "small-model"):
        made = [x.layout for x in wanted(part, REHEARSAL, info) if x.layout]
        assert tuple(made) == asked[0], part


def test_a_sanitizer_is_heard(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(FAKE_SANITIZER)
    tool.chmod(0o755)
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: str(tool))
    records: list[Record] = []
    for name in sanitizer.TOOLS:
        sanitizer.sanitize(stage(tmp_path, records), f"sanitizer:{name}")
    assert records[0]["summary"] == "0 errors"
    assert "synccheck: expected nothing, got status 86: 3 errors" in records[1]["error"]
    assert "Device not supported" in records[2]["not_measured"]


# ---- peers ---------------------------------------------------------------------------------------
RULES: dict[str, dict[str, Any]] = {
    "late": {},
    "later": {"broadcast_delay": 2, "swa_layers": [1, 3]},
    "at once": {"broadcast_delay": 4, "use_early_comm": True},
    "apart": {"use_attention_comm": False, "use_mlp_comm": False},
    "shared norms": {"replicated_rmsn_scale": True},
    "tied": {"tie_word_embeddings": True},
}


@pytest.fixture
def make_model() -> Callable[..., Any]:
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from monolane.hf import LaneformerConfig, LaneformerForCausalLM

    def make(**changes: Any) -> Any:
        torch.manual_seed(0)
        sizes: dict[str, Any] = {
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 22,
            "max_position_embeddings": 64, "num_lanes": 2, "broadcast_delay": 1,
            "sliding_window": 5, "swa_layers": [0, 2], "initializer_range": 0.3,
        }  # fmt: skip
        return LaneformerForCausalLM(LaneformerConfig(**(sizes | changes))).eval()

    return make


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["HfStep", "PackedStep", "PackedStep, the other ways"])
def test_a_step_is_the_model(rule: str, kind: str, make_model: Callable[..., Any]) -> None:
    """Behind 20 tokens, past the window: what is timed as a peer computes the model's logits."""
    model = make_model(**RULES[rule])
    import torch

    from bench.gpu.monokernel import baseline

    ids = torch.randint(0, 22, (20,))
    with torch.no_grad():
        expected = model(ids[None], use_cache=False).logits[0]
        step = getattr(baseline, kind.partition(",")[0])(model, capacity=24)
        if kind.endswith("ways"):
            step._multiply = dict.fromkeys(
                {tuple(w.shape) for w in (*step._qkv, *step._out, *step._gate_up, *step._down)},
                baseline.PRODUCTS[1],
            )
            step._attend = dict.fromkeys(step.cache.capacities, baseline.ATTENTIONS[1])
        for i, token in enumerate(ids):
            step.token.copy_(token)
            step()
            # float32 (epsilon 1.2e-7), sums of some hundred products, in another order.
            torch.testing.assert_close(step.logits, expected[i], atol=2e-5, rtol=1e-5)
    assert int(step.token) == int(expected[-1].argmax())
    assert int(step.position) == len(ids)


def test_torch_has_the_monokernels_weights(work: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from bench.gpu.monokernel.peers import hf_model

    ids = [1, 17, 33, 5, 60, 2, 91, 44, 8, 71, 30, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    with torch.no_grad():
        model = hf_model(stage(work, []), torch.float32)
        found = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    oracle = ReferenceModel(random_weights(REHEARSAL.config, work))
    expected = oracle.forward(ids, oracle.new_cache(len(ids)))
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    block = read_block(work)
    state = model.state_dict()
    for spec, part in named_parts(REHEARSAL.config):
        wide = numpy_tensor(block, part).astype(np.float32).reshape(spec.shape)
        assert np.array_equal(state[spec.name].numpy(), wide), spec.name


def test_a_model_that_passes_its_cache_over_is_no_peer(work: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from bench.gpu.monokernel import peers

    behind = 8
    with torch.no_grad():
        model = peers.hf_model(stage(work, []), torch.bfloat16)
        assert peers._eager(stage(work, []), model, "hf-eager", behind)["tokens"] == 2

        class Forgetful:
            config = model.config

            def __call__(self, ids: Any, cache: Any = None, **options: Any) -> Any:
                return model(ids, **options)

        with pytest.raises(CheckError, match="tokens in the cache: expected 10, got 0"):
            peers._eager(stage(work, []), Forgetful(), "hf-eager", behind)


def test_the_peers_use_no_name_that_transformers_gives_up(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch")
    generic = pytest.importorskip("transformers").utils.generic
    from bench.gpu.monokernel import peers

    told: list[str] = []
    monkeypatch.setattr(generic.logger, "warning_once", told.append, raising=False)
    with torch.no_grad():
        model = peers.hf_model(stage(work, []), torch.bfloat16)
        for name in ("hf-eager", "hf-step"):
            measure = peers._eager if name == "hf-eager" else peers._stepped
            assert measure(stage(work, []), model, name, 8)["tokens"] > 1
    assert told == []


@pytest.mark.parametrize("job", ["cuda-graph", "reference"])
def test_a_torch_without_cuda_is_as_good_as_none(
    work: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    records: list[Record] = []
    on_a_gpu = stage(work, records)
    on_a_gpu.scale = replace(REHEARSAL, emulated=False)
    try:
        find_part(parts(False), job).function()(on_a_gpu, job)
    except NotMeasuredError as why:
        records.append({"name": job, "not_measured": str(why)})
    assert records[0]["not_measured"] == f"torch {torch.__version__} finds no CUDA here"
    assert len(records) == 1


# ---- the rehearsal -------------------------------------------------------------------------------
@pytest.mark.exhaustive
def test_what_the_sanitizers_run(work: Path, tmp_path: Path) -> None:
    """On every width, the widest with activations in memory."""
    records: list[Record] = []
    sanitizer.small_model(stage(tmp_path, records), "small-model")
    assert records == [{"name": "small_model", "engine": "monolane", "tokens_drawn": 8}]


@pytest.mark.exhaustive
def test_the_rehearsal(tmp_path: Path) -> None:
    """The whole campaign: every part runs, and what it finds is right."""
    command = [sys.executable, str(RUN), "--rehearse", "--out", str(tmp_path), "--commit", "abc"]
    command += ["--minutes", "60"]  # a busy machine takes longer, and leaves out nothing
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (path,) = tmp_path.glob("*-emulated-monokernel.json")
    document = json.loads(path.read_text())
    _results.validate_document(document)
    shown = ["python", str(RUN.relative_to(RUN.parents[3])), "--rehearse", "--out", tmp_path.name]
    assert document["command"].startswith(" ".join(shown)), "no paths of this machine"
    records = document["records"]
    assert [r for r in records if "error" in r] == [], done.stdout + done.stderr
    assert done.returncode == 0
    ran = {r["part"] for r in records if r["name"] == "part"}
    assert ran == {p.name for p in chosen(parts(True), "")}
    contexts = {
        (r["engine"], r["context"]) for r in records if r["name"] == "decode" and "median" in r
    }
    assert {("monolane", context) for context in REHEARSAL.contexts} <= contexts
    assert all(r["mbu"] > 0 for r in records if r["name"] == "decode" and "median" in r)
    page = path.with_suffix(".md").read_text()
    for title in (
        "Right or wrong", "Decode, one sequence", "Prefill", "Widths", "Constants", "Kernels",
        "Switches", "Where the microseconds are: decode", "Where the microseconds are: prefill",
        "Reading memory", "Time of the parts",
    ):  # fmt: skip
        assert f"## {title}" in page, title
    assert "WRONG" not in page
    assert "-- soak:" in path.with_suffix(".txt").read_text()
    verdict, following = done.stdout.splitlines()[-2:]
    assert verdict.startswith(
        "verdict: RIGHT: right: launch, first-golden, first-tokens, bandwidth"
    )
    first = "--only probe:matrix-unit,"  # of what the earliest window has left
    assert following.startswith(f"next: python bench/gpu/monokernel/run.py {first}")
    ledger = Ledger.read(tmp_path / "gpu-ledger.json")
    assert ledger.state("decode", "Emulated") == "done"
    assert "decode_top_p" in table.render(tmp_path)

"""bench/peers.py beside a llama-bench that only pretends; the real one is not needed to test it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.measure import DecodeCase, validate_document

BENCH = Path(__file__).parents[2] / "bench"

# Answers as llama-bench of July 2025 does, as far as it is read; its speed depends on the format.
FAKE = """#!{python}
import json, sys
if sys.argv[1:] == ["--help"]:
    sys.exit(print({help!r}))
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert given["-o"] == "json" and given["-r"] == "1" and given["-ngl"] == "0", given
speed = {{"BF16": 10.0, "Q8_0": 20.0}}[{dtype}]
print("warming up", file=sys.stderr)
lengths = {{"n_prompt": int(given["-p"]), "n_gen": int(given["-n"])}}
if "-gp" in given:
    lengths = dict(zip(lengths, map(int, given["-gp"].split(","))))
if "-d" in given:
    lengths["n_depth"] = int(given["-d"]) + {off}
print(json.dumps([lengths | {{"build_commit": "abc1234", "model_type": "llama ?B", "n_threads": 2,
    "avg_ns": 1, "stddev_ns": 0, "avg_ts": speed, "stddev_ts": 0.0, "samples_ns": [1]}}]))
sys.exit({code})
"""


def fake(folder: Path, off: int = 0, code: int = 0, depth: str = "-d, --n-depth") -> Path:
    path = folder / f"llama-bench{len(depth)}"
    text = FAKE.format(python=sys.executable, dtype='"BF16"', off=off, code=code, help=depth)
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(cache: Path, *arguments: str | Path | int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(BENCH / "peers.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"MONOLANE_CACHE": str(cache)},
        check=False,
    )


# What _openvino.py uses of these packages; like them it compiles new shapes, and keeps prefixes.
OPENVINO = "from numpy import asarray as Tensor"
GENAI = """
from types import SimpleNamespace as Values
__version__ = "2026.4.1.0"
GenerationConfig = Values
class LLMPipeline:
    def __init__(self, path, device, **wish):
        assert path.endswith("llama-tiny-BF16-v3.gguf") and device == "CPU", path
        assert wish.pop("INFERENCE_NUM_THREADS") == 2 and wish.pop("ENABLE_CPU_PINNING") is True
        assert wish == {"PERFORMANCE_HINT": "LATENCY"}, wish
        self.shapes, self.prefixes = set(), set()
    def generate(self, ids, wish):
        assert ids.dtype == "int64" and wish.ignore_eos and not wish.do_sample
        milliseconds = 50 if ids.shape in self.shapes else 5000
        if ids[0, 0] in self.prefixes:
            milliseconds = 1
        self.shapes.add(ids.shape), self.prefixes.add(ids[0, 0])
        return Values(perf_metrics=Values(
            get_num_generated_tokens=lambda: wish.max_new_tokens,
            get_ttft=lambda: Values(mean=milliseconds * ids.shape[1]),
            get_tpot=lambda: Values(mean=milliseconds)))
"""


SMALL = ("--shape", "llama-tiny", "--context", 4, "--prefill", 8, "--tokens", 3)
SMALL = (*SMALL, "--runs", 2, "--buffer", 1, "--threads", 2, "--type", "BF16")
SMALL = (*SMALL, "--patience", 0, "--steady", 1e9)  # other tests run beside this one


def test_all_take_turns_and_a_ratio_is_ours_by_theirs(tmp_path: Path) -> None:
    out = tmp_path / "peers.json"
    older = fake(tmp_path, depth="-gp")  # a prompt and what follows it, instead of a depth
    two = ["--peer", f"llama.cpp={fake(tmp_path)}", "--peer", f"ik_llama.cpp={older}"]
    result = run(tmp_path, *two, *SMALL, "--out", out)
    assert result.returncode == 0, result.stderr
    document = json.loads(out.read_text())
    validate_document(document)
    assert str(tmp_path) not in out.read_text()
    read, decode, prefill, *theirs = document["records"]
    assert read["name"] == "read_bandwidth"
    assert [peer["engine"] for peer in theirs] == ["llama.cpp", "ik_llama.cpp"] * 2
    for ours, peers in ((decode, theirs[:2]), (prefill, theirs[2:])):
        assert (ours["engine"], ours["dtype"]) == ("monolane", "BF16")
        for peer, key in zip(peers, ("llama_cpp", "ik_llama_cpp"), strict=True):
            assert peer["build"] == "abc1234"
            assert (ours["name"], ours["tokens"]) == (peer["name"], peer["tokens"])
            assert (peer["runs"], peer["median"], peer["dtype"]) == (2, 10.0, "BF16")
            assert ours[f"ratio_to_{key}"] == pytest.approx(ours["median"] / 10)
            assert ours[f"ratio_to_{key}_min"] == pytest.approx(ours["min"] / 10)
            assert ours[f"ratio_to_{key}_max"] == pytest.approx(ours["max"] / 10)
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["decode", "prefill"]


def test_openvino_is_a_peer_by_a_python_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openvino.py").write_text(OPENVINO)
    (tmp_path / "openvino_genai.py").write_text(GENAI)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out = tmp_path / "peers.json"
    result = run(tmp_path, "--peer", f"openvino={sys.executable}", *SMALL, "--out", out)
    assert result.returncode == 0, result.stderr
    _, decode, prefill, *theirs = json.loads(out.read_text())["records"]
    for ours, peer in zip((decode, prefill), theirs, strict=True):
        assert (peer["engine"], peer["name"], peer["build"]) == (
            "openvino",
            ours["name"],
            "2026.4.1.0",
        )
        assert (peer["runs"], peer["median"]) == (2, pytest.approx(20.0))
        assert ours["ratio_to_openvino"] == pytest.approx(ours["median"] / 20)


def test_a_python_without_openvino_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "openvino.py").write_text("import openvino_of_nobody")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = run(tmp_path, "--peer", f"openvino={sys.executable}", *SMALL)
    assert result.returncode == 1
    assert (
        "No module named 'openvino_of_nobody'; expected openvino-genai: pip install"
        in result.stderr
    )


def test_a_run_in_pieces_is_one_run(tmp_path: Path) -> None:
    """What the journal keeps is not run again: the last run's peer could not even be run."""
    out, journal = tmp_path / "peers.json", tmp_path / "rounds"
    given = ("--peer", f"llama.cpp={fake(tmp_path)}", *SMALL, "--out", out, "--journal", journal)
    first = run(tmp_path, *given, "--prefill", "--runs", 1)  # decode alone, a round
    assert first.returncode == 0, first.stderr
    second = run(tmp_path, *given)
    assert second.returncode == 0, second.stderr
    rounds = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [line["key"][1] for line in rounds] == [
        *("decode", "read_bandwidth"),  # the first piece
        *("prefill", "read_bandwidth"),  # the round that the second piece lacked
        *("decode", "prefill", "read_bandwidth"),
    ]
    fake(tmp_path, code=3)
    third = run(tmp_path, *given)
    assert third.returncode == 0, third.stderr
    records = json.loads(out.read_text())["records"]
    assert [record["runs"] for record in records] == [3, 2, 2, 2, 2]
    samples = [line["round"]["sample"] for line in rounds if line["key"][1] == "decode"]
    assert (records[1]["min"], records[1]["max"]) == (min(samples), max(samples))
    cores = [line["round"]["arithmetic"] / 1e9 for line in rounds if line["key"][1] == "decode"]
    assert (records[1]["core_gflops_min"], records[1]["core_gflops_max"]) == (
        min(cores),
        max(cores),
    )
    assert len(rounds) == len(journal.read_text().splitlines())


def test_a_round_in_which_the_memory_changed_does_not_count(tmp_path: Path) -> None:
    """Of no round that is measured are all readings the same to the last bit."""
    journal = tmp_path / "rounds"
    given = ("--peer", f"llama.cpp={fake(tmp_path)}", *SMALL, "--prefill", "--journal", journal)
    result = run(tmp_path, *given, "--steady", 1)
    assert result.returncode == 1
    assert "expected a memory that keeps its speed to a factor of 1.0 in a round" in result.stderr
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [line["key"][1] for line in lines] == ["read_bandwidth"] * 8


def test_a_round_is_steady_by_all_of_its_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from _llama import LlamaCase
    from _pairing import Pairing

    case = object.__new__(DecodeCase)
    peer = LlamaCase("peer", ("bench",), Path("model"), "Q8_0", 2)
    pairing = Pairing(case, (peer,))
    for own, other, steady in (
        ((60.0, 61.0), (59.0, 60.0), True),
        ((60.0, 36.0), (36.0, 36.0), False),  # while ours ran
        ((60.0, 60.0), (60.0, 36.0), False),  # while the peer ran
        ((60.0, 60.0), (36.0, 36.0), False),  # between them
    ):
        case.reads, peer.reads = [(1.0, 1.0), own], [(9.0, 9.0), other]  # the last ones count
        assert pairing.is_steady(1.15) == steady


def test_a_ratio_is_of_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine halves its speed in the second round, between the two of the third, and stays."""
    monkeypatch.syspath_prepend(str(BENCH))
    from peers import ratio_figures

    found = ratio_figures("llama.cpp", [20.0, 10.0, 20.0], [16.0, 8.0, 8.0])
    assert found == {
        "ratio_to_llama_cpp": 1.25,  # that of the medians is 2.5
        "ratio_to_llama_cpp_min": 1.25,
        "ratio_to_llama_cpp_max": 2.5,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"off": 1}, "expected a test of {'n_prompt': 0, 'n_gen': 3, 'n_depth': 4}, got"),
        ({"code": 3}, "exit code 3: warming up"),
    ],
)
def test_a_peer_that_does_something_else(
    tmp_path: Path, options: dict[str, int], message: str
) -> None:
    program = fake(tmp_path, **options)
    result = run(tmp_path, "--peer", f"llama.cpp={program}", *SMALL)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peer", "llama.cpp=/none/llama-bench"], "got no program at '/none/llama-bench'"),
        (
            ["--peer", "llama.cpp"],
            "expected NAME=PATH of a llama-bench, or openvino=PYTHON, got 'llama.cpp'",
        ),
        (["--peer", f"a={sys.executable}", "--type", "Q9"], "--type of Q4_K_M, "),
        (["--peer", f"a={sys.executable}", "--shape", "round"], "expected --shape of llama-1.7b, "),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run(tmp_path, *SMALL, *arguments)
    assert result.returncode in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


@pytest.mark.usefixtures("bench")
def test_a_random_file_has_the_sizes_of_its_shape(tmp_path: Path) -> None:
    from _gguf import SHAPES, random_gguf

    shape = SHAPES["llama-tiny"]
    path = random_gguf(tmp_path, "llama-tiny", "Q4_K_M")
    assert random_gguf(tmp_path, "llama-tiny", "Q4_K_M") == path
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    reader = gguf.GGUFReader(path)
    shapes = {tensor.name: tuple(map(int, tensor.shape)) for tensor in reader.tensors}
    assert len(shapes) == 3 + 9 * shape.layers
    assert shapes["blk.1.ffn_down.weight"] == (512, 256)  # columns first
    assert shapes["token_embd.weight"] == (256, 512)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["output.weight"] == kinds["blk.1.ffn_down.weight"] == "Q6_K"
    assert kinds["blk.1.attn_q.weight"] == kinds["token_embd.weight"] == "Q4_K"
    assert reader.fields["llama.attention.head_count_kv"].parts[-1][0] == 4
    # OpenVINO GenAI reads a file with these alone.
    assert reader.fields["general.file_type"].parts[-1][0] == gguf.LlamaFileType.MOSTLY_Q4_K_M
    assert len(reader.fields["tokenizer.ggml.tokens"].data) == shape.vocab


@pytest.mark.usefixtures("bench")
def test_a_random_mixture_has_the_tensors_of_a_qwen3_moe(tmp_path: Path) -> None:
    """Those of ``--shape moe-2b``, whose names and types do not depend on sizes."""
    from _gguf import SHAPES, random_gguf

    reader = gguf.GGUFReader(random_gguf(tmp_path, "moe-tiny", "Q4_K_M"))
    # Columns first, then rows, then experts.
    layer = {
        "attn_q": (256, 256),
        "attn_k": (256, 128),
        "attn_v": (256, 128),
        "attn_output": (256, 256),
        "attn_q_norm": (64,),
        "attn_k_norm": (64,),
        "attn_norm": (256,),
        "ffn_norm": (256,),
        "ffn_gate_inp": (256, 8),
        **{f"ffn_{part}_exps": (256, 256, 8) for part in ("gate", "up", "down")},
    }
    wanted = {f"blk.{i}.{name}.weight": shape for i in range(2) for name, shape in layer.items()}
    wanted |= {"token_embd.weight": (256, 512), "output.weight": (256, 512)}
    wanted["output_norm.weight"] = (256,)
    assert {x.name: tuple(map(int, x.shape)) for x in reader.tensors} == wanted
    kinds = {x.name: x.tensor_type.name for x in reader.tensors}
    assert {kinds[name] for name in wanted if "norm" in name or "_inp" in name} == {"F32"}
    six = ("blk.1.attn_v.weight", "blk.1.ffn_down_exps.weight", "output.weight")
    assert {name for name, kind in kinds.items() if kind == "Q6_K"} == set(six)
    assert set(kinds.values()) == {"F32", "Q4_K", "Q6_K"}
    said = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 256}
    for key, value in (said | {"attention.key_length": 64}).items():
        assert reader.fields[f"qwen3moe.{key}"].parts[-1][0] == value
    # The real one differs in sizes alone.
    tiny, real = SHAPES["moe-tiny"], SHAPES["moe-2b"]
    assert (real.architecture, real.experts, real.chosen) == (tiny.architecture, 64, 8)


@pytest.mark.usefixtures("bench")
def test_a_token_reads_the_chosen_experts_of_a_random_mixture(tmp_path: Path) -> None:
    from _gguf import random_gguf

    path, d = random_gguf(tmp_path, "moe-tiny", "Q8_0"), 256
    attention, expert, router = (2 * 256 + 2 * 128) * d, 3 * 256 * d, 8 * d
    numbers = 2 * (attention + 2 * expert) + 512 * d  # 2 of 8 experts; the head
    with Engine.load(path, "cpu") as engine:
        one, two = (engine.backend.bytes_per_token(length) for length in (1, 2))
    # The router is in float32; what is cached counts by token.
    assert one - (two - one) == numbers // 32 * 34 + 2 * router * 4


@pytest.mark.usefixtures("bench")
def test_a_random_mixture_with_experts_in_mxfp4(tmp_path: Path) -> None:
    from _gguf import random_gguf

    path = random_gguf(tmp_path, "moe-tiny", "MXFP4_MOE")
    reader = gguf.GGUFReader(path)
    experts = {x.name for x in reader.tensors if "_exps" in x.name}
    kinds = {x.name: x.tensor_type.name for x in reader.tensors}
    assert {name for name, kind in kinds.items() if kind == "MXFP4"} == experts
    assert set(kinds.values()) == {"F32", "Q8_0", "MXFP4"}
    assert reader.fields["general.file_type"].parts[-1][0] == gguf.LlamaFileType.MOSTLY_MXFP4_MOE
    with Engine.load(path, "cpu") as engine:
        answer = engine.generate([3, 4, 5], SamplingParams(max_tokens=4, logprobs=0))
    assert all(-20 < draw.logprob <= 0 for draw in answer.logprobs)


@pytest.mark.usefixtures("bench")
def test_every_type_has_a_name_of_a_file() -> None:
    from _gguf import TYPES, file_type

    named = {kind: file_type(kind).name for kind in TYPES}
    assert named["BF16"] == "MOSTLY_BF16"
    assert named["F32"] == "ALL_F32"
    assert named["Q4_K"] == "MOSTLY_Q4_K_S"
    assert len(set(named.values())) == len(TYPES)


@pytest.mark.usefixtures("bench")
def test_random_weights_are_of_the_size_that_a_model_has() -> None:
    """No type gives infinities, or numbers that a processor treats as a case of their own."""
    from _gguf import MIXES, TYPES, random_rows

    for name in set(TYPES) - set(MIXES):
        kind = gguf.GGMLQuantizationType[name]
        rows = random_rows(kind, 512, np.random.default_rng(0))
        values = gguf.quants.dequantize(rows, kind)
        assert values.shape == (256, 512), name
        assert values.std() == pytest.approx(512**-0.5, rel=0.01), name
        assert abs(values.mean()) < 0.2 * 512**-0.5, name  # Q4_0: codes from -8 to 7
    kind = gguf.GGMLQuantizationType.MXFP4
    deviation = gguf.quants.dequantize(random_rows(kind, 512, np.random.default_rng(0)), kind).std()
    assert 0.5**0.5 <= deviation * 512**0.5 <= 2**0.5


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("llama-1.7b-Q4_K_M-v2.gguf", "Q4_K_M"),
        ("some-BF16.gguf", "BF16"),
        ("moe-8b-MXFP4_MOE-v3.gguf", "MXFP4_MOE"),
        ("a.b.gguf", "b"),
    ],
)
def test_a_file_names_its_type(monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from peers import type_of

    assert type_of(Path(name)) == kind

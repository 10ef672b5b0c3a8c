"""Adapters at run time: as the merged model, each sequence by its own, and prefixes kept apart."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.errors import RequestError
from monolane.executor_api import Advance, TokenEvent
from monolane.model import parse_config, tensor_specs, write_checkpoint
from monolane.sources import unpack_gguf
from tests.peft_folders import ALL, LANES, merge, write_adapter

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 68,
    "max_position_embeddings": 300,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}
# Of each: config.json, and what its matrices are called.
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "llama": ({"model_type": "llama"}, ALL),
    "biases, norms over heads": ({"model_type": "olmo2", "num_key_value_heads": 4}, ALL),
    "joined": (
        {"model_type": "phi3", "pad_token_id": 0},
        ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    ),
    "streams, sparse gates": (
        {"model_type": "gemma3n_text", "head_dim": 16, "sliding_window": 9, "laurel_rank": 6}
        | {"num_kv_shared_layers": 1, "hidden_size_per_layer_input": 8, "altup_num_inputs": 3}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}
        | {"vocab_size_per_layer_input": 60, "activation_sparsity_pattern": [0.6, 0.0, 0.9]},
        ALL,
    ),
    "lanes": ({"model_type": "laneformer", "num_lanes": 2, "broadcast_delay": 1}, LANES),
}
BACKENDS = ("cpu", "reference")
IDS = np.random.default_rng(1).integers(68, size=200).tolist()  # beyond one chunk of keys
GREEDY = SamplingParams(max_tokens=12, logprobs=2)


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    tensors = [
        (x.name, rng.normal(scale=x.shape[-1] ** -0.5, size=x.shape).astype(np.float32))
        for x in tensor_specs(parse_config(config))
    ]
    write_checkpoint(folder, tensors)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("lora") / "model", SIZES | KINDS["llama"][0])


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "a": write_adapter(folder / "a", model, 1),
        "b": write_adapter(folder / "b", model, 2, ("q_proj", "up_proj"), r=7),
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_the_merged_model_s(kind: str, backend: str, tmp_path: Path) -> None:
    said, names = KINDS[kind]
    base = write_model(tmp_path / "base", SIZES | said)
    adapter = write_adapter(
        tmp_path / "adapter",
        base,
        3,
        names,
        {names[0]: 3, names[-1]: 17},
        use_rslora=True,
        alpha_pattern={names[-1]: 2.5},
    )
    whole = merge(base, adapter, tmp_path / "whole")
    with Engine.load(whole, backend) as engine:
        wanted = engine.logits(IDS)
    with Engine.load(base, backend) as engine:
        plain = engine.logits(IDS)
    with Engine.load(base, backend, lora=adapter) as engine:
        found = engine.logits(IDS)
        executor = engine.backend.executor
        executor.truncate(0, 0)  # of the same sequence
        one_by_one = np.concatenate([executor.logits(0, [token]) for token in IDS[:40]])
    # float32 sums of some 96 products in another order: 1e-5 of logits of about 1.
    assert np.abs(found - wanted).max() < 1e-4
    assert np.abs(one_by_one - wanted[:40]).max() < 1e-4
    assert np.abs(plain - wanted).max() > 0.1
    if backend == "cpu":
        assert np.array_equal(one_by_one, found[:40])


@pytest.mark.parametrize(
    ("dtype", "workers", "isa"),
    [
        *((dtype, n, "auto") for dtype in ("float32", "bfloat16", "int8") for n in (1, 2, 3)),
        ("bfloat16", 2, "tiles_portable"),  # where a prompt has passes of 96 rows
    ],
)
def test_each_of_a_batch_has_the_bits_that_it_has_alone(
    dtype: str,
    workers: int,
    isa: str,
    model: Path,
    adapters: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MONOLANE_ISA", isa)
    asked = ["a", "", "b", "a"]
    prompts = [IDS[:99], IDS[:70], IDS[:90], IDS[5:9]]

    def run(executor: Any, slots: list[int]) -> dict[int, list[tuple[int, object]]]:
        for slot in slots:
            executor.truncate(slot, 0)
            executor.adapt(slot, ["", "a", "b"].index(asked[slot]))
        executor.start(
            [Advance(slot=i, token_ids=tuple(prompts[i]), budget=20, logprobs=2) for i in slots]
        )
        events: list[TokenEvent] = []
        while not executor.read(0.1):
            pass
        events += executor.take()
        return {i: [(e.token_id, e.logprob) for e in events if e.slot == i] for i in slots}

    options: dict[str, Any] = {"max_sequences": 4, "workers": workers}
    with (
        Engine.load(model, "cpu", dtype, lora=adapters, **options) as engine,
        Engine.load(model, "cpu", dtype, **options) as plain,
    ):
        together = run(engine.backend.executor, [0, 1, 2, 3])
        for i in range(4):
            assert run(engine.backend.executor, [i])[i] == together[i]
        asked[:] = [""] * 4
        assert run(plain.backend.executor, [1])[1] == together[1]
        assert run(plain.backend.executor, [0])[0] != together[0]
        assert together[0] != together[2]


def test_a_model_without_an_adapter_in_use_has_its_own_bits(
    model: Path, adapters: dict[str, Path]
) -> None:
    with Engine.load(model, "cpu") as plain, Engine.load(model, "cpu", lora=adapters) as engine:
        wanted, other = (
            plain.generate(IDS[:50], GREEDY),
            engine.generate(IDS[:50], GREEDY, lora="a"),
        )
        found = engine.generate(IDS[:50], GREEDY)
    assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
    assert other.logprobs != wanted.logprobs


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_copy_of_a_sequence_has_its_adapter(
    backend: str, model: Path, adapters: dict[str, Path]
) -> None:
    with Engine.load(model, backend, lora=adapters, max_sequences=2) as engine:
        executor = engine.backend.executor
        executor.adapt(0, 2)
        executor.logits(0, IDS[:20])
        executor.copy(0, 1)
        assert np.array_equal(executor.logits(1, IDS[20:25]), executor.logits(0, IDS[20:25]))
        with pytest.raises(RequestError, match="expected an empty slot, got one with 25 tokens"):
            executor.adapt(1, 0)
        executor.truncate(1, 0)
        with pytest.raises(RequestError, match="expected an adapter from 0 to 2, got 3"):
            executor.adapt(1, 3)


def test_prefixes_serve_requests_of_the_same_adapter_alone(
    model: Path, adapters: dict[str, Path]
) -> None:
    order = ["", "a", "b"]

    def answers(engine: Engine, name: str, **more: Any) -> tuple[Any, int]:
        found = engine.generate(IDS[:150], GREEDY, lora=name, **more)
        return (found.token_ids, found.logprobs), found.timings.cache_n

    with Engine.load(model, "cpu", lora=adapters, prefix_cache="off") as engine:
        wanted = [answers(engine, name)[0] for name in order]
    with Engine.load(model, "cpu", lora=adapters, prefix_cache="64M", max_sequences=2) as engine:
        for again in (False, True):
            for name, expected in zip(order, wanted, strict=True):
                found, kept = answers(engine, name)
                assert found == expected
                assert kept == (149 if again else 0)
        assert answers(engine, "a", namespace="other")[1] == 0


def test_prefixes_in_a_file_are_of_an_adapter_s_content(
    model: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    def answer(lora: dict[str, Path], name: str) -> tuple[Any, int]:
        with Engine.load(
            model, "cpu", lora=lora, prefix_cache="64M", prefix_file=tmp_path / "kept"
        ) as engine:
            found = engine.generate(IDS[:150], GREEDY, lora=name)
            return found.logprobs, found.timings.cache_n

    first, _ = answer(adapters, "a")
    # The same adapter under another name and place; then another one under its name.
    assert answer({"b": adapters["b"], "c": adapters["a"]}, "c") == (first, 149)
    other, kept = answer({"a": adapters["b"]}, "a")
    assert (kept, other == first) == (0, False)


@pytest.mark.parametrize("draft", ["int8", "suffix"])
def test_drafts_change_no_bit(draft: str, model: Path, adapters: dict[str, Path]) -> None:
    text = (IDS[:30] * 4)[:100]
    params = {
        x: SamplingParams(max_tokens=60, logprobs=1, speculation=x)  # type: ignore[arg-type]
        for x in ("off", "suffix", "auto")
    }
    more: dict[str, Any] = {"draft": draft} if draft != "suffix" else {}
    with Engine.load(model, "cpu", lora=adapters, prefix_cache="off", **more) as engine:
        plain = engine.generate(text, params["off"], lora="a")
        drafted = engine.generate(text, params["suffix" if not more else "auto"], lora="a")
    assert (drafted.token_ids, drafted.logprobs) == (plain.token_ids, plain.logprobs)


def test_drafts_that_are_told_change_no_bit(model: Path, adapters: dict[str, Path]) -> None:
    with Engine.load(model, "cpu", lora=adapters) as engine:
        executor = engine.backend.executor

        def run(drafts: list[int], count: int) -> list[Any]:
            executor.truncate(0, 0)
            executor.adapt(0, 1)
            executor.script(0, drafts)
            executor.start(
                [Advance(slot=0, token_ids=tuple(IDS[:40]), budget=30, drafts=count, logprobs=1)]
            )
            while not executor.read(0.1):
                pass
            return executor.take()

        plain = run([], 0)
        right = [*IDS[:40], *(event.token_id for event in plain)]
        mixed = [x if i % 3 else (x + 1) % 68 for i, x in enumerate(right)]
        for drafts in (right, mixed):
            found = run(drafts, 5)
            assert sum(event.accepted > 0 for event in found) > 5
            assert [(e.token_id, e.logprob) for e in found] == [
                (e.token_id, e.logprob) for e in plain
            ]


def test_prompts_are_scored_and_read_by_the_adapter(model: Path, adapters: dict[str, Path]) -> None:
    with Engine.load(model, "cpu", lora=adapters) as engine:
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        scored = [engine.generate(IDS[:9], params, lora=x).prompt_logprobs for x in ("", "a")]
        assert scored[0] != scored[1]
        hidden = [engine.hidden(IDS[:9], lora=x) for x in ("", "a", "a")]
        assert np.array_equal(hidden[1], hidden[2])
        assert not np.array_equal(hidden[0], hidden[1])


@pytest.mark.parametrize("lora", ["adapter", {"": "adapter"}, ["x=adapter"]])
def test_an_adapter_without_a_name_is_of_all_requests(
    lora: Any,
    model: Path,
    adapters: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "adapter").symlink_to(adapters["a"])
    monkeypatch.chdir(tmp_path)
    with Engine.load(model, "cpu", lora=adapters) as engine:
        wanted = engine.generate(IDS[:9], GREEDY, lora="a").logprobs
        plain = engine.generate(IDS[:9], GREEDY).logprobs
    with Engine.load(model, "cpu", lora=lora) as engine:
        named = isinstance(lora, list)
        assert engine.generate(IDS[:9], GREEDY).logprobs == (plain if named else wanted)
        if named:
            assert engine.generate(IDS[:9], GREEDY, lora="x").logprobs == wanted


def test_gguf_models_take_the_adapter_of_their_folder(llama_gguf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    unpack_gguf(llama_gguf, folder)
    adapter = write_adapter(tmp_path / "adapter", folder, 5)
    for backend in BACKENDS:
        with Engine.load(folder, backend, lora=adapter) as engine:
            wanted = engine.logits(IDS[:30])
        with Engine.load(llama_gguf, backend, lora=adapter) as engine:
            found = engine.logits(IDS[:30])
        with Engine.load(folder, backend) as engine:
            plain = engine.logits(IDS[:30])
        scale = np.abs(wanted).max()
        assert np.abs(found - wanted).max() < 1e-5 * scale
        assert np.abs(plain - wanted).max() > 0.01 * scale


@pytest.mark.parametrize(
    ("lora", "expected"),
    [
        (["adapter"], r"expected NAME=FOLDER, such as sql=\./sql-adapter, got 'adapter'"),
        (["=x"], "expected NAME=FOLDER"),
        (["a=x", "a=y"], "expected each name once, got 'a' twice"),
        ({"a\n": "x"}, "expected names of at most 512 printable characters"),
        ({"a": 3}, "expected a folder of 'a', got 3"),
        (7, "expected a folder, or folders by name, got int"),
    ],
)
def test_what_names_no_adapter_is_refused(lora: Any, expected: str, model: Path) -> None:
    with pytest.raises(RequestError, match=f"^lora: {expected}"):
        Engine.load(model, "cpu", lora=lora)


def test_a_request_for_another_adapter_is_refused(model: Path, adapters: dict[str, Path]) -> None:
    with (
        Engine.load(model, "cpu", lora=adapters) as engine,
        pytest.raises(RequestError, match="of which there are 'a', 'b', got 'c'"),
    ):
        engine.generate(IDS[:3], lora="c")


def test_who_does_not_honour_it_refuses_it(model: Path, adapters: dict[str, Path]) -> None:
    with pytest.raises(RequestError, match=r"^lora: expected backend cpu or reference, got 'cuda'"):
        Engine.load(model, "cuda", lora=adapters)
    with pytest.raises(
        RequestError, match=r"^lora: expected 1 rank, got 2: each of them has a part"
    ):
        Engine.load(model, "cpu", lora=adapters, ranks=2)

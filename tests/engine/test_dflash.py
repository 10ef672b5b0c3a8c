"""DFlash and DSpark drafters from folders: what is computed, what is drafted, and what is refused.

No published drafter is at hand. Here are random ones in their authors' layout; what the authors'
code computes is written down a second time with torch.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.engine import ModelFiles
from monolane.errors import CheckpointError, ConfigError, RequestError
from monolane.executor_api import Advance
from monolane.model import Dflash, Role, Weights
from monolane.reference import ReferenceDflash, ReferenceModel, gumbel_noise
from tests.drafters import ROUNDED, save_drafter
from tests.random_models import write_random_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
qwen3 = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")

D, F, H, K, h, V, B = 64, 96, 4, 2, 32, 40, 5
RANK = 6  # of a Markov head
BEST = 256  # tokens of a row that it may draw (csrc/draft/markov_head.cpp)
LAYERS, COUNT, STREAMS = 8, 2, 3  # of the model, of the drafter, and places of the stream
MASK = 39
IDS = (1, 3, 6)
MODEL: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": D,
    "intermediate_size": F,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": H,
    "num_key_value_heads": K,
    "head_dim": h,
    "vocab_size": V,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
# Every second layer of another kind, with states that cannot go back.
HYBRID = MODEL | {
    "model_type": "qwen3_5_text",
    "layer_types": ["linear_attention", "full_attention"] * (LAYERS // 2),
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 8,
    "partial_rotary_factor": 0.5,
}
OWN = {"target_layer_ids": list(IDS), "mask_token_id": MASK}
DRAFTER: dict[str, Any] = MODEL | {
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": COUNT,
    "num_target_layers": LAYERS,
    "block_size": B,
    "dflash_config": OWN,
}
WINDOWED = {
    "layer_types": ["sliding_attention", "full_attention"],
    "use_sliding_window": True,
    "sliding_window": 12,
    "max_window_layers": 0,
}
DSPARK = OWN | {
    "architectures": ["Qwen3DSparkModel"],
    "dflash_config": None,
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "num_anchors": 512,
}
CONFIDENT = DSPARK | {"enable_confidence_head": True, "confidence_head_with_markov": True}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a window": WINDOWED,
    "causal": {"dflash_config": OWN | {"causal": True}},
    "short blocks": {"block_size": 3, "architectures": ["Qwen3DFlashDraftModel"]},
    "DSpark": DSPARK,
    "DSpark that is confident": CONFIDENT,
    "DSpark of the embeddings": CONFIDENT
    | {"target_layer_ids": [-1, 3, 6], "confidence_head_with_markov": False},
}
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]
HOT, SEED = 8.0, 5


def drafter_tensors(
    prefix: str = "", vocab: int = V, kind: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What a folder of a drafter holds, random."""
    kind = kind or {}
    rng = np.random.default_rng(1)

    def make(*shape: int, mean: float = 0.0) -> Any:
        return (mean + rng.normal(scale=0.2, size=shape)).astype(np.float32)

    found = {
        "fc.weight": make(D, STREAMS * D),
        "hidden_norm.weight": make(D, mean=1.0),
        "norm.weight": make(D, mean=1.0),
    }
    for i in range(COUNT):
        layer = f"layers.{i}."
        found |= {
            f"{layer}self_attn.q_proj.weight": make(H * h, D),
            f"{layer}self_attn.k_proj.weight": make(K * h, D),
            f"{layer}self_attn.v_proj.weight": make(K * h, D),
            f"{layer}self_attn.o_proj.weight": make(D, H * h),
            f"{layer}self_attn.q_norm.weight": make(h, mean=1.0),
            f"{layer}self_attn.k_norm.weight": make(h, mean=1.0),
            f"{layer}mlp.gate_proj.weight": make(F, D),
            f"{layer}mlp.up_proj.weight": make(F, D),
            f"{layer}mlp.down_proj.weight": make(D, F),
            f"{layer}input_layernorm.weight": make(D, mean=1.0),
            f"{layer}post_attention_layernorm.weight": make(D, mean=1.0),
        }
    if "markov_rank" in kind:
        found |= {
            "embed_tokens.weight": make(vocab, D),
            "lm_head.weight": make(vocab, D),
            "markov_head.markov_w1.weight": 3 * make(vocab, RANK),
            "markov_head.markov_w2.weight": 3 * make(vocab, RANK),
        }
    if "enable_confidence_head" in kind:
        wide = D + RANK * kind["confidence_head_with_markov"]
        found |= {
            "confidence_head.proj.weight": make(1, wide),
            "confidence_head.proj.bias": make(1),
        }
    return {prefix + name: x for name, x in found.items()}


def write_drafter(
    folder: Path, leave_out: tuple[str, ...] = (), prefix: str = "", **changed: Any
) -> Path:
    """Write a drafter; what is changed is a field of its config, or a tensor."""
    tensors = drafter_tensors(prefix, changed.get("vocab_size", V), changed)
    return save_drafter(folder, DRAFTER, tensors, leave_out, changed)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("model"), MODEL, scale=0.2)


@pytest.fixture(scope="module", params=KINDS)
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter"), **KINDS[request.param])


@pytest.fixture(scope="module")
def plain_drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("plain"))


def theirs(folder: Path, embedding: Any, head: Any, token: int, streams: Any) -> tuple[Any, Any]:
    """The method in torch, behind tokens that were read with their streams [S, nD]."""
    raw = json.loads((folder / "config.json").read_text())
    config = transformers.Qwen3Config(**raw)
    fields = raw["dflash_config"] or raw
    w = pytest.importorskip("safetensors.torch").load_file(folder / "model.safetensors")
    eps, block = config.rms_norm_eps, raw["block_size"]
    norm = lambda x, name: torch.nn.functional.rms_norm(x, x.shape[-1:], w[name], eps)  # noqa: E731
    context = norm(torch.from_numpy(streams) @ w["fc.weight"].T, "hidden_norm.weight")
    x = torch.from_numpy(embedding[[token] + [fields["mask_token_id"]] * (block - 1)])
    count = len(streams) + block
    turn = qwen3.Qwen3RotaryEmbedding(config)
    cosine, sine = turn(x, torch.arange(count)[None])
    row, key = torch.arange(len(streams), count)[:, None], torch.arange(count)[None]
    for i in range(COUNT):
        at = f"layers.{i}."
        own = norm(x, at + "input_layernorm.weight")
        both = torch.cat([context, own])
        parts = []
        for name, rows in (("q", own), ("k", both), ("v", both)):
            part = (rows @ w[f"{at}self_attn.{name}_proj.weight"].T).view(len(rows), -1, h)
            part = part if name == "v" else norm(part, f"{at}self_attn.{name}_norm.weight")
            parts.append(part.transpose(0, 1)[None])
        q, k, v = parts
        turned = torch.zeros(1, H, count, h)
        turned[:, :, len(streams) :] = q
        q = qwen3.apply_rotary_pos_emb(turned, turned, cosine, sine)[0][:, :, len(streams) :]
        k = qwen3.apply_rotary_pos_emb(k, k, cosine, sine)[0]
        seen = key <= row if fields.get("causal") else torch.ones(block, count) > 0
        if config.layer_types[i] == "sliding_attention":
            seen = seen & (key > row - config.sliding_window)
        said = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, enable_gqa=True
        )
        x = x + said[0].transpose(0, 1).reshape(block, -1) @ w[f"{at}self_attn.o_proj.weight"].T
        inner = norm(x, at + "post_attention_layernorm.weight")
        gate, up = (inner @ w[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (torch.nn.functional.silu(gate) * up) @ w[f"{at}mlp.down_proj.weight"].T
    read = norm(x, "norm.weight")
    said = read if "markov_rank" in raw else read[1:]
    return (said @ torch.tensor(head).T).numpy(), read.numpy()


def oracle(model: Path, drafter: Path, **options: Any) -> tuple[Weights, ReferenceDflash]:
    weights = ModelFiles.open(model).weights()
    embedding, head = (weights.outer[x].reshape(-1, D) for x in (Role.EMBEDDING, Role.HEAD))
    return weights, ReferenceDflash(Dflash.open(drafter), embedding, head, **options)


def test_the_oracle_is_what_torch_computes(model: Path, drafter: Path) -> None:
    weights, mine = oracle(model, drafter)
    embedding, head = (weights.outer[x].reshape(V, D) for x in (Role.EMBEDDING, Role.HEAD))
    streams = np.random.default_rng(3).normal(size=(30, STREAMS * D)).astype(np.float32)
    logits, read = mine.forward(7, streams)
    their_logits, their_read = theirs(drafter, embedding, head, 7, streams)
    # Sums of up to 192 products of float32, some ten one behind the other, of numbers up to 30.
    np.testing.assert_allclose(read, their_read, atol=3e-4)
    np.testing.assert_allclose(logits, their_logits, atol=3e-4)
    assert np.ptp(logits) > 1
    assert len(logits) == mine.dflash.drafted


def test_a_markov_head_is_what_torch_computes(model: Path, tmp_path: Path) -> None:
    """And the chance that the confidence says; a folder of another kind has neither."""
    for kind in (CONFIDENT, KINDS["DSpark of the embeddings"]):
        mine = oracle(model, write_drafter(tmp_path, **kind))[1]
        w = drafter_tensors(kind=kind)
        first, second = (torch.tensor(w[f"markov_head.markov_w{i}.weight"]) for i in (1, 2))
        row = torch.nn.functional.embedding(torch.tensor(7), first)
        moved = torch.nn.functional.linear(row, second)
        np.testing.assert_allclose(mine.moved(7), moved.numpy(), atol=1e-5)
        read = torch.arange(D) / D
        given = torch.cat([read, row]) if kind["confidence_head_with_markov"] else read
        said = torch.nn.functional.linear(
            given,
            torch.tensor(w["confidence_head.proj.weight"]),
            torch.tensor(w["confidence_head.proj.bias"]),
        )
        assert mine.chance(7, read.numpy()) == pytest.approx(said.sigmoid().item(), abs=1e-6)
    plain = oracle(model, write_drafter(tmp_path))[1]
    with pytest.raises(ValueError, match="expected a DSpark drafter"):
        plain.moved(7)
    unsure = oracle(model, write_drafter(tmp_path, **DSPARK))[1]
    with pytest.raises(ValueError, match="expected a drafter with a confidence"):
        unsure.chance(7, np.zeros(D, np.float32))


@pytest.mark.parametrize(
    ("layers", "count", "expected"), [(36, 5, (1, 9, 17, 25, 33)), (28, 1, (14,)), (8, 2, (1, 5))]
)
def test_layers_that_are_not_named_are_spread(
    tmp_path: Path, layers: int, count: int, expected: tuple[int, ...]
) -> None:
    """As build_target_layer_ids of the authors' code spreads them; fc has to fit."""
    own = {"mask_token_id": MASK}
    folder = write_drafter(
        tmp_path, dflash_config=own, num_target_layers=layers, num_hidden_layers=count
    )
    with pytest.raises(
        CheckpointError, match=rf"\[64, {D * count}\].*\[64, {D * STREAMS}\]|layers\.2"
    ):
        Dflash.open(folder)
    streams = np.zeros((D, D * count), np.float32)
    more = {"fc.weight": streams, "dflash_config": own, "num_target_layers": layers}
    if count <= COUNT:
        extra = tuple(x for x in drafter_tensors() if x.startswith("layers.1.") and count == 1)
        found = Dflash.open(write_drafter(tmp_path, extra, num_hidden_layers=count, **more))
        assert found.read_behind == expected


@pytest.mark.usefixtures("three_drafts")
def test_what_is_drafted_is_what_the_oracle_drafts(model: Path, drafter: Path) -> None:
    """Counted: each pass drafts a block, and the model takes those that it draws itself.

    The drafter draws with the sequence's own noise, so that even a random one is often right. The
    model's streams are the oracle's but for 1e-6, by which a number may get another code: that
    moves logits by up to 0.17 here. So answers with a draw that is closer tell nothing.
    """
    weights, mine = oracle(model, drafter, rounded=ROUNDED)
    seeds = range(0, 30, 3)
    telling, drafted, accepted = 0, 0, 0
    with Engine.load(
        model, "cpu", dtype="float32", draft=drafter, workers=2, prefix_cache="off"
    ) as engine:
        assert engine.backend.executor.drafter == "heads"
        for seed in seeds:
            prompt = (PROMPT * 12)[: len(PROMPT) + 3 * seed]  # up to two steps to read
            params = SamplingParams(
                max_tokens=12, temperature=HOT, seed=seed, speculation="heads", logprobs=0
            )
            found = engine.generate(prompt, params)
            plain = engine.generate(prompt, replace(params, speculation="off"))
            assert (found.token_ids, found.logprobs) == (plain.token_ids, plain.logprobs)
            expected = counts(weights, mine, prompt, found.token_ids, seed)
            if expected is None:
                continue
            timings = found.timings.drafters["heads"]
            assert (timings["draft_n"], timings["draft_n_accepted"]) == expected
            telling += 1
            drafted += expected[0]
            accepted += expected[1]
    assert telling > len(seeds) / 2
    assert drafted / 10 < accepted < drafted * 0.9  # so that the counts tell something


def counts(
    weights: Weights, mine: ReferenceDflash, prompt: list[int], drawn: list[int], seed: int
) -> tuple[int, int] | None:
    """Return how many tokens are drafted and right; None where a draw is too close to tell."""
    ids, at = [*prompt, *drawn], len(prompt) + 1
    reference = ReferenceModel(weights)
    each = reference.streams(ids, reference.new_cache(), mine.dflash.read_before)
    streams = np.concatenate(each, axis=-1)
    drafted, accepted = 0, 0
    while at < len(ids):
        count = min(3, mine.dflash.drafted, len(ids) - at - 1)
        logits, _ = mine.forward(ids[at - 1], streams[: at - 1])
        right, before = 0, ids[at - 1]
        for i in range(count):
            row = logits[i]
            if mine.dflash.markov is not None:
                row = np.full_like(row, -np.inf)
                best = np.argsort(-logits[i], kind="stable")[:BEST]
                row[best] = (logits[i] + mine.moved(before))[best]
            noisy = row / np.float32(HOT) + gumbel_noise(seed, at + i, np.arange(len(row)))
            second, first = np.sort(noisy)[-2:]
            if first - second < 0.2 / HOT:
                return None
            before = int(noisy.argmax())
            if right == i and before == ids[at + i]:
                right += 1
        drafted, accepted, at = drafted + count, accepted + right, at + right + 1
    return drafted, accepted


def test_a_token_is_drawn_of_the_best_that_the_one_before_has_moved(tmp_path: Path) -> None:
    """Of more tokens than are looked at: a text that the oracle drafts is drafted so."""
    vocab, count = 3 * BEST, 4
    wide = {"vocab_size": vocab}
    folder = write_random_model(tmp_path / "model", MODEL | wide, scale=0.2)
    name = "markov_head.markov_w2.weight"
    strong = {name: 12 * drafter_tensors(vocab=vocab, kind=DSPARK)[name]}
    drafter = write_drafter(tmp_path / "drafter", **DSPARK, **wide, **strong)
    weights, mine = oracle(folder, drafter, rounded=ROUNDED)
    reference, ids, outside = ReferenceModel(weights), list(PROMPT), 0
    ids.append(9)
    for _ in range(8):
        each = reference.streams(ids[:-1], reference.new_cache(), mine.dflash.read_before)
        logits, _ = mine.forward(ids[-1], np.concatenate(each, axis=-1))
        for row in logits[:count]:
            best = np.sort(np.argsort(-row, kind="stable")[:BEST])
            moved = row + mine.moved(ids[-1])
            outside += int(moved.argmax() not in best)
            ids.append(int(best[moved[best].argmax()]))
        ids.append(9)
    assert outside > 2  # so that another rule would have drafted another text
    with Engine.load(folder, "cpu", dtype="float32", draft=drafter, workers=2) as engine:
        executor = engine.backend.executor
        executor.script(0, draws=ids)
        budget = len(ids) - len(PROMPT)
        executor.start(
            [
                Advance(
                    slot=0,
                    token_ids=tuple(PROMPT),
                    budget=budget,
                    drafts=count,
                    drafter="heads",
                    prompt=len(PROMPT),
                )
            ]
        )
        events = []
        while not executor.read(0.1):
            events += executor.take()
        events += executor.take()
    assert [event.token_id for event in events] == ids[len(PROMPT) :]
    drafted = sum(event.drafted for event in events)
    accepted = sum(event.accepted > 0 for event in events)
    assert drafted >= 8 * count
    assert accepted > 0.9 * 8 * count  # a number may get another code, where two are close


@pytest.mark.usefixtures("three_drafts")
@pytest.mark.parametrize(
    "more",
    [{}, {"temperature": 0.9, "seed": 4, "top_p": 0.9}, {"frequency_penalty": 0.4}],
    ids=["greedy", "sampled", "penalised"],
)
def test_answers_stay_the_same(model: Path, plain_drafter: Path, more: dict[str, Any]) -> None:
    """Behind a kept prefix, of prompts that are longer than a pass, and of many at once."""
    params = SamplingParams(max_tokens=40, logprobs=2, **more)
    prompts = [(PROMPT * 20)[: 90 + i] for i in range(15)]  # more blocks than a step holds
    with Engine.load(
        model, "cpu", dtype="float32", draft=plain_drafter, max_sequences=15, prefix_cache="64M"
    ) as engine:
        plain = engine.generate_all(prompts, replace(params, speculation="off"))
        for _ in range(2):
            for mine, other in zip(engine.generate_all(prompts, params), plain, strict=True):
                assert (mine.token_ids, mine.logprobs) == (other.token_ids, other.logprobs)
                assert mine.timings.draft_n > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.usefixtures("three_drafts")
def test_a_model_with_states_and_in_fewer_bits(
    plain_drafter: Path, tmp_path: Path, dtype: str
) -> None:
    """The head is the model's, as it is multiplied; states go back behind wrong drafts."""
    folder = write_random_model(tmp_path / "hybrid", HYBRID, scale=0.2)
    params = SamplingParams(max_tokens=40, temperature=HOT, seed=SEED, logprobs=0)
    with Engine.load(folder, "cpu", dtype=dtype, draft=plain_drafter, workers=2) as engine:
        plain = engine.generate(PROMPT, replace(params, speculation="off"))
        found = engine.generate(PROMPT, replace(params, speculation="heads"))
    assert (found.token_ids, found.logprobs) == (plain.token_ids, plain.logprobs)
    assert 0 < found.timings.draft_n_accepted < found.timings.draft_n


def test_names_may_begin_with_model(plain_drafter: Path, tmp_path: Path) -> None:
    plain = Dflash.open(plain_drafter)
    found = Dflash.open(write_drafter(tmp_path, prefix="model."))
    np.testing.assert_array_equal(found.fc, plain.fc)
    for mine, other in zip(found.layers, plain.layers, strict=True):
        for name, array in mine.items():
            np.testing.assert_array_equal(array, other[name])


def test_what_does_not_fit_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    def refused(error: type[Exception], match: str, *out: str, **changed: Any) -> None:
        with pytest.raises(error, match=match):
            Engine.load(model, "cpu", draft=write_drafter(tmp_path, out, **changed))

    refused(ConfigError, "vocab_size: expected 40, the model's, got 41", vocab_size=41)
    refused(ConfigError, "num_target_layers: expected 8, the model's, got 9", num_target_layers=9)
    refused(CheckpointError, r"q_proj.weight: expected .*\[128, 32\].* got", hidden_size=32)
    refused(CheckpointError, "hidden_norm.weight: expected it", "hidden_norm.weight")
    refused(CheckpointError, "expected the tensors of a DFlash drafter", num_hidden_layers=1)
    refused(ConfigError, "attention_bias: expected false", attention_bias=True)
    refused(ConfigError, "block_size: expected at most 64", block_size=65)
    refused(ConfigError, "no more than a window", **WINDOWED, block_size=13)
    mask = {"dflash_config": OWN | {"mask_token_id": V}}
    refused(ConfigError, "mask_token_id: expected one of the model's 40 tokens, got 40", **mask)
    none = {"dflash_config": {"target_layer_ids": list(IDS)}}
    refused(ConfigError, "mask_token_id: expected an integer", **none)
    last = {"dflash_config": OWN | {"target_layer_ids": [1, 3, 7]}}
    refused(ConfigError, "target_layer_ids: expected layers before the last of 8", **last)
    gated = DSPARK | {"markov_head_type": "gated"}
    refused(ConfigError, "markov_head_type: expected one of 'vanilla', got", **gated)
    refused(ConfigError, "markov_rank: expected an integer from 1", **DSPARK | {"markov_rank": 0})
    w1 = "markov_head.markov_w1.weight"
    refused(CheckpointError, "markov_w1.weight: expected it", w1, **DSPARK)
    refused(
        CheckpointError,
        "confidence_head.proj.bias: expected it",
        "confidence_head.proj.bias",
        **CONFIDENT,
    )
    beyond = DSPARK | {"target_layer_ids": [-1, 3, 7]}
    refused(ConfigError, "target_layer_ids: expected layers before the last", **beyond)
    refused(
        ConfigError, "got a DSpark drafter of another kind", architectures=["Gemma4DSparkModel"]
    )
    domino = drafter_tensors() | {"prefix_gru.weight_ih_l0": np.zeros((D, D), np.float32)}
    save_drafter(tmp_path, DRAFTER, domino, (), {})
    with pytest.raises(CheckpointError, match=r"got prefix_gru.* of a Domino head"):
        Engine.load(model, "cpu", draft=tmp_path)
    with pytest.raises(RequestError, match="draft: expected backend cpu"):
        Engine.load(model, "reference", draft=write_drafter(tmp_path))

"""Gemma 4's assistants: what is drafted is what Transformers drafts, token by token.

Models are random and small, with sizes that are multiples of nothing. What the model draws is
scripted: where a pass accepts a whole draft, each of its tokens was the scripted one.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.cpu import CpuExecutor
from monolane.engine import ModelFiles
from monolane.errors import BackendError, CheckpointError, ConfigError, RequestError
from monolane.executor_api import Advance
from monolane.model import Assistant, read_config

from .assistants import (
    ALIKE,
    CASES,
    CONTEXT,
    FULL,
    SIZES,
    SLIDING,
    WINDOW,
    Pair,
    V,
    make_model,
    make_pair,
    torch,
    transformers,
)

safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(CASES[request.param], tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Return a pair for what does not hang on its shapes."""
    return make_pair(CASES["values are keys, ordered"], tmp_path_factory.mktemp("one"))


def load(pair: Pair, workers: int = 2, slots: int = 1, **more: Any) -> CpuExecutor:
    files = ModelFiles.open(pair.folder)
    options = {"dtype": "float32", "context": CONTEXT, "slots": slots, "workers": workers} | more
    return CpuExecutor(files.weights(), draft=Assistant.open(pair.draft), **options)


@dataclass
class Script:
    """What a sequence's passes are to draw, and how much of each draft they accept then."""

    tokens: list[int]
    accepted: list[int]

    @staticmethod
    def of(
        pair: Pair, prompt: Sequence[int], rounds: Sequence[int], drafts: int, seen: int = CONTEXT
    ) -> "Script":
        """Write one: in each round so many drafted tokens are drawn, and then another one.

        ``seen``: see ``Pair.candidates``, of the first round.
        """
        rng = np.random.default_rng(len(prompt))
        made = Script([*prompt, int(rng.integers(V))], [0])
        for right in rounds:
            drafted = pair.candidates(made.tokens, drafts, seen)
            seen = CONTEXT
            made.tokens += drafted[:right]
            made.accepted += [*range(1, right + 1), 0]
            # Whatever is not the next drafted token ends the round, as its draw does behind all.
            avoided = drafted[right] if right < drafts else -1
            made.tokens.append(int(rng.choice([x for x in range(V) if x != avoided])))
        return made


def finish(executor: CpuExecutor, advances: Sequence[Advance]) -> dict[int, list[tuple[int, int]]]:
    """Run an epoch; return tokens and how many drafted ones each is the last of, by slots."""
    executor.start(advances)
    found: dict[int, list[tuple[int, int]]] = {advance.slot: [] for advance in advances}
    over = False
    while not over:
        over = executor.read(5.0)
        for event in executor.take():
            found[event.slot].append((event.token_id, event.accepted))
    return found


def asked(script: Script, prompt: int, drafts: int, slot: int = 0, fed: int = 0) -> Advance:
    history = tuple(script.tokens[:fed])
    return Advance(
        slot=slot,
        token_ids=tuple(script.tokens[fed:prompt]),
        budget=len(script.tokens) - prompt,
        drafts=drafts,
        drafter="heads",
        history=history,
        prompt=prompt,
    )


ROUNDS = (4, 4, 0, 3, 1, 4, 2, 4, 4, 0, 0, 4)


def prompt_of(count: int) -> list[int]:
    found: list[int] = np.random.default_rng(count).integers(V, size=count).tolist()
    return found


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("count", [1, 8, 11, 240], ids=lambda n: f"{n} tokens")
def test_what_is_drafted_is_what_transformers_drafts(pair: Pair, count: int, workers: int) -> None:
    """Behind prompts shorter than a window and longer, over a ring's wrap, after wrong drafts."""
    prompt = prompt_of(count)
    script = Script.of(pair, prompt, ROUNDS, 4)
    executor = load(pair, workers)
    assert executor.drafter == "heads"
    executor.script(0, draws=script.tokens)
    found = finish(executor, [asked(script, count, 4)])[0]
    assert [token for token, _ in found] == script.tokens[count:]
    assert [accepted for _, accepted in found] == script.accepted
    assert len(set(script.tokens[count:])) > 10  # or the drafts would say little


def test_another_token_is_not_taken_for_the_drafted_one(one: Pair) -> None:
    """The comparison above fails where a script says another token than what is drafted."""
    prompt = prompt_of(20)
    script = Script.of(one, prompt, (4,), 4)
    executor = load(one)
    for wrong in range(4):
        tokens = list(script.tokens)
        tokens[len(prompt) + 1 + wrong] = (tokens[len(prompt) + 1 + wrong] + 1) % V
        executor.truncate(0, 0)
        executor.script(0, draws=tokens)
        found = finish(executor, [asked(script, len(prompt), 4)])[0]
        assert [x for _, x in found][: wrong + 2] == [*range(wrong + 1), 0]


def test_several_sequences_draft_in_one_go(pair: Pair) -> None:
    """Of different lengths, and with drafts that end at different times."""
    counts = (5, 30, 17)  # all prompts go into the first pass
    rounds = [(4, 0, 4, 4), (1, 4, 4, 2), (4, 4, 3, 4)]
    executor = load(pair, slots=3)
    scripts = []
    for slot, (count, right) in enumerate(zip(counts, rounds, strict=True)):
        scripts.append(Script.of(pair, prompt_of(count), right, 4))
        executor.script(slot, draws=scripts[-1].tokens)
    found = finish(executor, [asked(scripts[i], counts[i], 4, slot=i) for i in range(3)])
    for slot, script in enumerate(scripts):
        assert [token for token, _ in found[slot]] == script.tokens[counts[slot] :]
        assert [accepted for _, accepted in found[slot]] == script.accepted


@pytest.mark.parametrize("behind", [1, 2])
@pytest.mark.parametrize("fed", [60, 300], ids=["short", "wrapped"])
def test_behind_a_kept_prefix_drafts_are_the_same(pair: Pair, fed: int, behind: int) -> None:
    """Of a ring a kept prefix holds what its next token sees, which is a key less than a draft.

    Directly behind it drafts do without that key: what was in its place before does not show.
    """
    count = fed + behind
    seen = WINDOW if behind == 1 else CONTEXT
    script = Script.of(pair, prompt_of(count), (4, 4, 1, 4), 4, seen)
    executor = load(pair, slots=2)
    finish(executor, [Advance(slot=0, token_ids=tuple(prompt_of(fed + 40)), budget=1)])
    executor.truncate(0, 0)
    finish(executor, [Advance(slot=1, token_ids=tuple(script.tokens[:fed]), budget=1)])
    executor.restore(0, executor.save(1, 0, fed), fed)
    executor.script(0, draws=script.tokens)
    found = finish(executor, [asked(script, count, 4, fed=fed)])[0]
    assert [accepted for _, accepted in found] == script.accepted


def token_ids(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> Any:
    found = engine.generate(list(prompt), params)
    return found.token_ids, found.logprobs


PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "seed": 4, "top_p": 0.9},
    "cold": {"temperature": 0.05, "seed": 3, "top_k": 5},
    "penalised": {"frequency_penalty": 0.4},
    "biased": {"temperature": 2.0, "seed": 1, "logit_bias": {3: 4.0, 7: -9.0}},
}


@pytest.mark.usefixtures("three_drafts")
@pytest.mark.parametrize("more", PARAMS.values(), ids=PARAMS)
def test_answers_stay_the_same(one: Pair, more: dict[str, Any]) -> None:
    """Behind a kept prefix, of prompts that are longer than a pass, and of several at once."""
    params = SamplingParams(max_tokens=40, logprobs=2, **more)
    prompts = [prompt_of(60 + 40 * i) for i in range(3)]
    options: dict[str, Any] = {"max_sequences": 3, "prefix_cache": "64M", "context": CONTEXT}
    with Engine.load(one.folder, "cpu", dtype="float32", draft=one.draft, **options) as engine:
        plain = engine.generate_all(prompts, replace(params, speculation="off"))
        for _ in range(2):
            for mine, other in zip(engine.generate_all(prompts, params), plain, strict=True):
                assert (mine.token_ids, mine.logprobs) == (other.token_ids, other.logprobs)
                assert mine.timings.drafters["heads"]["draft_n"] > 0


@pytest.mark.usefixtures("three_drafts")
def test_answers_stay_the_same_wherever_a_prompt_was_cut(one: Pair) -> None:
    """A slot that held more goes back to each of its places, and on from there."""
    params = SamplingParams(max_tokens=9, logprobs=1)
    prompt = prompt_of(30)
    with (
        Engine.load(one.folder, "cpu", dtype="float32", context=CONTEXT) as alone,
        Engine.load(
            one.folder, "cpu", dtype="float32", draft=one.draft, context=CONTEXT, prefix_cache="64M"
        ) as engine,
    ):
        for cut in [*range(1, 30, 4), 30, 29, 12, 28, 3]:
            assert token_ids(engine, prompt[:cut], params) == token_ids(alone, prompt[:cut], params)
            wrong = [*prompt[:cut], 5]
            assert token_ids(engine, wrong, params) == token_ids(alone, wrong, params)


# Of widths that codes take: groups of 32.
WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "global_head_dim": 64}


@pytest.mark.usefixtures("three_drafts")
@pytest.mark.parametrize(
    ("least", "options"),
    [
        (1 / 6, {"dtype": "bfloat16"}),
        (1 / 6, {"dtype": "int8"}),
        (None, {"dtype": "int4", "cache_dtype": "int4"}),
        (1 / 3, {"dtype": "float32", "cache_dtype": "int8"}),
        (1 / 2, {"dtype": "float32", "cache_dtype": "float16"}),
    ],
    ids=lambda x: " ".join(x.values()) if isinstance(x, dict) else "",
)
def test_in_every_precision_answers_stay_the_same(
    least: float | None, options: dict[str, Any], tmp_path: Path
) -> None:
    """And a part of what is drafted is what Transformers drafts in float32.

    How much says how far random numbers without meaning are from ties. By chance one token in 99
    would be right; in int4 it is not much more, and nothing is said of it.
    """
    pair = make_pair(CASES["values are keys, ordered"], tmp_path, **WIDE)
    prompt, params = prompt_of(70), SamplingParams(max_tokens=30, logprobs=1)
    with Engine.load(pair.folder, "cpu", draft=pair.draft, context=CONTEXT, **options) as engine:
        plain = token_ids(engine, prompt, replace(params, speculation="off"))
        assert token_ids(engine, prompt, params) == plain
    if least is None:
        return
    script = Script.of(pair, prompt, (4,) * 12, 4)
    executor = load(pair, **options)
    executor.script(0, draws=script.tokens)
    found = finish(executor, [asked(script, len(prompt), 4)])[0]
    right = sum(accepted > 0 for _, accepted in found)
    assert right >= least * sum(accepted > 0 for accepted in script.accepted)


@pytest.mark.alone
def test_drafts_follow_their_cost(one: Pair) -> None:
    """An assistant is tried, and where it is never right hardly ever again."""
    params, count = SamplingParams(max_tokens=300, speculation="heads"), 0
    options: dict[str, Any] = {"dtype": "float32", "context": CONTEXT, "max_sequences": 1}
    with Engine.load(one.folder, "cpu", draft=one.draft, **options) as engine:
        executor = engine.backend.executor
        assert isinstance(executor, CpuExecutor)
        for seed in range(3):
            prompt = prompt_of(20 + seed)
            executor.script(0, draws=[*prompt, *(5 + i % (V - 5) for i in prompt_of(300))])
            found = engine.generate(prompt, params).timings.drafters
            count += found["heads"]["draft_n"] if "heads" in found else 0
    assert 0 < count < 300


def change(folder: Path, **fields: Any) -> Path:
    """Change fields of a config.json; those of ``text`` lie in its text_config."""
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    raw["text_config"] |= fields.pop("text", {})
    path.write_text(json.dumps(raw | fields))
    return folder


@pytest.fixture
def copied(one: Pair, tmp_path: Path) -> Callable[..., Path]:
    """Copy the assistant's folder, with changes."""
    count = iter(range(100))

    def copy(tensors: dict[str, Any] | None = None, out: str = "", **fields: Any) -> Path:
        folder = Path(shutil.copytree(one.draft, tmp_path / str(next(count))))
        stored = safetensors.load_file(folder / "model.safetensors") | (tensors or {})
        stored.pop(out, None)
        safetensors.save_file(stored, folder / "model.safetensors", {"format": "pt"})
        return change(folder, **fields)

    return copy


def test_what_does_not_fit_is_refused_by_name(one: Pair, copied: Callable[..., Path]) -> None:
    def refused(error: type[Exception], match: str, *given: Any, **changes: Any) -> None:
        with pytest.raises(error, match=match):
            Engine.load(one.folder, "cpu", draft=copied(*given, **changes))

    names = [f"model.layers.{i}.self_attn" for i in range(4)]
    before = {"pre_projection.weight": torch.zeros(44, 128)}
    after = {"post_projection.weight": torch.zeros(64, 44)}
    refused(
        ConfigError,
        "backbone_hidden_size: expected 60, the model's, got 64; take the assistant",
        before | after,
        backbone_hidden_size=64,
    )
    refused(
        CheckpointError, r"pre_projection.weight: expected .*\[44, 128\]", backbone_hidden_size=64
    )
    fewer = {"model.embed_tokens.weight": torch.zeros(88, 44)}
    fewer |= {"masked_embedding.token_ordering": torch.arange(88)}
    refused(
        ConfigError, "vocab_size: expected 99, the model's, got 88", fewer, text={"vocab_size": 88}
    )
    refused(
        ConfigError, "sliding_window: expected 9 in layer 0, as layer 3", text={"sliding_window": 8}
    )
    refused(
        ConfigError,
        "num_key_value_heads: expected 2 in layer 0, as layer 3 of the model has it",
        text={"num_key_value_heads": 4},
    )
    refused(
        CheckpointError, f"{names[1]}.q_proj.weight: expected it", None, f"{names[1]}.q_proj.weight"
    )
    refused(CheckpointError, "got other, too", {"other": torch.zeros(3)})
    refused(
        ConfigError,
        "num_kv_shared_layers: expected 4, all layers",
        text={"num_kv_shared_layers": 2},
    )
    refused(ConfigError, "enable_moe_block: expected false", text={"enable_moe_block": True})
    sizes = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 99}
    refused(ConfigError, "hidden_size_per_layer_input: expected 0, got 8", text=sizes)
    refused(ConfigError, "text_config: expected an object", text_config=None)
    refused(
        ConfigError, "num_centroids: expected a divisor of the vocabulary's 99", num_centroids=10
    )
    refused(
        ConfigError,
        "centroid_intermediate_top_k: expected at most 11",
        centroid_intermediate_top_k=12,
    )
    order = torch.arange(99)
    order[3] = 4
    refused(
        CheckpointError, "token_ordering: expected ids", {"masked_embedding.token_ordering": order}
    )
    with pytest.raises(RequestError, match="draft: expected backend cpu"):
        Engine.load(one.folder, "reference", draft=one.draft)


def test_other_models_are_refused(one: Pair, tmp_path: Path) -> None:
    """Those of other families, and those that lack a kind of layers."""
    transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**SIZES | {"layer_types": [FULL]}, num_hidden_layers=1)
    ).save_pretrained(tmp_path / "gemma3")
    with pytest.raises(ConfigError, match="expected to draft for a Gemma 4 model.* got a gemma3"):
        Engine.load(tmp_path / "gemma3", "cpu", draft=one.draft)
    make_model(ALIKE | {"layer_types": [FULL, FULL]}).save_pretrained(tmp_path / "full")
    with pytest.raises(ConfigError, match="got one with a window, of which the model has none"):
        Engine.load(tmp_path / "full", "cpu", draft=one.draft)


def test_a_model_that_is_cut_into_lanes_is_refused(
    tmp_path: Path,
) -> None:
    sizes = WIDE | {"vocab_size": 100}
    pair = make_pair(({"layer_types": [SLIDING, FULL]}, [FULL], {}), tmp_path, **sizes)
    with pytest.raises(BackendError, match="expected a model in one lane, .* got 2 lanes"):
        load(pair, lanes=2)


def test_an_assistant_is_no_model(one: Pair) -> None:
    match = "expected a model, got 'gemma4_assistant', .* give this folder as its draft .--draft."
    with pytest.raises(ConfigError, match=match):
        read_config(one.draft)
    with pytest.raises(ConfigError, match=match):
        Engine.load(one.draft, "cpu")

"""Requests, drafts, prefixes, batches, grammars, penalties and cancels in any order: each request
gets the tokens and log-probabilities that it gets alone, to the bit.

With keys and values in codes, too: a backend's name has their dtype behind it. A case is made from
its number. Streams are read by one thread in a drawn order, so that a case that fails fails again.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.engine import Generation, Stream
from monolane.executor_api import Guide, TokenLogprob
from tests.random_models import write_random_model

VOCAB = 64
CONFIG: dict[str, Any] = {
    "model_type": "laneformer",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 700,
    "num_lanes": 2,
    "broadcast_delay": 1,
    "sliding_window": 16,
    "swa_layers": [0, 1],  # their rings hold 256 positions
    "torch_dtype": "float32",
}


CODED = CONFIG | {"hidden_size": 128}  # heads 32 wide, as codes need them


class Drafted(SamplingParams):
    """Seven drafts for each pass, whatever they cost: so small a model decides by noise."""

    @property
    def drafts(self) -> int:
        return 7


class Walk:
    """A grammar: masks and forced tokens that depend on all tokens before."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.tokens: list[int] = []

    def step(self, token_id: int | None) -> Guide:
        self.tokens += [] if token_id is None else [token_id]
        rng = np.random.default_rng(zlib.crc32(f"{self.seed} {self.tokens}".encode()))
        mask = np.zeros(VOCAB // 32, np.uint32)
        for token in rng.integers(3, VOCAB, size=rng.integers(1, 20)).tolist():
            mask[token // 32] |= np.uint32(1 << token % 32)
        count = rng.integers(1, 5) if rng.random() < 0.3 else 0
        forced = tuple(rng.integers(3, VOCAB, size=count).tolist())
        self.tokens += forced
        return Guide(None if len(self.tokens) > 30 else mask, forced)


@dataclass(frozen=True)
class Wish:
    """One request."""

    prompt: tuple[int, ...]
    params: SamplingParams  # without drafts
    drafted: bool
    grammar: int | None  # seed of a Walk
    namespace: str
    leaves: int | None  # pieces after which the client is gone

    @property
    def constraint(self) -> Walk | None:
        return None if self.grammar is None else Walk(self.grammar)


@dataclass
class Read:
    """A stream and what it has given."""

    wish: Wish
    stream: Stream
    pieces: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


LENGTHS = {  # of prompts; those that emulate or are slow on purpose get short ones
    "cpu": (1, 30, 64, 65, 150, 270, 400),
    "reference": (1, 30, 65),
    "cuda": (1, 9, 17),
}


def wish_of(rng: np.random.Generator, texts: list[list[int]], lengths: tuple[int, ...]) -> Wish:
    text = texts[rng.integers(len(texts))]
    tail = rng.integers(3, VOCAB, size=rng.integers(0, 4)).tolist()
    prompt = (*text[: rng.choice(lengths)], *tail)
    more: dict[str, Any] = {"max_tokens": int(rng.integers(1, 40)), "ignore_eos": True}
    if rng.random() < 0.7:
        more |= {"temperature": float(rng.choice([0.3, 1.0])), "seed": int(rng.integers(9))}
        more |= [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.05}][rng.integers(4)]
    more |= [
        {},
        {"frequency_penalty": 0.5, "presence_penalty": -0.5},
        {"repetition_penalty": 1.3},
        {"logit_bias": {int(rng.integers(3, VOCAB)): 4.0, 7: -np.inf}},
        {"stop_ids": tuple(rng.integers(3, VOCAB, size=3).tolist())},
    ][rng.integers(5)]
    if rng.random() < 0.1:
        more |= {"prompt_logprobs": 1}
    return Wish(
        prompt=prompt,
        params=SamplingParams(logprobs=int(rng.integers(4)), speculation="off", **more),
        drafted=bool(rng.random() < 0.7),
        grammar=int(rng.integers(4)) if rng.random() < 0.3 else None,
        namespace=str(rng.integers(2)),
        leaves=int(rng.integers(8)) if rng.random() < 0.25 else None,
    )


def shared_run(engine: Engine, rng: np.random.Generator, wishes: list[Wish]) -> list[Read]:
    """Answer all, as many at once as the engine has slots, in a drawn order of reading."""
    waiting, running, ended = list(wishes), [], []
    while waiting or running:
        room = len(running) < engine.backend.slots
        eager = 0.3 if engine.backend.slots <= 4 else 0.8  # so that many run at once
        if waiting and room and (not running or rng.random() < eager):
            wish = waiting.pop(0)
            params = drafted(wish.params) if wish.drafted else wish.params
            stream = engine.stream(wish.prompt, params, wish.constraint, namespace=wish.namespace)
            running.append(Read(wish, stream))
            continue
        read = running[rng.integers(len(running))]
        if read.pieces == read.wish.leaves:
            read.stream.cancel() if rng.random() < 0.5 else read.stream.close()
        piece = None
        if rng.random() < 0.3:  # as one thread does for many that sleep
            engine.backend.gather()
            piece = read.stream.gather()
        piece = piece or next(read.stream, None)
        if piece is None:
            running.remove(read)
            ended.append(read)
            continue
        read.pieces += 1
        read.token_ids += piece.token_ids
        read.logprobs += piece.logprobs
    return ended


def drafted(params: SamplingParams) -> SamplingParams:
    names = params.__dataclass_fields__
    return Drafted(**{name: getattr(params, name) for name in names} | {"speculation": "auto"})


# ---- the test ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, backend: str) -> Path:
    config = CODED if backend.endswith(("int8", "int4")) else CONFIG
    return write_random_model(tmp_path_factory.mktemp("windowed"), config)


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """A text without repetition, and one that repeats itself with edits."""
    rng = np.random.default_rng(1)
    part = rng.integers(3, VOCAB, size=50).tolist()
    edited = []
    for _ in range(10):
        part[rng.integers(50)] = int(rng.integers(3, VOCAB))
        edited += part
    return [rng.integers(3, VOCAB, size=500).tolist(), edited]


@pytest.fixture(scope="module")
def alone(folder: Path, backend: str) -> Iterator[Callable[[Wish], Generation]]:
    """Tells what a request gets that is the only one, without drafts and kept prefixes."""
    with load(folder, backend, prefix_cache="off") as engine:
        yield lambda wish: engine.generate(wish.prompt, wish.params, wish.constraint)


@pytest.fixture(scope="module")
def engines(folder: Path, backend: str) -> Iterator[list[Engine]]:
    """Kept for all cases: each finds what those before it have left. Of 16 sequences with codes."""
    budgets: list[int | str] = [30_000, "64M"] if backend.startswith("cpu") else ["auto"]
    all_slots = (1, 4, 16) if backend.startswith("cpu ") else (1, 4)
    made = [
        load(folder, backend, max_sequences=slots, prefix_cache=budget)
        for slots in all_slots
        for budget in budgets
    ]
    yield made
    for engine in made:
        engine.close()


def load(folder: Path, backend: str, **more: Any) -> Engine:
    name, _, cache_dtype = backend.partition(" ")
    return Engine.load(folder, name, cache_dtype=cache_dtype or "auto", **more)


def cases(backend: str, first: int) -> list[Any]:
    """Five hundred; the gate runs the first few."""
    later = pytest.mark.exhaustive
    return [pytest.param(backend, i, marks=() if i < first else later) for i in range(500)]


@pytest.mark.parametrize(
    ("backend", "seed"),
    [
        *cases("cpu", 12),
        *cases("cpu int8", 6),
        *cases("cpu int4", 6),
        *cases("reference", 3),
        *cases("reference int8", 1),
        *cases("reference int4", 1),
    ],
    indirect=["backend"],
)
def test_each_request_gets_what_it_gets_alone(
    backend: str, seed: int, engines: list[Engine], texts: list[list[int]], alone: Any
) -> None:
    check(seed, backend, engines, texts, alone)


def check(
    seed: int, backend: str, engines: list[Engine], texts: list[list[int]], alone: Any
) -> None:
    rng = np.random.default_rng(seed)
    engine, lengths = engines[seed % len(engines)], LENGTHS[backend.partition(" ")[0]]
    most = 9 if engine.backend.slots <= 4 else 25
    wishes = [wish_of(rng, texts, lengths) for _ in range(rng.integers(2, most))]
    for read in shared_run(engine, rng, wishes):
        expected = alone(read.wish)
        count = len(read.token_ids)
        assert (read.token_ids, read.logprobs) == (
            expected.token_ids[:count],
            expected.logprobs[:count],
        )
        if read.wish.leaves is None:
            assert read.stream.finish_reason == expected.finish_reason
            assert count == len(expected.token_ids)
            if read.wish.params.prompt_logprobs is not None:
                assert read.stream.prompt_logprobs == expected.prompt_logprobs

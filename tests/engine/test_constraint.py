"""Answers that a constraint guides: what is drawn, what is forced, when it ends, who waits."""

import threading
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.engine import Constraint
from monolane.errors import RequestError
from monolane.executor_api import Draw, Guide
from monolane.reference import choose

VOCAB = 320
SAMPLED = SamplingParams(max_tokens=40, temperature=1.3, top_k=30, top_p=0.95, seed=4)


def mask_of(*token_ids: int) -> np.ndarray:
    mask = np.zeros(VOCAB // 32, np.uint32)
    for token in token_ids:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


class Walk:
    """Masks and forced runs that depend on all tokens so far; ``delays`` seconds before each."""

    def __init__(self, length: int = 1000, delay: float = 0.0, forces: bool = True) -> None:
        self.length, self.delay, self.forces = length, delay, forces
        self.tokens: list[int] = []
        self.guides: list[tuple[int, Guide]] = []  # (tokens before it, guide)

    def step(self, token_id: int | None) -> Guide:
        self.tokens += [] if token_id is None else [token_id]
        rng = np.random.default_rng(zlib.crc32(bytes(str(self.tokens), "ascii")))
        time.sleep(self.delay * rng.random())
        forced = rng.integers(3, VOCAB, size=rng.integers(1, 6)) if rng.random() < 0.3 else ()
        guide = Guide(
            mask_of(*rng.integers(3, VOCAB, size=rng.integers(1, 60)).tolist()),
            tuple(int(i) for i in forced) if self.forces else (),
        )
        if len(self.tokens) + len(guide.forced) >= self.length:
            guide = Guide(None, guide.forced)
        self.guides.append((len(self.tokens), guide))
        self.tokens += guide.forced
        return guide


class Script:
    """The guides of a list, in order."""

    def __init__(self, *guides: Guide) -> None:
        self.guides = list(guides)
        self.told: list[int | None] = []

    def step(self, token_id: int | None) -> Guide:
        self.told.append(token_id)
        return self.guides.pop(0)


@pytest.fixture(scope="module", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def engine(tiny_model: Path, backend: str) -> Engine:
    return Engine.load(tiny_model, backend)


@pytest.mark.parametrize("delay", [0.0, 0.004])
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_every_token_is_forced_or_what_the_definition_chooses(
    engine: Engine, temperature: float, delay: float
) -> None:
    """Whether the guide is there before the pass is over or comes late."""
    bias = {7: 3.5, 90: -100, 44: -np.inf, 301: 0.1}
    params = SamplingParams(
        max_tokens=40, temperature=temperature, top_k=30, top_p=0.95, seed=4, logit_bias=bias
    )
    prompt = engine.prompt_ids("import sys")
    walk = Walk(delay=delay)
    answer = engine.generate(prompt, params, walk)
    assert len(answer.token_ids) == 40
    logits = engine.logits([*prompt, *answer.token_ids])
    seen = 0
    for start, guide in walk.guides:
        assert start == seen
        run = answer.token_ids[seen : seen + len(guide.forced)]
        assert run == guide.forced[: len(run)]
        seen += len(guide.forced)
        if seen >= 40:
            break
        draw = Draw(
            temperature=temperature,
            top_k=30,
            top_p=0.95,
            min_p=0.0,
            seed=4,
            logit_bias=tuple(bias.items()),
        )
        wanted = choose(logits[len(prompt) + seen - 1], draw, len(prompt) + seen, guide.mask)
        assert answer.token_ids[seen] == wanted
        seen += 1
    assert any(guide.forced for _, guide in walk.guides)


def test_log_probabilities_of_forced_tokens_cost_passes_but_change_nothing(engine: Engine) -> None:
    prompt = engine.prompt_ids("x = ")
    params = SamplingParams(max_tokens=40, temperature=1.3, seed=9)
    told = SamplingParams(max_tokens=40, temperature=1.3, seed=9, logprobs=2)
    plain, with_logprobs = (engine.generate(prompt, one, Walk()) for one in (params, told))
    assert with_logprobs.token_ids == plain.token_ids
    assert [one.token_id for one in with_logprobs.logprobs] == list(plain.token_ids)
    logits = engine.logits([*prompt, *plain.token_ids]).astype(np.float64)
    for i, one in enumerate(with_logprobs.logprobs):
        row = logits[len(prompt) + i - 1]
        # Of the model itself, not of what the mask left.
        assert abs(one.logprob - (row[one.token_id] - np.log(np.exp(row).sum()))) < 1e-4


@pytest.mark.parametrize("length", [1, 2, 7, 25])
def test_an_answer_ends_where_nothing_may_follow(engine: Engine, length: int) -> None:
    walk = Walk(length)
    answer = engine.generate("x", SAMPLED, walk)
    assert answer.token_ids == tuple(walk.tokens)
    assert answer.finish_reason == "stop"


def test_an_answer_may_be_over_before_it_begins(engine: Engine) -> None:
    answer = engine.generate("x", SAMPLED, Script(Guide(None)))
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("", (), "stop")
    assert engine.generate("x", SAMPLED).token_ids


def test_the_end_of_sequence_ends_it_and_is_not_told(engine: Engine) -> None:
    script = Script(Guide(mask_of(50)), Guide(mask_of(2)))
    answer = engine.generate("x", SAMPLED, script)
    assert (answer.token_ids, answer.finish_reason) == ((50, 2), "stop")
    assert script.told == [None, 50]


def test_the_budget_bounds_forced_tokens_too(engine: Engine) -> None:
    script = Script(Guide(mask_of(5), tuple(range(10, 30))))
    answer = engine.generate("x", SamplingParams(max_tokens=7), script)
    assert (answer.token_ids, answer.finish_reason) == (tuple(range(10, 17)), "length")


def test_a_ban_yields_to_the_mask(engine: Engine) -> None:
    banned = SamplingParams(max_tokens=1, temperature=1.0, logit_bias={9: -np.inf, 8: -np.inf})
    assert engine.generate("x", banned, Script(Guide(mask_of(9, 8)), Guide(None))).token_ids == (8,)


def test_bias_and_ban_without_a_constraint(engine: Engine) -> None:
    first = engine.generate("x", SamplingParams(max_tokens=1)).token_ids[0]
    banned = SamplingParams(max_tokens=1, logit_bias={first: -np.inf})
    assert engine.generate("x", banned).token_ids[0] != first
    wanted = SamplingParams(max_tokens=3, logit_bias={77: 100})
    assert engine.generate("x", wanted).token_ids == (77, 77, 77)
    with pytest.raises(RequestError, match="logit_bias: expected token ids from 0 to 319, got 320"):
        engine.generate("x", SamplingParams(logit_bias={320: 1}))


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (Guide(mask_of()), "expected a mask that allows a token"),
        (Guide(np.ones(9, np.uint32)), "expected a mask of 10 uint32 words, got uint32"),
        (Guide(np.ones(10, np.int64)), "expected a mask of 10 uint32 words, got int64"),
        (Guide(mask_of(5), (320,)), "expected forced tokens from 0 to 319, got 320"),
    ],
)
def test_a_faulty_constraint_is_named_and_the_engine_stays_usable(
    engine: Engine, guide: Guide, message: str
) -> None:
    for before in ((), (Guide(mask_of(5)),)):
        with pytest.raises(RequestError, match=message):
            engine.generate("x", SAMPLED, Script(*before, guide))
    assert engine.generate("x", SAMPLED).token_ids


def test_a_constraint_that_fails_ends_its_request_alone(engine: Engine) -> None:
    class Failing:
        def step(self, token_id: int | None) -> Guide:
            if token_id is None:
                return Guide(mask_of(5))
            raise RequestError("lost the place")

    with pytest.raises(RequestError, match="lost the place"):
        engine.generate("x", SAMPLED, Failing())
    assert engine.generate("x", SAMPLED).token_ids


def test_closing_an_answer_that_waits_for_its_guide(engine: Engine) -> None:
    stream = engine.stream("x", SAMPLED, Script(Guide(mask_of(5)), Guide(mask_of(6))))
    assert next(stream).token_ids == (5,)
    stream.close()
    assert engine.generate("x", SAMPLED).token_ids


def test_guided_and_free_answers_do_not_touch_each_other(tiny_model: Path, backend: str) -> None:
    """Who comes, goes and waits for guides at any time changes no token of anybody."""
    params = [SamplingParams(max_tokens=30, temperature=1.1, seed=s) for s in range(4)]

    def constraint(which: int, delay: float = 0.0) -> Constraint | None:
        return Walk(delay=delay, forces=which > 1) if which else None

    with Engine.load(tiny_model, backend, max_sequences=3) as engine:
        alone = [engine.generate("def f(x):", p, constraint(i)) for i, p in enumerate(params)]
        failures: list[str] = []

        def ask(worker: int) -> None:
            rng = np.random.default_rng(worker)
            for _ in range(8):
                which, keep = int(rng.integers(4)), int(rng.integers(1, 40))
                delay = 0.002 * int(rng.integers(2))
                got: tuple[int, ...] = ()
                with engine.stream("def f(x):", params[which], constraint(which, delay)) as stream:
                    for piece in stream:
                        got += piece.token_ids
                        if len(got) >= keep:
                            break
                if got != alone[which].token_ids[: len(got)] or not got:
                    failures.append(f"{which}: {got}")

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


@pytest.mark.parametrize("logprobs", [None, 2])
def test_drafts_do_not_change_what_is_guided(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, logprobs: int | None
) -> None:
    """With log-probabilities, forced tokens are drawn one by one."""
    params = replace(SAMPLED, logprobs=logprobs, speculation="suffix")
    with Engine.load(tiny_model, "cpu") as engine:
        plain = engine.generate([1, 2, 3], replace(params, speculation="off"), Walk())
        executor = engine.backend.executor
        for wrong in (0, 4):  # of so many drafted tokens one
            drafts = [1, 2, 3, *plain.token_ids]
            if wrong:
                drafts = [t if i % wrong else (t + 1) % VOCAB for i, t in enumerate(drafts)]
            engine.backend.truncate(0, 0)  # between epochs
            executor.script(0, drafts=drafts)
            with monkeypatch.context() as patch:
                patch.setattr(SamplingParams, "drafts", property(lambda params: 7))
                got = engine.generate([1, 2, 3], params, Walk(delay=0.001))
            assert (got.token_ids, got.logprobs) == (plain.token_ids, plain.logprobs)
            assert got.timings.draft_n_accepted > 10
            assert wrong or got.timings.draft_n_accepted == got.timings.draft_n

"""Where an answer ends, driven by an executor that plays a script instead of a model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monolane import Engine, SamplingParams
from monolane.engine._files import ModelFiles
from monolane.errors import BackendError
from monolane.executor_api import Advance, Executor, Guide, TokenEvent
from monolane.text import Tokenizer


class ScriptedExecutor(Executor):
    """Gives its groups of tokens one after the other; an exception among them is raised."""

    name, dtype, slots, context = "scripted", "none", 1, 1000

    def __init__(self, groups: list[list[int] | Exception]) -> None:
        self.groups = groups
        self.left: list[list[int] | Exception] = []
        self.kept: list[TokenEvent] = []

    def length(self, slot: int) -> int:
        return 0

    def truncate(self, slot: int, length: int) -> None:
        assert self.left == [], "an epoch runs"

    def logits(self, slot: int, token_ids: Sequence[int]) -> np.ndarray:
        raise AssertionError

    def start(self, advances: Sequence[Advance]) -> None:
        self.left = list(self.groups)

    def read(self, seconds: float) -> bool:
        if not self.left:
            return True
        group = self.left.pop(0)
        if isinstance(group, Exception):
            self.left = []
            raise group
        self.kept += [TokenEvent(0, token, 1) for token in group]
        return False

    def take(self) -> list[TokenEvent]:
        kept, self.kept = self.kept, []
        return kept

    def guide(self, slot: int, guide: Guide) -> None:
        raise AssertionError

    def interrupt(self) -> None:
        self.left = []


def play(folder: Path, groups: list[list[int] | Exception]) -> Engine:
    files = ModelFiles.open(folder)
    return Engine(files, ScriptedExecutor(groups), files.tokenizer(), 0.0)


def scripted(engine: Engine) -> ScriptedExecutor:
    assert isinstance(engine.backend.executor, ScriptedExecutor)
    return engine.backend.executor


def ids_of(folder: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.open(folder)
    assert tokenizer is not None
    return tokenizer.encode(text, add_special_tokens=False)


def test_end_of_sequence_ends_the_answer(tiny_model: Path) -> None:
    ids = ids_of(tiny_model, "pass")
    engine = play(tiny_model, [[*ids, 2, 50, 51], [52]])
    answer = engine.generate("x")
    assert (answer.text, answer.finish_reason) == ("pass", "stop")
    assert answer.token_ids == (*ids, 2)
    assert scripted(engine).left == []


def test_end_of_sequence_can_be_ignored(tiny_model: Path) -> None:
    answer = play(tiny_model, [[50, 2, 51]]).generate(
        "x", SamplingParams(max_tokens=3, ignore_eos=True)
    )
    assert (answer.token_ids, answer.finish_reason) == ((50, 2, 51), "length")


def test_stop_ids_end_it_too(tiny_model: Path) -> None:
    answer = play(tiny_model, [[50], [51, 52]]).generate("x", SamplingParams(stop_ids=(51,)))
    assert (answer.token_ids, answer.finish_reason) == ((50, 51), "stop")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cuts=st.lists(st.integers(1, 6), min_size=1, max_size=40))
def test_stop_texts_across_tokens_however_they_arrive(tiny_model: Path, cuts: list[int]) -> None:
    ids = ids_of(tiny_model, "return 1\n\ndef g(): END of it")
    groups, at = [], 0
    while at < len(ids):
        size = cuts[len(groups) % len(cuts)]
        groups.append(ids[at : at + size])
        at += size
    answer = play(tiny_model, groups).generate("x", SamplingParams(stop=("\n\ndef", " END")))
    assert (answer.text, answer.finish_reason) == ("return 1", "stop")
    prefix = Tokenizer.open(tiny_model).decode(list(answer.token_ids))
    assert "\n\ndef" in prefix
    assert "\n\ndef" not in Tokenizer.open(tiny_model).decode(list(answer.token_ids[:-1]))


def test_text_held_back_for_a_stop_comes_at_the_end(tiny_model: Path) -> None:
    ids = ids_of(tiny_model, "wait: EN")
    params = SamplingParams(stop=("END",), max_tokens=len(ids))
    answer = play(tiny_model, [[i] for i in ids]).generate("x", params)
    assert (answer.text, answer.finish_reason) == ("wait: EN", "length")


def test_characters_are_never_cut(tiny_model: Path) -> None:
    ids = ids_of(tiny_model, "π🙂x")
    pieces = list(
        play(tiny_model, [[i] for i in ids]).stream("x", SamplingParams(max_tokens=len(ids)))
    )
    assert "".join(piece.text for piece in pieces) == "π🙂x"
    assert all("\ufffd" not in piece.text for piece in pieces)
    broken = list(
        play(tiny_model, [[i] for i in ids[:1]]).stream("x", SamplingParams(max_tokens=1))
    )
    assert broken[-1].text == "\ufffd"


def test_a_failing_backend_raises_after_what_it_gave(tiny_model: Path) -> None:
    engine = play(tiny_model, [ids_of(tiny_model, "ok"), BackendError("lost the device")])
    stream = engine.stream("x")
    assert next(stream).text == "ok"
    with pytest.raises(BackendError, match="lost the device"):
        next(stream)
    assert scripted(engine).left == []
    scripted(engine).groups = [[50]]
    assert engine.generate("x", SamplingParams(max_tokens=1)).token_ids == (50,)

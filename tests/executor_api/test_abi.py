"""Requests and tokens across the border: both sides lay them out alike, and nothing is lost."""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from monolane import SamplingParams
from monolane._options import option
from monolane._structs import CPP, CUDA
from monolane.executor_api import (
    ADVANCE,
    DRAW,
    MAX_LOGPROBS,
    SETUP,
    TEXT_END,
    TOKEN,
    Advance,
    Draw,
    Loading,
    TokenEvent,
    TokenLogprob,
    cpp_header,
    pack,
    pack_setup,
    unpack_tokens,
)
from monolane.executor_api._abi import draw_struct, plain_draw, setup_struct

CSRC = Path(__file__).parents[2] / "csrc"


def test_the_committed_header_is_the_emitted_one() -> None:
    assert (CSRC / "abi/epoch_abi.h").read_text() == cpp_header(), "run: scripts/headers"


def test_every_parameter_of_a_draw_crosses() -> None:
    """A parameter that is not described would be dropped without a word."""
    named = {field.name for field in DRAW.fields} | {"logit_bias"}
    assert named == set(Draw.__dataclass_fields__)


def test_a_new_parameter_crosses_by_being_a_field() -> None:
    """What CONTRIBUTING.md promises of a sampling parameter."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class WiderDraw(Draw):
        sigma: float = option(0.0, kind="f32", meaning="0: all tokens")

    struct = draw_struct(WiderDraw)
    assert "float sigma;" in struct.declare(CPP)
    assert "f32 sigma;" in struct.declare(CUDA)
    assert struct.dtype.names == (*(DRAW.dtype.names or ()), "sigma")
    assert "    .sigma = 0,\n" in plain_draw(WiderDraw)
    # The engine fills it from the field of the same name of SamplingParams, or says which lacks.
    names = {x.name for x in fields(SamplingParams)}
    assert {x.name for x in fields(Draw)} <= names


def test_a_new_option_of_loading_crosses_by_being_a_field() -> None:
    """What CONTRIBUTING.md promises of an option of loading: to C++, and to other ranks."""

    @dataclass(frozen=True, slots=True)
    class WiderLoading(Loading):
        spin: int = option(3, "Turns.", kind="i32", ranks=True)

    struct = setup_struct(WiderLoading)
    assert "int32_t spin;" in struct.declare(CPP)
    assert struct.dtype.names == (*(SETUP.dtype.names or ()), "spin")


def test_a_setup_holds_what_was_found_and_what_was_asked() -> None:
    found = {"activation": 2, "kv_format": 1, "rank": 1, "segment": 5, "timed": True}
    found |= {"apart": False, "expert_file": -1, "delay_ns": 1 << 40}
    asked = Loading(max_sequences=3, ranks=2, expert_memory=1 << 33)
    (record,) = np.frombuffer(pack_setup(asked, **found), SETUP.dtype)
    assert {name: record[name].item() for name in SETUP.dtype.names or ()} == found | {
        "max_sequences": 3,
        "ranks": 2,
        "expert_memory": 1 << 33,
    }
    (record,) = np.frombuffer(pack_setup(Loading(), **found), SETUP.dtype)
    assert record["expert_memory"] == 0  # all are in memory


def test_advances_are_packed_with_their_lists() -> None:
    draw = Draw(
        temperature=0.5,
        top_k=40,
        top_p=0.9,
        min_p=0.1,
        seed=2**64 - 1,
        frequency_penalty=-0.5,
        presence_penalty=0.25,
        repetition_penalty=1.5,
        logit_bias=((3, 1.5), (9, -np.inf)),
    )
    first = Advance(slot=2, token_ids=(5, 6, 7), budget=9, draw=draw, stop_ids=frozenset((8, 2)))
    before = np.array([40, 41, 5], np.uint32)
    second = Advance(
        slot=0,
        token_ids=(1,),
        budget=1,
        logprobs=4,
        guided=True,
        history=before,
        prompt=2,
        earlier=(9, TEXT_END),
    )
    packed = pack([first, second])
    assert packed.records.dtype == ADVANCE.dtype
    assert packed.tokens.tolist() == [5, 6, 7, 1]
    assert packed.stops.tolist() == [2, 8]
    assert packed.biases.tolist() == [(3, 1.5), (9, -np.inf)]
    assert packed.history.tolist() == [40, 41, 5]
    assert packed.earlier.tolist() == [9, 2**32 - 1]
    one, two = packed.records
    assert {name: one["draw"][name].item() for name in DRAW.dtype.names or ()} == {
        "seed": 2**64 - 1,
        "top_p": 0.9,
        "min_p": 0.1,
        "temperature": 0.5,
        "top_k": 40,
        "frequency_penalty": -0.5,
        "presence_penalty": 0.25,
        "repetition_penalty": 1.5,
    }
    assert (one["slot"], one["budget"], one["logprobs"], one["guided"]) == (2, 9, -1, 0)
    assert (two["slot"], two["budget"], two["logprobs"], two["guided"]) == (0, 1, 4, 1)
    assert (one["prompt"], two["prompt"]) == (0, 2)
    lists = (
        ("tokens", (3, 1)),
        ("stops", (2, 0)),
        ("biases", (2, 0)),
        ("history", (0, 3)),
        ("earlier", (0, 2)),
    )
    for name, counts in lists:
        assert (one[f"{name}_begin"], two[f"{name}_begin"]) == (0, counts[0])
        assert (one[f"{name}_count"], two[f"{name}_count"]) == counts


def test_tokens_come_back_as_they_left() -> None:
    records = np.zeros(2, TOKEN.dtype)
    records["slot"], records["token"], records["time_ns"] = (1, 2), (70, 71), (2**40, 2**40 + 1)
    records["logprob"] = (np.nan, -0.5)
    records["top_count"] = (0, 2)
    records["top_token"][1, :2], records["top_logprob"][1, :2] = (71, 9), (-0.5, -2.0)
    assert unpack_tokens(records.view(np.uint8)) == [
        TokenEvent(1, 70, 2**40),
        TokenEvent(2, 71, 2**40 + 1, TokenLogprob(71, -0.5, ((71, -0.5), (9, -2.0)))),
    ]
    assert records.dtype["top_token"].shape == (MAX_LOGPROBS,)

"""Requests and tokens as they cross to native executors: structs with names, described once.

C++ gets them as csrc/abi/epoch_abi.h (``cpp_header``, committed; a test fails when it drifts), CUDA
as a part of its generated header, NumPy as ``Struct.dtype``. A sampling parameter that is a number
crosses as soon as it is a field of ``Draw``, and an option of loading as one of ``Loading``.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane._draw import Draw
from monolane._loading import Loading
from monolane._options import numbers_of
from monolane._structs import CPP, Field, Struct
from monolane.executor_api._request import DRAFTERS, Advance
from monolane.executor_api._token import GONE, NO_TOKEN, TokenEvent, TokenLogprob

MAX_LOGPROBS = 20  # alternatives reported with a token at most, as in the OpenAI API


def draw_struct(draw: type[Draw]) -> Struct:
    """Return the struct of a draw's numbers; its biases are a list of their own."""
    return Struct("Draw", tuple(Field(*x) for x in numbers_of(draw)))


def setup_struct(loading: type[Loading]) -> Struct:
    """Return the struct of what an executor is made with: what is found out, and what was asked."""
    found = (
        Field("delay_ns", "i64", "until a rank sees what another published; to measure a link"),
        Field("activation", "i32", "an Activation"),
        Field("kv_format", "i32", "a Format, of keys and values"),
        Field("rank", "i32", "which of the ranks this is"),
        Field("segment", "i32", "file descriptor of what rank 0 shares; -1: this is rank 0"),
        Field("timed", "u32", "1: phases take the times that set_times says"),
        Field("apart", "u32", "1: ranks share no memory, and are connected by connect"),
        Field("expert_file", "i32", "an empty one, which may be closed afterwards; -1: none"),
    )
    return Struct("Setup", (*found, *(Field(*x) for x in numbers_of(loading))))


DRAW = draw_struct(Draw)
SETUP = setup_struct(Loading)
BIAS = Struct(
    "LogitBias",
    (
        Field("token", "u32", "each once, in ascending order"),
        Field("value", "f32", "added to its logit; -infinity bans the token"),
    ),
)
# What one slot does in an epoch. Lists are flat, of all advances; this names the part of each.
ADVANCE = Struct(
    "AdvanceRecord",
    (
        Field("draw", "Draw"),
        Field("slot", "u32", "of the cache"),
        Field("budget", "u32", "tokens to draw at most"),
        Field("tokens_begin", "u32", "in the list of tokens to feed"),
        Field("tokens_count", "u32", "at least one"),
        Field("stops_begin", "u32", "in the list of ids that end the slot's epoch"),
        Field("stops_count", "u32", "may be none"),
        Field("biases_begin", "u32", "in the list of LogitBias"),
        Field("biases_count", "u32", "may be none"),
        Field("logprobs", "i32", "alternatives to report with each token; -1: nothing"),
        Field("guided", "u32", "1: every draw waits for a guide"),
        Field("drafts", "i32", "tokens to be drafted for a pass; -1: as many as pay"),
        Field("drafter", "u32", "whose drafts count: a place in DRAFTERS"),
        Field("history_begin", "u32", "in the list of tokens that the slot holds"),
        Field("history_count", "u32", "all of them, or none"),
        Field("prompt", "u32", "how many of history and tokens were given, not drawn"),
        Field("earlier_begin", "u32", "in the list of texts to draft from"),
        Field("earlier_count", "u32", "may be none"),
    ),
    parts=(DRAW,),
)
TOKEN = Struct(
    "TokenEvent",
    (
        Field("time_ns", "i64", "of CLOCK_MONOTONIC, as Python's time.perf_counter_ns"),
        Field("slot", "i32", "whose token it is"),
        Field("token", "i32", "its id, or kNoToken or kGone; see TokenEvent"),
        Field("logprob", "f32", "of the token, under the model itself; NaN if not asked for"),
        Field("drafted", "i32", "tokens drafted for its pass, with the first that this gave"),
        Field("accepted", "i32", "which of them it is, from 1 on; 0: none"),
        Field("drafter", "i32", "whose draft that was: a place in DRAFTERS; 0: none"),
        Field("top_count", "i32", "alternatives that follow"),
        Field("top_token", "i32", "the most probable, best first", length=MAX_LOGPROBS),
        Field("top_logprob", "f32", "theirs", length=MAX_LOGPROBS),
    ),
)
# When a worker was in a phase; waiting is the part from arrived to begun.
SPAN = Struct(
    "Span",
    (
        Field("arrived_ns", "i64", "of CLOCK_MONOTONIC, as the others"),
        Field("begun_ns", "i64", "when its waits were over"),
        Field("ended_ns", "i64", "when it was done"),
        Field("worker", "i32", "of the plan"),
        Field("phase", "i32", "index in the plan"),
        Field("width", "i32", "token positions of the pass"),
    ),
)

_TOP = """\
// Requests and tokens as they cross between Python and native code. Generated: do not edit.
// To write it anew: scripts/headers. Described in src/monolane/executor_api/_abi.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolane {
"""


@dataclass(frozen=True, slots=True)
class PackedAdvances:
    """The advances of an epoch as native executors read them."""

    records: npt.NDArray[np.void]  # ADVANCE [A]
    tokens: npt.NDArray[np.uint32]
    stops: npt.NDArray[np.uint32]
    biases: npt.NDArray[np.void]  # BIAS
    history: npt.NDArray[np.uint32]
    earlier: npt.NDArray[np.uint32]

    def lists(self) -> tuple[Any, ...]:
        """Return them as the CPU core takes them: records as bytes, lists as arrays."""
        records, biases = self.records.tobytes(), self.biases.tobytes()
        return records, self.tokens, self.stops, biases, self.history, self.earlier


def pack(advances: Sequence[Advance]) -> PackedAdvances:
    """Lay out advances."""
    records = np.zeros(len(advances), ADVANCE.dtype)
    tokens: list[int] = []
    stops: list[int] = []
    biases: list[tuple[int, float]] = []
    arrays: dict[str, list[npt.NDArray[np.uint32]]] = {"history": [], "earlier": []}
    for record, advance in zip(records, advances, strict=True):
        draw = advance.draw
        for field in DRAW.fields:
            record["draw"][field.name] = getattr(draw, field.name)
        record["slot"], record["budget"] = advance.slot, advance.budget
        record["logprobs"] = -1 if advance.logprobs is None else advance.logprobs
        record["drafts"], record["drafter"] = advance.drafts, DRAFTERS.index(advance.drafter)
        record["guided"], record["prompt"] = advance.guided, advance.prompt
        for name, found in arrays.items():
            values = np.asarray(getattr(advance, name), np.uint32)
            record[f"{name}_begin"], record[f"{name}_count"] = sum(map(len, found)), len(values)
            found.append(values)
        lists = (
            ("tokens", tokens, advance.token_ids),
            ("stops", stops, sorted(advance.stop_ids)),
            ("biases", biases, draw.logit_bias),
        )
        for name, whole, part in lists:
            record[f"{name}_begin"], record[f"{name}_count"] = len(whole), len(part)
            whole.extend(part)  # type: ignore[arg-type]
    return PackedAdvances(
        records,
        np.array(tokens, np.uint32),
        np.array(stops, np.uint32),
        np.array(biases, BIAS.dtype),
        **{name: np.concatenate([np.zeros(0, np.uint32), *a]) for name, a in arrays.items()},
    )


# A token's fields before the arrays. Not by NumPy: for as long as this takes, the reader of each
# token keeps a core from its worker, and its own code has been pushed out of the caches.
_HEAD = struct.Struct(
    "="
    + "".join({"i64": "q", "i32": "i", "f32": "f"}[x.kind] for x in TOKEN.fields if not x.length)
)


def unpack_tokens(records: npt.NDArray[np.uint8]) -> list[TokenEvent]:
    """Return the events of TOKEN records, as bytes."""
    events = []
    for begin in range(0, len(records), TOKEN.dtype.itemsize):
        head = _HEAD.unpack_from(records.data, begin)
        time_ns, slot, token, logprob, drafted, accepted, by, count = head
        described = None
        if logprob == logprob:  # NaN where nothing was asked for
            (record,) = records[begin : begin + TOKEN.dtype.itemsize].view(TOKEN.dtype)
            ids, logprobs = (record[name][:count] for name in ("top_token", "top_logprob"))
            top = tuple(zip(ids.tolist(), logprobs.tolist(), strict=True))
            described = TokenLogprob(token, logprob, top)
        drafter = DRAFTERS[by] if by else ""
        events.append(TokenEvent(slot, token, time_ns, described, drafted, accepted, drafter))
    return events


def pack_setup(loading: Loading, **found: int) -> bytes:
    """Return a Setup record; None is 0."""
    record = np.zeros(1, SETUP.dtype)
    for x in SETUP.fields:
        record[x.name] = found[x.name] if x.name in found else getattr(loading, x.name) or 0
    return record.tobytes()


def plain_draw(draw: type[Draw]) -> str:
    """Return the declaration of a draw with all parameters at their defaults."""
    defaults = {x.name: x.default for x in fields(draw)}
    values = (f"    .{name} = {defaults[name]:g},\n" for name, *_ in numbers_of(draw))
    return "".join(
        (
            "// The most probable token, without any limit or penalty.\n",
            f"constexpr Draw {CPP.member('plain_draw')} = {{\n",
            *values,
            "};\n",
        )
    )


def cpp_header() -> str:
    """Return the whole of csrc/abi/epoch_abi.h."""
    described = (DRAW, BIAS, ADVANCE, TOKEN, SPAN, SETUP)
    structs = [struct.declare(CPP) for struct in described]
    structs.insert(1, plain_draw(Draw))
    numbers = {"max_logprobs": MAX_LOGPROBS, "no_token": NO_TOKEN, "gone": GONE}
    constants = "".join(
        f"constexpr int32_t {CPP.member(name)} = {value};\n" for name, value in numbers.items()
    )
    return "\n".join([_TOP, constants, *structs, "}  // namespace monolane\n"])

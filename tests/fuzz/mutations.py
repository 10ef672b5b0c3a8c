"""How a small file becomes one that nobody would write: bytes, and the values of JSON.

Each takes a ``random.Random``, so an input is a function of its number.
"""

import json
import random
from typing import Any

# What counts, sizes and offsets are checked against, and beyond.
NUMBERS = (0, 1, 2, 3, 7, 8, 31, 32, 127, 255, 256, 65535, 1 << 20, (1 << 24) + 1, (1 << 31) - 1)
HUGE = (1 << 31, (1 << 32) - 1, 1 << 40, (1 << 62) + 1, (1 << 63) - 1, (1 << 64) - 1)
TEXTS = (
    "",
    "\0",
    "../x",
    "\x1b]0;x\x07",
    "a" * 300,
    "\ud7ff\uffff",
    "<s>",
    "None",
    "{e}{i}",
    "nan",
)


def mutate_bytes(rng: random.Random, data: bytes, head: int) -> bytes:
    """Return data with a few changes, most of them in its first ``head`` bytes."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        most = head if rng.random() < 0.9 else len(found)
        at = rng.randrange(max(1, min(most, len(found))))
        kind = rng.randrange(7)
        if kind == 0 and found:
            found[at % len(found)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            size = rng.choice((1, 2, 4, 8))
            value = rng.choice((*NUMBERS, *HUGE)) & ((1 << 8 * size) - 1)
            found[at : at + size] = value.to_bytes(size, "little")
        elif kind == 2:
            del found[at:]
        elif kind == 3:
            del found[at : at + rng.choice((1, 4, 8, 32))]
        elif kind == 4:
            found[at:at] = rng.randbytes(rng.choice((1, 4, 8, 32)))
        elif kind == 5:
            begin = rng.randrange(max(1, min(most, len(found))))
            found[at:at] = found[begin : begin + rng.choice((4, 16, 64))]
        else:
            found[at : at + 4] = rng.randbytes(4)
    return bytes(found)


def mutate_json(rng: random.Random, value: Any) -> str:
    """Return the text of a JSON value with a few of its parts changed."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = _changed(rng, value)
    text = json.dumps(value)
    if rng.random() < 0.05:
        return mutate_bytes(rng, text.encode(), len(text)).decode("utf-8", "replace")
    return text


def _changed(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.1:
            return {name: x for name, x in value.items() if name != key}
        if kind < 0.15:
            return value | {rng.choice(TEXTS): value[key]}
        return value | {key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        kind = rng.random()
        if kind < 0.1:
            return value[:at] + value[at + 1 :]
        if kind < 0.3:
            return value[: at + 1] * rng.choice((2, 3, 40))
        return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    return _other(rng, value)


def _other(rng: random.Random, value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice(
            (value + 1, value - 1, -value, value * 2, value << 20, float(value % 10**9))
        )
    return rng.choice(
        (
            *rng.sample(NUMBERS, 3),
            *rng.sample(HUGE, 2),
            *rng.sample(TEXTS, 3),
            *(-1, 0.5, 1e-40, 1e300, float("nan"), float("inf"), 10**400),
            *(None, True, False, [], {}, [value], {"type": value}, [[[[value]]]]),
        )
    )

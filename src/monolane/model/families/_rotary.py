"""How config.json spells the rotary embedding: in two places, and with five kinds of stretch.

    earlier   rope_theta, and rope_scaling with the stretch
    newer     rope_parameters with both (Transformers 5), in Gemma 3 one for each kind of layer

What Transformers takes for a field that is not there is taken here too.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from monolane.errors import ConfigError
from monolane.model._fields import Fields
from monolane.model._rotary import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    PairStyle,
    ProportionalScaling,
    Rotary,
    RotaryScaling,
    YarnScaling,
)
from monolane.ops import MAX_SIZE

FULL, WINDOWED = "full_attention", "sliding_attention"  # the kinds of layers that have names
_PART = "partial_rotary_factor"
THETA = 10000.0  # of Transformers, where no family says otherwise

# Field of Llama3Scaling -> field of config.json.
_LLAMA3 = {
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
}


def read_rotary(
    fields: Fields,
    style: PairStyle,
    theta: float = THETA,
    stretches: tuple[str, ...] = (),
    part: float | None = None,
) -> Rotary:
    """Read the rotary of a model whose layers all turn alike.

    ``theta`` is the base where none is given; ``stretches`` are the kinds that the family may have,
    by default all; ``part`` of a head turns where nothing is said, None: all of it whatever is.
    ConfigError names the field that is missing, wrong or not computed.
    """
    inner = fields.nested(_one_of(fields, "rope_parameters", "rope_scaling"))
    for kind in (FULL, WINDOWED):
        if inner is not None and inner.has(kind):
            raise inner.fault(kind, "null: all layers of this family turn alike")
    return make_rotary(fields, inner, style, fields.number("rope_theta", theta), stretches, part)


def read_layer_rotary(fields: Fields, kind: str, style: PairStyle, theta: float) -> Rotary:
    """Read the rotary of the layers that are called ``kind``; rope_scaling is of the full ones."""
    both = fields.nested("rope_parameters")
    if both is not None and both.raw and not (both.has(FULL) or both.has(WINDOWED)):
        raise fields.fault("rope_parameters", f"objects {FULL!r} and {WINDOWED!r} in it")
    inner = None if both is None else both.nested(kind)
    if kind == FULL and fields.has("rope_scaling"):
        if inner is not None:
            raise fields.fault("rope_scaling", f"null beside rope_parameters: {FULL}")
        inner = fields.nested("rope_scaling")
    return make_rotary(fields, inner, style, theta)


def make_rotary(
    fields: Fields,
    inner: Fields | None,
    style: PairStyle,
    theta: float,
    stretches: tuple[str, ...] = (),
    part: float | None = None,
) -> Rotary:
    """Make a rotary of the object ``inner``, which may say another base than ``theta``."""
    kind = "default"
    if inner is not None:
        kinds = ("default", *(stretches or _READERS))
        kind = inner.choice(inner.first("rope_type", "type"), kinds, "default")
    turned = 1.0 if part is None else part
    for place in (fields,) if inner is None else (fields, inner):
        if kind == "proportional":
            break  # it says itself which pairs turn
        if part is None:
            place.fixed(_PART, 1, "all of a head turns")
        else:
            turned = place.number(_PART, turned)
    if inner is None:
        return Rotary(theta, style, part=turned)
    theta = inner.number("rope_theta", theta)
    try:
        scaling = None if kind == "default" else _READERS[kind](fields, inner)
        return Rotary(theta, style, scaling, turned)
    except ConfigError as error:
        if str(error).startswith(inner.source):
            raise
        raise ConfigError(f"{inner.source}: {error}") from None


def write_rotary(rotary: Rotary) -> dict[str, Any]:
    """Write base and stretch in the earlier spelling, which all Transformers read."""
    raw: dict[str, Any] = {"rope_theta": rotary.theta}
    return raw if rotary.scaling is None else raw | {"rope_scaling": write_stretch(rotary.scaling)}


def write_stretch(scaling: RotaryScaling | None) -> dict[str, Any]:
    """Write a stretch as the object that ``make_rotary`` reads."""
    match scaling:
        case None:
            return {"rope_type": "default"}
        case LinearScaling(factor):
            return {"rope_type": "linear", "factor": factor}
        case ProportionalScaling(part, factor):
            stretched = {} if factor == 1 else {"factor": factor}
            return {"rope_type": "proportional", _PART: part} | stretched
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                **{name: getattr(scaling, place) for place, name in _LLAMA3.items()},
                "original_max_position_embeddings": scaling.original_context,
            }
        case YarnScaling():
            return {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_context,
                "attention_factor": scaling.amplitude,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "truncate": scaling.truncate,
            }
        case LongRopeScaling():
            return {
                "rope_type": "longrope",
                "short_factor": list(scaling.short),
                "long_factor": list(scaling.long),
                "original_max_position_embeddings": scaling.original_context,
                "attention_factor": scaling.amplitude,
            }
    raise ConfigError(f"rotary scaling: expected one that config.json can say, got {scaling}")


def write_layer_rotary(full: Rotary, windowed: Rotary | None) -> dict[str, Any]:
    """Write the rotaries of both kinds of layers as ``read_layer_rotary`` reads them."""
    both = {FULL: full} | ({} if windowed is None else {WINDOWED: windowed})
    return {
        "rope_parameters": {
            kind: write_stretch(rotary.scaling) | {"rope_theta": rotary.theta}
            for kind, rotary in both.items()
        }
    }


def _one_of(fields: Fields, newer: str, earlier: str) -> str:
    """Return the name that is set, or one of two that say the same; others would be weighed."""
    if not (fields.has(newer) and fields.has(earlier)):
        return fields.first(newer, earlier)
    both = [fields.nested(name) for name in (newer, earlier)]
    said = [{k: v for k, v in x.raw.items() if k != "rope_theta"} for x in both if x is not None]
    if said[0] != said[1]:
        advice = "; remove one of them"
        raise fields.fault(earlier, f"null or what {newer} says, which is there too", advice)
    return newer


def _linear(fields: Fields, inner: Fields) -> LinearScaling:
    return LinearScaling(inner.number("factor"))


def _llama3(fields: Fields, inner: Fields) -> Llama3Scaling:
    numbers = {place: inner.number(name) for place, name in _LLAMA3.items()}
    return Llama3Scaling(original_context=_context(fields, inner), **numbers)


def _yarn(fields: Fields, inner: Fields) -> YarnScaling:
    context = _context(fields, inner)
    if inner.raw.get("factor", 1) is None:  # as DeepSeek's files say it
        factor = fields.size("max_position_embeddings") / context
    else:
        factor = inner.number("factor")
    return YarnScaling(
        factor,
        context,
        amplitude=_amplitude(inner, factor),
        beta_fast=inner.number("beta_fast", 32.0),
        beta_slow=inner.number("beta_slow", 1.0),
        truncate=inner.flag("truncate", True),
    )


def _longrope(fields: Fields, inner: Fields) -> LongRopeScaling:
    context = _context(fields, inner)
    factor = fields.size("max_position_embeddings") / context
    factor = inner.number("factor", factor)
    usual = math.sqrt(1 + math.log(factor) / math.log(context)) if min(factor, context) > 1 else 1.0
    return LongRopeScaling(
        short=_numbers(inner, "short_factor"),
        long=_numbers(inner, "long_factor"),
        original_context=context,
        amplitude=inner.number("attention_factor", usual),
    )


def _numbers(inner: Fields, name: str) -> tuple[float, ...]:
    said = inner.raw.get(name)
    if not isinstance(said, list) or not 0 < len(said) <= MAX_SIZE:
        raise inner.fault(name, "a list of numbers above zero")
    each = (Fields({name: x}, inner.source, inner.spelled).number(name) for x in said)
    return tuple(each)


def _context(fields: Fields, inner: Fields) -> int:
    """Return the trained context, in tokens."""
    name = "original_max_position_embeddings"
    return next(
        (place.size(name) for place in (fields, inner) if place.has(name)),
        fields.size("max_position_embeddings"),
    )


def _amplitude(inner: Fields, factor: float) -> float:
    """Return YaRN's factor of cosine and sine: given, of two scales, or of the stretch alone."""
    if inner.has("attention_factor"):
        return inner.number("attention_factor")
    above, below = (
        0.0 if inner.raw.get(name) == 0 else inner.number(name, 0.0)
        for name in ("mscale", "mscale_all_dim")
    )
    if above and below:
        return _sharpening(factor, above) / _sharpening(factor, below)
    return _sharpening(factor, 1.0)


def read_sharpening(fields: Fields, factor: float) -> float:
    """Return by what ``mscale_all_dim`` of a stretch by ``factor`` multiplies queries and keys."""
    inner = fields.nested(_one_of(fields, "rope_parameters", "rope_scaling"))
    if inner is None or not inner.raw.get("mscale_all_dim"):
        return 1.0
    return _sharpening(factor, inner.number("mscale_all_dim"))


def write_sharpening(sharpening: float, factor: float) -> dict[str, Any]:
    """Write what ``read_sharpening`` reads: a number of few digits, of which it was made."""
    return {"mscale_all_dim": float(f"{(sharpening - 1) / (0.1 * math.log(factor)):.12g}")}


def _sharpening(factor: float, scale: float) -> float:
    """Return the square root of 1/t of YaRN's paper (arXiv:2309.00071, equation 22)."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _proportional(fields: Fields, inner: Fields) -> ProportionalScaling:
    del fields
    return ProportionalScaling(inner.number(_PART, 1.0), inner.number("factor", 1.0))


_READERS: Mapping[str, Callable[[Fields, Fields], RotaryScaling]] = {
    "proportional": _proportional,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "yarn": _yarn,
}

"""Loading by Transformers, whole or not at all.

``from_pretrained`` fills a weight that no tensor answers to with random numbers, and leaves out a
tensor that no weight asks for. It tells of both in its log; here both are errors.
"""

from collections.abc import Iterable
from typing import Any

from monolane.errors import CheckpointError

_SHOWN = 3  # names of tensors in a message


def load_whole(kind: Any, source: Any, **options: Any) -> Any:
    """Return ``kind.from_pretrained(source, **options)``; ``kind`` is a class of Transformers.

    CheckpointError unless each weight was in the files, and each tensor in the files is a weight.
    """
    # Other shapes are told of as the rest is, instead of by a traceback.
    model, found = kind.from_pretrained(
        source, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    check_whole(source, found["missing_keys"], found["unexpected_keys"])
    # Transformers 5 has tuples of a name and two shapes.
    names = (each if isinstance(each, str) else each[0] for each in found["mismatched_keys"])
    if other := sorted(names):
        raise CheckpointError(
            f"{source}: expected tensors of the shapes that config.json says, got others: "
            f"{_few(other)}; fetch the files again"
        )
    return model


def check_whole(source: Any, missing: Iterable[str], surplus: Iterable[str]) -> None:
    """Raise CheckpointError where weights were not in a file, or tensors in it are no weights."""
    faults = [
        f"{what}: {_few(names)}"
        for what, names in (("missing", sorted(missing)), ("not the model's", sorted(surplus)))
        if names
    ]
    if faults:
        raise CheckpointError(
            f"{source}: expected the model's weights and no other tensors, got "
            f"{'; '.join(faults)}; "
            "fetch the files again, or take a model of the family that is asked for"
        )


def _few(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown

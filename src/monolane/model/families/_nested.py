"""Models with a vision tower: the decoder alone is read, whose fields are in text_config.

Tensors of the tower and of what projects its outputs are left alone, by their names.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from monolane.model._config import ModelConfig
from monolane.model._fields import Fields
from monolane.model.families._family import Family

# What such a file says of its text outside of text_config, and counts if it does.
_OUTSIDE = (
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "dtype",
    "torch_dtype",
)


def with_tower(
    text: Family,
    model_type: str,
    architecture: str,
    prefix: tuple[str, str],
    others: tuple[str, ...],
    name: str | None = None,
    inside: tuple[str, ...] = (),
) -> Family:
    """Return the family of the models that have ``text`` as their decoder.

    ``prefix``: how names of its tensors begin, and how they do here; ``others``: how those begin
    that are not read. ``name`` is by default ``model_type``; ``inside``: see ``Family``.
    """
    plain, here = prefix

    def renamed(name: str) -> str:
        return here + name.removeprefix(plain) if name.startswith(plain) else name

    def surplus(config: ModelConfig, name: str) -> bool:
        own = plain + name.removeprefix(here) if name.startswith(here) else name
        return name.startswith(others) or text.surplus(config, own)

    return replace(
        text,
        name=name or model_type,
        model_types=(model_type,),
        inside=inside,
        names=lambda config: {role: renamed(name) for role, name in text.names(config).items()},
        merged={role: renamed(name) for role, name in text.merged.items()},
        surplus=surplus,
        render=_rendered(text.render, model_type, architecture),
        view=_view(text.view),
        gguf=None,
    )


def _view(text: Callable[[Fields], Fields]) -> Callable[[Fields], Fields]:
    def view(fields: Fields) -> Fields:
        inner = fields.nested("text_config")
        if inner is None:
            raise fields.fault("text_config", "an object with the text model's fields")
        outside = {name: fields.raw[name] for name in _OUTSIDE if fields.has(name)}
        return text(Fields({**inner.raw, **outside}, inner.source))

    return view


def _rendered(
    text: Callable[[ModelConfig], dict[str, Any]], model_type: str, architecture: str
) -> Callable[[ModelConfig], dict[str, Any]]:
    def render(config: ModelConfig) -> dict[str, Any]:
        inner = text(config)
        outside = {name: inner.pop(name) for name in _OUTSIDE if name in inner}
        del inner["architectures"]
        kinds = {"architectures": [architecture], "model_type": model_type}
        return outside | kinds | {"text_config": inner}

    return render

"""A finished model on its way into a folder in Hub layout.

``export_hub_layout`` is the one writer of that layout, and it reads a folder. So weights, config
and what the source folder has of text files are laid out beside the destination first, on the same
disk, and taken away again.
"""

import json
import tempfile
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, StrictUndefined

from monolane.hf import export_hub_layout
from monolane.model import (
    ModelConfig,
    PendingTensor,
    check_replaceable,
    copy_beside,
    render_config,
    tensor_specs,
    write_checkpoint,
)


def publish(
    source: Path,
    destination: Path,
    config: ModelConfig,
    tensors: Iterable[tuple[str, npt.NDArray[Any]] | PendingTensor],
    card: str,
    overwrite: bool,
) -> None:
    """Write the model made of ``source`` to ``destination``, with ``card`` as README.md."""
    check_replaceable(source, destination, overwrite)
    parent = destination.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{destination.name}.staging-") as name:
        staging = Path(name)
        copy_beside(source, staging)
        text = json.dumps(render_config(config), indent=2, sort_keys=True)
        (staging / "config.json").write_text(text + "\n", encoding="utf-8")
        (staging / "README.md").write_text(card, encoding="utf-8")
        write_checkpoint(staging, tensors)
        export_hub_layout(staging, destination, overwrite=overwrite)


def rounded_tensors(config: ModelConfig, model: Any) -> list[PendingTensor]:
    """Return a torch model's tensors in its folder's dtype, each rounded once, to nearest even."""
    dtype, state = np.dtype(config.dtype), model.state_dict()

    def maker(name: str) -> Callable[[], npt.NDArray[Any]]:
        return lambda: state[name].cpu().float().numpy().astype(dtype)

    return [
        PendingTensor(spec.name, dtype, spec.shape, maker(spec.name))
        for spec in tensor_specs(config)
    ]


def render_card(name: str, source: Path, destination: Path, **values: Any) -> str:
    """Return the text of a card, from the package's template of that name."""
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    template = resources.files("monolane.tune").joinpath("templates", f"{name}.md")
    card = environment.from_string(template.read_text("utf-8"))
    values |= {"source": source.name, "licence": _licence_lines(source), "name": destination.name}
    return card.render(**values)


def _licence_lines(source: Path) -> str:
    """Return the licence fields of a model card's front matter: they bind what is made of it."""
    path = source / "README.md"
    if not path.is_file():
        return ""
    parts = path.read_text(encoding="utf-8", errors="replace").split("---\n", 2)
    if len(parts) < 3 or parts[0]:
        return ""
    lines = [line for line in parts[1].splitlines() if line.startswith(("license", "licence"))]
    return "".join(f"{line}\n" for line in lines)

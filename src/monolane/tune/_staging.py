"""A finished model on its way into a folder in Hub layout.

``export_hub_layout`` is the one writer of that layout, and it reads a folder. So weights, config
and what the source folder has of text files are laid out beside the destination first, on the same
disk, and taken away again.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined

from monolane.model import (
    ModelConfig,
    PendingTensor,
    check_replaceable,
    copy_beside,
    render_config,
    tensor_specs,
    write_checkpoint,
    writing,
)

_CARDS = Environment(
    loader=PackageLoader("monolane.tune"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def publish(
    source: Path,
    destination: Path,
    config: ModelConfig,
    tensors: Iterable[tuple[str, npt.NDArray[Any]] | PendingTensor],
    overwrite: bool,
    card: str,
    texts: Mapping[str, str] = MappingProxyType({}),
    **values: Any,
) -> None:
    """Write the model made of ``source`` to ``destination``.

    Its README.md is made of the package's template ``card`` and of ``values``; ``texts`` are files
    that the source lacks, by name.
    """
    from monolane.hf import export_hub_layout  # torch comes with it, where that is installed

    check_replaceable(source, destination, overwrite)
    prefix = f".{destination.name}.staging-"
    with (
        writing(destination) as parent,
        tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as name,
    ):
        staging = Path(name)
        copy_beside(source, staging)
        for file, content in texts.items():
            (staging / file).write_text(content, encoding="utf-8")
        text = json.dumps(render_config(config), indent=2, sort_keys=True)
        (staging / "config.json").write_text(text + "\n", encoding="utf-8")
        values |= {"name": destination.name, "source": source.name}
        readme = _CARDS.get_template(f"{card}.md").render(licence=_licence_lines(source), **values)
        (staging / "README.md").write_text(readme, encoding="utf-8")
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

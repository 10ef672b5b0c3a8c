"""The folder of a model, for commands that make another model of it; a .gguf file becomes one."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def model_folder(model: str, destination: Path, overwrite: bool = False) -> Iterator[Path]:
    """Give the folder of a model; that of a .gguf file lies beside ``destination`` meanwhile.

    ``destination`` is checked first: a file of gigabytes is not dequantised for nothing.
    """
    from monolane.engine import find_model, unpack_gguf
    from monolane.model import check_replaceable, is_gguf, writing

    path = find_model(model)
    if not is_gguf(path):
        yield path
        return
    check_replaceable(path, destination, overwrite)
    sys.stderr.write(f"monolane: {path.name} is dequantised first; the model is made of that\n")
    prefix = f".{destination.name}.unpacked-"
    with (
        writing(destination) as parent,
        tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as name,
    ):
        folder = Path(name) / path.stem
        unpack_gguf(path, folder)
        yield folder

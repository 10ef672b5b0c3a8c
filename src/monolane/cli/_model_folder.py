"""The folder of a model, for commands that make another model of it; a .gguf file becomes one.

Such folders are gone when an error of theirs is read, so it names what the user gave.
"""

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
    from monolane._progress import still
    from monolane.model import check_replaceable, is_gguf, writing
    from monolane.sources import find_model, unpack_gguf

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
        with still(f"dequantising {path.name}"):
            unpack_gguf(path, folder)
        with told_as(path, folder):
            yield folder


@contextmanager
def told_as(given: Path, *made: Path) -> Iterator[None]:
    """Let errors name what the user gave, in place of the folders that are made of it meanwhile."""
    from monolane.errors import MonolaneError

    try:
        yield
    except MonolaneError as error:
        text = str(error)
        for folder in made:
            text = text.replace(str(folder), str(given))
        error.args = (text,)
        raise

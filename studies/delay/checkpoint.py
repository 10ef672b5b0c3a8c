"""Where a run of hours stands, so that the next command goes on with it, to the same bits.

One safetensors file a run: what learns, the optimiser's state, the losses so far; and, as JSON in
its metadata, the step and what was measured. A file of other sources or of another text is no
beginning of this run; it is left out.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from monolane.train._optimiser import Optimiser
from studies.delay.model import Mixed
from studies.delay.plan import Run

SECONDS = 300.0  # between two files of a run: what a command that is killed loses


@dataclass(frozen=True)
class Checkpoint:
    """The file of a run, and of what it must be."""

    path: Path
    made_of: dict[str, Any]  # the run, its sources, its text

    @classmethod
    def of(cls, folder: Path, run: Run, sources: str, text: str) -> "Checkpoint":
        """The checkpoint of a run, there or not."""
        made_of = {**run.key(), "sources": sources, "text": text}
        name = sha256(json.dumps(run.key(), sort_keys=True).encode()).hexdigest()[:16]
        return cls(folder / f"{name}.safetensors", made_of)

    def write(
        self, mixed: Mixed, optimiser: Optimiser, losses_S: Tensor, state: dict[str, Any]
    ) -> None:
        """Write the file anew, so that nobody sees half of it. ``state`` is kept as JSON."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_suffix(".part")
        tensors = {name: x.detach() for name, x in _tensors(mixed, optimiser).items()}
        metadata = {"made_of": json.dumps(self.made_of), "state": json.dumps(state)}
        save_file(tensors | {"losses": losses_S}, aside, metadata)
        aside.replace(self.path)

    @torch.no_grad()
    def read(self, mixed: Mixed, optimiser: Optimiser, losses_S: Tensor) -> dict[str, Any] | None:
        """Fill what learns from the file, and return its state; None where there is none."""
        if not self.path.is_file():
            return None
        with safe_open(self.path, "pt") as file:
            metadata = file.metadata()
            if json.loads(metadata["made_of"]) != self.made_of:
                return None
            for name, x in (_tensors(mixed, optimiser) | {"losses": losses_S}).items():
                x.copy_(file.get_tensor(name))
        mixed.publish()
        found: dict[str, Any] = json.loads(metadata["state"])
        return found

    def drop(self) -> None:
        """Remove the file of a run that is done."""
        self.path.unlink(missing_ok=True)


def _tensors(mixed: Mixed, optimiser: Optimiser) -> dict[str, Tensor]:
    """Return what a run goes on from, as it lies in memory."""
    learns = {f"learns.{name}": x for name, x in mixed.masters.named_parameters()}
    return learns | {f"optimiser.{name}": x for name, x in optimiser.state().items()}

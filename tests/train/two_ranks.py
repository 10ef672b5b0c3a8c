"""Run under torchrun by test_distributed.py: one step's gradients and one step's weights, kept."""

import sys
from pathlib import Path

import torch

from monolane.train import RunConfig, load_config
from monolane.train._inputs import open_blend, open_corpus
from monolane.train._process_group import World, open_world
from monolane.train._trainer import Trainer


def gradients(config: RunConfig, world: World) -> dict[str, torch.Tensor]:
    """Return the whole gradients of the first step, by name."""
    caught: dict[str, torch.Tensor] = {}
    trainer = Trainer(config, world)

    def catch(rate: float, norm: torch.Tensor, finite: bool) -> None:
        for name, parameter in trainer.model.named_parameters():
            assert parameter.grad is not None
            caught[name] = parameter.grad.full_tensor()

    trainer.update = catch  # type: ignore[method-assign]
    _step(trainer, 0)
    return caught


def weights(config: RunConfig, world: World, steps: int) -> dict[str, torch.Tensor]:
    """Return the whole weights after some steps, by name."""
    trainer = Trainer(config, world)
    for index in range(steps):
        _step(trainer, index)
    return {name: value.full_tensor() for name, value in trainer.model.state_dict().items()}


def _step(trainer: Trainer, index: int) -> None:
    config, world = trainer.config, trainer.world
    blend, count = open_blend(config, open_corpus(config)), config.data.rows_per_step
    trainer.step(index, blend.rows(index * count, count, rank=world.rank, world=world.size))


def main(out: Path, settings: list[str]) -> None:
    """Write what each setting gives to ``out``."""
    config = load_config("tiny", settings)
    copies = load_config("tiny", [*settings, "parallel.shard=1"])
    muon = load_config("tiny", [*settings, "optimizer.name=muon"])
    with open_world(config) as world:
        kept = {"sharded": gradients(config, world), "muon": weights(muon, world, 1)}
    with open_world(copies) as world:
        kept["copies"] = gradients(copies, world)
        if world.is_first:
            torch.save(kept, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

"""A Laneformer spread over the processes: built on no device, sharded, then filled in place.

The arithmetic is that of :mod:`monolane.hf`, which is also what exported folders carry: there is no
training twin that could drift from it. First weights are drawn parameter by parameter on the CPU
from (seed, name), so they are the same whatever the number of processes or the device.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

from monolane.errors import ConfigError
from monolane.hf import LaneformerConfig, LaneformerForCausalLM
from monolane.model import ModelConfig, open_laneformer, parse_config, tensor_specs
from monolane.train._config import Model, RunConfig, config_fields
from monolane.train._process_group import World


def empty_model(model: Model) -> LaneformerForCausalLM:
    """Return the model without storage (meta device); ConfigError if the shape is impossible."""
    try:
        config = LaneformerConfig(**config_fields(model), initializer_range=model.initializer_range)
    except ValueError as error:
        raise ConfigError(f"[model]: {error}") from None
    with torch.device("meta"):
        return LaneformerForCausalLM(config)


def build_model(config: RunConfig, world: World, *, fill: bool = True) -> LaneformerForCausalLM:
    """Return the sharded model with its first weights: random, or those of a model folder.

    Without ``fill`` the weights are whatever was in memory: a checkpoint is about to be read.
    """
    model = empty_model(config.model)
    if config.compute.checkpoint_activations:
        _checkpoint_activations(model)
    shard_model(model, config, world)
    model.to_empty(device=world.device)
    if not fill:
        return model
    tensors = (
        _stored(Path(config.model.init_from).expanduser(), config.model)
        if config.model.init_from
        else _drawn(empty_model(config.model), config.seed)
    )
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in tensors:
            _fill(parameters.pop(name), tensor)
    assert not parameters, f"no first weights for {sorted(parameters)}"
    return model


def shard_model(model: LaneformerForCausalLM, config: RunConfig, world: World) -> None:
    """Wrap each layer, then the rest, in FSDP2; compile the layers first where asked for."""
    lane_wise = config.optimizer.name == "muon"
    ranks = world.mesh["shard"].size()

    def placement(parameter: nn.Parameter) -> Shard:
        return Shard(_sharded_axis(tuple(parameter.shape), ranks, lane_wise))

    half = config.compute.precision == "bfloat16"
    options: dict[str, Any] = {
        "mesh": world.mesh,
        "reshard_after_forward": config.parallel.reshard_after_forward,
        "shard_placement_fn": placement,
        # Inputs are not cast: a layer's are in 16 bits already, but for the rotary angles' cosines
        # and sines, which must stay in float32 as they are in the exported model.
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if half else None,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        ),
    }
    if config.compute.compile:
        # Layers share code, and four kinds of them are four compilations per shape: the first, the
        # others below the delay, those that read and send, and those that nobody reads.
        torch.compiler.config.recompile_limit = max(32, torch.compiler.config.recompile_limit)
    for layer in model.model.layers:
        if config.compute.compile:
            layer.compile(dynamic=False)  # shapes are few: long rows, short rows
        fully_shard(layer, **options)
    fully_shard(model, **options)


def _checkpoint_activations(model: LaneformerForCausalLM) -> None:
    """Keep the inputs of layers only; set by hand, as transformers renames its switch in 5."""
    model.model.gradient_checkpointing = True
    layers: Any = model.model.layers
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)


def _sharded_axis(shape: tuple[int, ...], ranks: int, lane_wise: bool) -> int:
    """The first axis that divides evenly; lanes first, so that 8 ranks hold a lane each.

    Uneven shares are possible on axis 0 alone, where 8 lanes would leave most of 192 ranks empty.
    ``lane_wise`` keeps every matrix of a stack [L, o, i] whole, as Muon needs.
    """
    if lane_wise and len(shape) == 3:
        return 0
    return next((axis for axis, size in enumerate(shape) if size % ranks == 0), 0)


def _fill(parameter: Tensor, whole: Tensor) -> None:
    """Copy this process's share of ``whole``, which every process has, into the parameter."""
    assert isinstance(parameter, DTensor)
    whole = whole.to(parameter.device, parameter.dtype)
    mesh, placements = parameter.device_mesh, parameter.placements
    parameter.copy_(distribute_tensor(whole, mesh, placements, src_data_rank=None))


def _drawn(template: LaneformerForCausalLM, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Draw each parameter by the model's own rule, one module at a time to spare memory."""
    for path, module in template.named_modules():
        if not list(module.parameters(recurse=False)):
            continue
        module.to_empty(device="cpu", recurse=False)
        digest = hashlib.sha256(f"{seed} {path}".encode()).digest()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(digest[:8]))
            template._init_weights(module)
        for name, parameter in module.named_parameters(recurse=False):
            yield f"{path}.{name}", parameter.detach()
        module.to_empty(device="meta", recurse=False)


def model_config(model: Model, **fields: Any) -> ModelConfig:
    """Return the shape as the engine's own config; ``fields`` are more of config.json."""
    return parse_config(config_fields(model) | {"model_type": "laneformer"} | fields)


def check_start(folder: Path, got: ModelConfig, model: Model) -> None:
    """Raise ConfigError where ``model.init_from`` is of another shape than the config's."""
    expected = model_config(model)
    differing = [
        field.name
        for field in fields(expected)
        if field.init  # what follows from the others is no shape of its own
        and field.name not in ("dtype", "max_positions", "bos_id", "eos_ids", "pad_id")
        and getattr(expected, field.name) != getattr(got, field.name)
    ]
    if differing:
        raise ConfigError(
            f"model.init_from: expected a folder of the shape in [model], got {folder}, which "
            f"differs in {', '.join(differing)}; mend [model] or name another folder"
        )


def _stored(folder: Path, model: Model) -> Iterator[tuple[str, Tensor]]:
    """Read the weights of a model folder, whose shape must be the config's."""
    got, stored = open_laneformer(folder, "begin with")
    check_start(folder, got, model)
    for spec in tensor_specs(got):
        # float32 is exact for the 16-bit types.
        yield spec.name, torch.from_numpy(stored[spec.name].astype(np.float32))

"""What a run will need, before it runs: ``monolane train CONFIG --dry-run``.

Parameters are counted tensor by tensor, as the model's files hold them; no torch is needed. Memory
is by the formulas below (eager PyTorch; torch.compile needs less, the allocator's gaps some percent
more), and time is by the MFU that the caller states: nothing here was measured. That is a share of
what a device could do, in model FLOPs only (PaLM, 2022): what the mathematics needs, not what
activation checkpointing does again. A multiplication and an addition count as two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolane.errors import ConfigError, RequestError
from monolane.model import TensorSpec, parse_config, tensor_specs
from monolane.train._config import Model, RunConfig, config_fields

if TYPE_CHECKING:
    import torch

GIB = 1 << 30
_DAY = 86400.0

# Dense 16-bit tensor-core peaks from the vendors' data sheets, FLOP/s, without sparsity. The name
# as torch.cuda.get_device_name() gives it must contain the key; longer keys are tried first.
PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "MI355X": 2500e12,
    "MI325X": 1307e12,
    "MI300X": 1307e12,
    "MI250X": 383e12,
}

# Bytes/s of their memories, from the same sheets; the names are those of ``PEAKS``.
BANDWIDTHS = {
    "B200": 8.0e12,
    "H200": 4.8e12,
    "H100 PCIe": 2.0e12,
    "H100 NVL": 3.9e12,
    "H100": 3.35e12,
    "A100": 2.039e12,  # with 80 GB
    "L40S": 864e9,
    "L4": 300e9,
    "A10": 600e9,
    "MI355X": 8.0e12,
    "MI325X": 6.0e12,
    "MI300X": 5.3e12,
    "MI250X": 3.2e12,
}

# What was published of the 2B model's two phases: see the configs' own comments.
_PUBLISHED_DEVICES = 192  # H100
_PUBLISHED_RATE = 17_000  # tokens/s of one device
_PUBLISHED_DAYS = 21
_PUBLISHED_STEPS = 620_000 + 310_000


@dataclass(frozen=True)
class Memory:
    """Bytes of one device at the peak of a step, by what they hold."""

    weights: float  # float32, this device's share
    gradients: float  # float32: this device's share, or whole ones until they are added up
    optimizer: float  # float32: two moments (AdamW), or one (Muon's matrices)
    gathered: float  # whole layers in the precision of the products, and their gradients
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class Forecast:
    """What a config asks of ``world`` devices, and how long it takes them at an MFU."""

    config: RunConfig
    world: int
    mfu: float
    device: str  # name of one in PEAKS
    parameters: int
    flops_per_token: float
    memory: Memory

    @property
    def tokens(self) -> float:
        """Tokens of the whole run."""
        return float(self.config.schedule.steps * self.config.data.tokens_per_step)

    @property
    def rate(self) -> float:
        """Tokens per second of one device."""
        return self.mfu * PEAKS[self.device] / self.flops_per_token

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.tokens / (self.rate * self.world)

    def text(self, timed: bool = True) -> str:
        """Return the forecast as lines for people; not ``timed``: without any time."""
        config, memory = self.config, self.memory
        rows_here = config.rows_per_process(self.world)
        step = (
            f"{config.data.tokens_per_step:,} ({config.data.rows_per_step:,} rows of "
            f"{config.data.sequence_length:,}; {rows_here:,} a device, "
            f"{config.compute.rows_per_pass} at once)"
        )
        rate = (
            f"{self.rate:,.0f} tokens/s a device, at the stated MFU of {self.mfu:.1%} of "
            f"{PEAKS[self.device] / 1e12:,.0f} TFLOP/s"
        )
        rows = [
            ("parameters", f"{self.parameters:,}"),
            ("devices", f"{self.world:,} x {self.device}, {_layout(config, self.world)}"),
            ("tokens per step", step),
            ("steps", f"{config.schedule.steps:,}: {self.tokens:.3g} tokens"),
            ("memory per device", f"{memory.total / GIB:.1f} GiB at the peak of a step"),
            *((f"  {name}", f"{value / GIB:.2f} GiB") for name, value in vars(memory).items()),
            ("FLOPs per token", f"{self.flops_per_token / 1e9:.2f} G"),
            ("rate", rate),
            ("time", f"{self.seconds / 3600:,.1f} hours = {self.seconds / _DAY:,.1f} days"),
        ]
        if not timed:
            rows = [row for row in rows if row[0] not in ("devices", "steps", "rate", "time")]
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {value}" for name, value in rows]
        return "\n".join([*lines, *published(self)]) + "\n"


def forecast(config: RunConfig, world: int, mfu: float, device: str = "H100") -> Forecast:
    """Return what ``config`` needs of ``world`` devices; RequestError for a wrong wish, ConfigError
    where they do not fit.
    """
    config.rows_per_process(world)
    shard = config.shard(world)
    if not 0 < mfu <= 1:
        raise RequestError(f"mfu: expected more than 0 and at most 1, got {mfu}; give a share")
    if peak_of(device) is None:
        raise RequestError(f"device: expected one of {', '.join(PEAKS)}, got {device!r}; give one")
    tensors = tensors_of(config.model)
    return Forecast(
        config=config,
        world=world,
        mfu=mfu,
        device=next(name for name in PEAKS if PEAKS[name] == peak_of(device) and name in device),
        parameters=sum(tensor.size for tensor in tensors),
        flops_per_token=flops_per_token(config.model, config.data.sequence_length),
        memory=memory_of(tensors, config, shard, config.rows_per_process(world)),
    )


def tensors_of(model: Model) -> Sequence[TensorSpec]:
    """Return the model's parameters; ConfigError if the shape is impossible."""
    try:
        return tensor_specs(parse_config(config_fields(model) | {"model_type": "laneformer"}))
    except ConfigError as error:
        raise ConfigError(f"[model]: {error}") from None


def memory_of(tensors: Sequence[TensorSpec], config: RunConfig, shard: int, rows: int) -> Memory:
    """Return the bytes of one of ``shard`` devices that share a copy of a model's tensors.

    ``rows`` are those that it reads in a step.
    """
    width = 2 if config.compute.precision == "bfloat16" else 4  # bytes of a number in products
    layers = [0] * config.model.num_hidden_layers
    for tensor in tensors:
        if tensor.layer is not None:
            layers[tensor.layer] += tensor.size
    every = sum(tensor.size for tensor in tensors)
    rest = every - sum(layers)  # embedding, head and last norm: gathered together
    stacks = (x for x in tensors if x.layer is not None and len(x.shape) == 3)  # [L, o, i]
    matrices = sum(x.size for x in stacks)
    moments = 2 * every - (matrices if config.optimizer.name == "muon" else 0)
    whole = sum(layers) if not config.parallel.reshard_after_forward else 2 * max(layers)
    tokens = config.compute.rows_per_pass * config.data.sequence_length
    keeps_whole = config.parallel.reduce == "step" and rows > config.compute.rows_per_pass
    return Memory(
        weights=4 * every / shard,
        gradients=4 * every / (1 if keeps_whole else shard),
        optimizer=4 * moments / shard,
        # One layer is computed with while the next is fetched; the gradients of a layer leave in
        # float32 while those of the next are made.
        gathered=width * (rest + whole) + (width + 4) * max(*layers, rest),
        activations=tokens * activation_bytes(config),
        # As the head gives them, in float32, and the gradient of that.
        logits=tokens * config.model.vocab_size * (width + 4 + 4),
    )


def activation_bytes(config: RunConfig) -> float:
    """Return the bytes that one token leaves for the backward pass, logits left out.

    The lanes' streams are the bulk: L * D numbers, where an ordinary decoder has D. Each of the two
    norms of a layer keeps its input in float32, its normed value and its scaled value.
    """
    shape = config.model
    width = 2 if config.compute.precision == "bfloat16" else 4
    stream = shape.num_lanes * shape.hidden_size
    kv = shape.num_key_value_heads * shape.head_dim
    norms = 2 * stream * (4 + 2 * width)
    # Query, key and value as attention takes them, its output, and that output laid out by lanes.
    attention = width * (3 * shape.hidden_size + 2 * kv)
    mlp = width * 4 * shape.intermediate_size  # gate, its silu, up, and their product
    layer = norms + attention + mlp
    if not config.compute.checkpoint_activations:
        return shape.num_hidden_layers * layer
    # Kept between layers: each one's input, and the outputs that a later layer reads.
    sending = max(0, shape.num_hidden_layers - shape.broadcast_delay)
    kept = shape.num_hidden_layers + 2 * sending * (shape.broadcast_delay > 0)
    return width * stream * kept + layer


def peak_flops(device: "torch.device") -> float | None:
    """Return a device's peak in FLOP/s for 16-bit products, or None where it is not known."""
    import torch

    return None if device.type != "cuda" else peak_of(torch.cuda.get_device_name(device))


def peak_of(name: str) -> float | None:
    """Return the peak of a device by its name, in FLOP/s, or None."""
    keys = sorted(PEAKS, key=len, reverse=True)
    return next((PEAKS[key] for key in keys if key.lower() in name.lower()), None)


def matrix_weights(model: Model) -> int:
    """Return the weights that every token is multiplied with: all but the embedding and norms."""
    width, head = model.hidden_size, model.head_dim
    attention = width * head * (2 * model.num_attention_heads + 2 * model.num_key_value_heads)
    layer = attention + 3 * width * model.intermediate_size
    inputs = width * (model.num_lanes if model.lm_head_type == "lane" else 1)
    return model.num_hidden_layers * layer + model.vocab_size * inputs


def flops_per_token(model: Model, length: int) -> float:
    """Return the FLOPs of one trained token, forward and backward, in rows of ``length`` tokens.

    Six per weight, and for attention twelve per channel and key seen: two products of two FLOPs,
    three times. Keys are those that the causal mask and the window leave, of the whole row:
    document masks leave fewer, so MFU with them is a little too high, never too low a cost.
    """
    keys = 0.0
    for window in model.windows:
        keys += mean_keys(length, min(window or length, length))
    return 6.0 * matrix_weights(model) + 12.0 * model.hidden_size * keys


def mean_keys(length: int, window: int) -> float:
    """Return how many keys a query sees on average in a row, itself included."""
    return window - window * (window - 1) / (2 * length)


def published(made: Forecast) -> list[str]:
    """Hold the published run against itself, if this is one of its two phases."""
    data = made.config.data
    if made.parameters // 10**7 != 232 or data.tokens_per_step != 1536 * 4096:
        return []
    mfu = _PUBLISHED_RATE * made.flops_per_token / PEAKS["H100"]
    fleet = _PUBLISHED_RATE * _PUBLISHED_DEVICES
    days = made.tokens / fleet / _DAY
    both = _PUBLISHED_STEPS * data.tokens_per_step
    total = both / fleet / _DAY
    text = f"""
Published: {_PUBLISHED_DEVICES} H100, about {_PUBLISHED_RATE:,} tokens/s each, about \
{_PUBLISHED_DAYS} days.
That rate is an MFU of {mfu:.1%}. It takes this phase {days:.1f} days, and both phases
({_PUBLISHED_STEPS:,} steps, {both / 1e12:.2f} T tokens) {total:.1f} days: the published figures \
agree with each other
if the {_PUBLISHED_DAYS} days are both phases together, restarts and evaluation hardly counted."""
    return text.splitlines()


def _layout(config: RunConfig, world: int) -> str:
    shard = config.shard(world)
    copies = world // shard
    return f"{copies} cop{'y' if copies == 1 else 'ies'} of the weights over {shard} each"

"""Everything that decides a training run, in one frozen, typed value; validated on construction.

A section is a table of TOML and a class here: :mod:`monolane._toml` checks one against the
annotations of the other, so a field and its range are spelled once. Counts of steps, rows and
tokens are over all devices together. The file is found by path or name, overridden by ``--set``,
written, and compared.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from monolane._schedule import Wsd
from monolane._toml import Share, config, load_table, read_table, shipped_files
from monolane.errors import CheckpointError, ConfigError, RequestError

_PACKAGE = "monolane.train"
SETTINGS = "settings.json"  # in a run's folder: the overrides that it was started with

Head = Literal["vocab_parallel", "replicate", "lane"]


@config
class Model:
    """Shape of the Laneformer, in config.json's released spelling, and what it starts from."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int
    num_lanes: int = 8
    broadcast_delay: int = 2
    use_early_comm: bool = False
    use_attention_comm: bool = True
    use_mlp_comm: bool = True
    lm_head_type: Head = "vocab_parallel"
    pre_norm_lane_agg: bool = False
    replicated_rmsn_scale: bool = False
    sliding_window: int = 0  # tokens; 0: every layer sees the whole context
    swa_layers: tuple[int, ...] = ()  # ids of the windowed layers
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    bos_token_id: int = 1
    eos_token_id: int = 2
    # Where the first weights come from: a model folder in Hub layout, a run (its newest checkpoint)
    # or one checkpoint of a run; empty: random, from the seed.
    init_from: str = ""

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def windows(self) -> tuple[int, ...]:
        """Of each layer, the tokens that it sees; 0: all."""
        windowed = set(self.swa_layers)
        return tuple(self.sliding_window * (i in windowed) for i in range(self.num_hidden_layers))


@config
class Data:
    """The mixture, and how much of it one step reads."""

    sequence_length: PositiveInt  # T, tokens in a row
    rows_per_step: PositiveInt  # over all devices
    corpus: str = ""  # folder of a prepared corpus
    # Source -> share, on any scale.
    weights: dict[str, NonNegativeFloat] = field(default_factory=dict)
    stage: str = ""  # instead of weights: a stage that the corpus itself names
    after: dict[str, int] = field(default_factory=dict)  # source -> rows that an earlier run read
    document_mask: bool = True  # attention stays inside a document

    def __post_init__(self) -> None:
        if self.weights and self.stage:
            raise ConfigError(
                "data.stage: expected no stage, as data.weights are given, got "
                f"{self.stage!r}; leave one of them out"
            )

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step reads."""
        return self.sequence_length * self.rows_per_step


@config
class Optimizer:
    """The update rule; rates are of AdamW, and Muon is scaled to share them."""

    name: Literal["adamw", "muon"] = "adamw"  # muon: for the layers' matrices, lane by lane
    peak_lr: PositiveFloat = 3e-4
    beta1: Share = 0.9
    beta2: Share = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1  # on matrices and embeddings, never on norms
    muon_momentum: Share = 0.95
    clip_norm: PositiveFloat = 1.0  # of the whole gradient, over all devices
    # Weight of mean(logsumexp²): keeps logits from drifting in low precision.
    z_loss: NonNegativeFloat = 0.0
    # Where model.init_from is a run, the moments of its optimizer go on (carry) or start again at 0
    # (restart). auto: they go on where there are any; a model folder has none.
    moments: Literal["auto", "carry", "restart"] = "auto"


@config
class Schedule(Wsd):
    """Warm up, stay, decay, in optimizer steps; and rows that are short at first."""

    short_until: NonNegativeInt = 0  # before this step rows are cut into pieces of short_length
    short_length: NonNegativeInt = 0

    @property
    def first_change(self) -> int:
        """The first step that another number of steps would change, warm-up aside."""
        decay = self.steps - self.decay
        return min(decay, self.short_until) if self.short_until else decay


@config
class Parallel:
    """How FSDP spreads weights, gradients and optimizer state over the processes."""

    # Processes that share one copy; 0: all. Copies are data-parallel (HSDP).
    shard: NonNegativeInt = 0
    reshard_after_forward: bool = True  # false: faster backward, one whole model more in memory
    # When gradients are added up over the processes: once a step, which keeps them whole until then
    # (4 bytes a parameter), or after each pass.
    reduce: Literal["step", "pass"] = "step"


@config
class Compute:
    """How the arithmetic is done on one device."""

    precision: Literal["bfloat16", "float32"] = "bfloat16"  # of forward and backward
    rows_per_pass: PositiveInt = 1  # rows that one device holds activations of at once
    compile: bool = False  # torch.compile, layer by layer
    checkpoint_activations: bool = False  # keep a layer's inputs only and compute the rest again
    attention: Literal["auto", "sdpa", "flex"] = "auto"  # auto: flex on GPUs, SDPA on CPUs
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: NonNegativeInt = 0  # of one process on CPUs; 0: torch's own choice


@config
class CheckpointPolicy:
    """When the state is kept, and for how long."""

    every: PositiveInt = 1000  # steps; one is also kept at the end and when interrupted
    keep: PositiveInt = 3  # the last so many; the best by validation is kept besides


@config
class Validation:
    """What is measured beside the training loss, and how often."""

    every: NonNegativeInt = 0  # steps; 0: never
    sources: tuple[str, ...] = ()  # whose held-out documents are scored; empty: those trained on
    rows: PositiveInt = 64  # windows of sequence_length scored of each source, the same every time
    tasks: tuple[str, ...] = ()  # names of small multiple-choice tasks


@config
class GuardConfig:
    """What counts as a spike of the loss, and how many a run may have."""

    enabled: bool = True
    window: int = 128  # losses that make the history
    # Losses before the first judgement, as a scale from fewer is noise; NaN and Inf, which update
    # nothing, count as far off from the start.
    history: Annotated[int, Field(ge=8)] = 32
    threshold: PositiveFloat = 7.0  # robust standard deviations above the median
    min_rise: NonNegativeFloat = 0.15  # nats above the median: less is no spike, however calm
    patience: PositiveInt = 4  # far-off losses within the last 2 * patience - 1 that make a spike
    rollbacks: NonNegativeInt = 3  # within `span` steps; one more ends the run
    span: PositiveInt = 2000

    def __post_init__(self) -> None:
        if not self.patience <= self.history <= self.window:
            raise ConfigError(
                "guard: expected patience <= history <= window, got "
                f"{self.patience}, {self.history} and {self.window}; mend one of them"
            )


@config
class Log:
    """Where the figures of a run go besides ``log.jsonl`` and the progress bar."""

    tensorboard: bool = True  # event files in <run>/board
    wandb: str = ""  # project; empty: off


@config
class RunConfig:
    """One training run; ConfigError if its sections do not fit together."""

    model: Model
    data: Data
    schedule: Schedule
    optimizer: Optimizer = field(default_factory=Optimizer)
    parallel: Parallel = field(default_factory=Parallel)
    compute: Compute = field(default_factory=Compute)
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    validation: Validation = field(default_factory=Validation)
    guard: GuardConfig = field(default_factory=GuardConfig)
    log: Log = field(default_factory=Log)
    seed: int = 0  # of the first weights and of the order of the data

    def __post_init__(self) -> None:
        length, schedule = self.data.sequence_length, self.schedule
        if length > self.model.max_position_embeddings:
            raise ConfigError(
                "data.sequence_length: expected at most model.max_position_embeddings = "
                f"{self.model.max_position_embeddings}, got {length}; lower it or raise the other"
            )
        short = schedule.short_length
        if schedule.short_until and not short:
            raise ConfigError(
                "schedule.short_length: expected the tokens of a short row, as short_until is "
                f"{schedule.short_until}, got 0; give it, or leave short_until out"
            )
        if short and length % short:
            raise ConfigError(
                f"schedule.short_length: expected a divisor of data.sequence_length = {length}, "
                f"got {short}; mend one of them"
            )

    def shard(self, world: int) -> int:
        """Processes of ``world`` that share one copy of the weights; ConfigError if uneven."""
        shard = self.parallel.shard or world
        if world % shard:
            raise ConfigError(
                f"parallel.shard: expected a divisor of the {world} processes, got {shard}; mend "
                "it, or give 0 for all of them"
            )
        return shard

    def rows_per_process(self, world: int) -> int:
        """Rows of a step that each of ``world`` processes reads; ConfigError if they do not fit."""
        if self.data.rows_per_step % world:
            raise ConfigError(
                f"data.rows_per_step: expected a multiple of the {world} processes, got "
                f"{self.data.rows_per_step}; use --set data.rows_per_step=... or other processes"
            )
        return self.data.rows_per_step // world


def config_fields(model: Model) -> dict[str, Any]:
    """Return the fields of config.json, in the released spelling: what decides the arithmetic."""
    values = {field.name: getattr(model, field.name) for field in fields(model)}
    del values["init_from"], values["initializer_range"]
    values["swa_layers"] = list(model.swa_layers)
    values["sliding_window"] = model.sliding_window or None
    return values | {"pad_token_id": None}


def shipped_configs() -> tuple[str, ...]:
    """Names of the configs that come with the package."""
    return shipped_files(_PACKAGE)


def load_config(name: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a run config: a TOML file, or the name of a shipped one.

    ``overrides`` are texts such as ``"optimizer.peak_lr=1e-4"``, whose value is TOML; a bare word
    is a string. ConfigError says which key, what was expected and what was found;
    RequestError where an override is no key=value.
    """
    table, origin = load_table(name, _PACKAGE)
    for override in overrides:
        _override(table, override)
    return read_table(RunConfig, table, origin)


def write_config(config: RunConfig) -> str:
    """Return the config as TOML, every field spelled out; :func:`load_config` reads it back."""
    import tomli_w  # of the extra 'train': to read one needs nothing of it

    return tomli_w.dumps(asdict(config))


def kept_settings(run: Path) -> list[str]:
    """Return the overrides (``--set``) that a run was started with, so that none need be repeated.

    CheckpointError where the file is damaged.
    """
    path = run / SETTINGS
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_bytes())
        if isinstance(found, list) and all(isinstance(one, str) for one in found):
            return found
    except ValueError:  # no JSON, or not in UTF-8
        pass
    raise CheckpointError(
        f"{path}: expected a list of settings, got something else; remove the file, and resume "
        f"with {run / 'config.toml'}"
    )


def differences(one: RunConfig, other: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two configs differ, by dotted name."""
    left, right = _flat(asdict(one)), _flat(asdict(other))
    return {
        name: (left.get(name), right.get(name))
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    }


def _override(table: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    *sections, key = name.strip().split(".")
    if not equals or not all((*sections, key)):
        raise RequestError(f"--set: expected section.key=value, got {override!r}; mend it")
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override}: expected a table at {section!r}, got {inner!r}")
        table = inner
    try:
        table[key] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        table[key] = text.strip()  # a bare word


def _flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{path}.{name}" if path else name
        flat |= _flat(value, key) if isinstance(value, dict) and value else {key: value}
    return flat

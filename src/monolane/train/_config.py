"""Everything that decides a training run, in one frozen, typed value; validated on construction.

Sections are dataclasses, and so are TOML tables: :mod:`monolane._toml` reads one into the
other by the annotations below, so a field is spelled once. Counts of steps, rows and tokens are
over all devices together.
"""

from dataclasses import dataclass, field
from typing import Literal

from monolane.errors import ConfigError
from monolane.train._guard import GuardConfig

Head = Literal["vocab_parallel", "replicate", "lane"]


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Data:
    """The mixture, and how much of it one step reads."""

    sequence_length: int  # T, tokens in a row
    rows_per_step: int  # over all devices
    corpus: str = ""  # folder of a prepared corpus
    weights: dict[str, float] = field(default_factory=dict)  # source -> share, on any scale
    stage: str = ""  # instead of weights: a stage that the corpus itself names
    after: dict[str, int] = field(default_factory=dict)  # source -> rows that an earlier run read
    document_mask: bool = True  # attention stays inside a document

    def __post_init__(self) -> None:
        _positive("data.sequence_length", self.sequence_length)
        _positive("data.rows_per_step", self.rows_per_step)
        if self.weights and self.stage:
            raise ConfigError(
                "data.stage: expected no stage, as data.weights are given, got "
                f"{self.stage!r}; leave one of them out"
            )
        for name, weight in self.weights.items():
            _at_least(f"data.weights.{name}", weight, 0)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step reads."""
        return self.sequence_length * self.rows_per_step


@dataclass(frozen=True)
class Optimizer:
    """The update rule; rates are of AdamW, and Muon is scaled to share them."""

    name: Literal["adamw", "muon"] = "adamw"  # muon: for the layers' matrices, lane by lane
    peak_lr: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1  # on matrices and embeddings, never on norms
    muon_momentum: float = 0.95
    clip_norm: float = 1.0  # of the whole gradient, over all devices
    z_loss: float = 0.0  # weight of mean(logsumexp²): keeps logits from drifting in low precision
    # Where model.init_from is a run, the moments of its optimizer go on (carry) or start again at 0
    # (restart). auto: they go on where there are any; a model folder has none.
    moments: Literal["auto", "carry", "restart"] = "auto"

    def __post_init__(self) -> None:
        for name in ("peak_lr", "eps", "clip_norm"):
            _positive(f"optimizer.{name}", getattr(self, name))
        for name in ("weight_decay", "z_loss"):
            _at_least(f"optimizer.{name}", getattr(self, name), 0)
        for name in ("beta1", "beta2", "muon_momentum"):
            _share(f"optimizer.{name}", getattr(self, name))


@dataclass(frozen=True)
class Schedule:
    """Warm up, stay, decay (WSD), in optimizer steps."""

    steps: int
    warmup: int = 0  # linear, from 0
    decay: int = 0  # linear, to 0, at the end
    short_until: int = 0  # before this step rows are cut into pieces of short_length
    short_length: int = 0

    def __post_init__(self) -> None:
        _positive("schedule.steps", self.steps)
        for name in ("warmup", "decay", "short_until", "short_length"):
            _at_least(f"schedule.{name}", getattr(self, name), 0)
        if self.warmup + self.decay > self.steps:
            raise ConfigError(
                "schedule: expected warmup + decay within the steps, got "
                f"{self.warmup} + {self.decay} of {self.steps}; give more steps or shorten them"
            )
        if self.short_until and not self.short_length:
            raise ConfigError(
                "schedule.short_length: expected the tokens of a short row, as short_until is "
                f"{self.short_until}, got 0; give it, or leave short_until out"
            )


@dataclass(frozen=True)
class Parallel:
    """How FSDP spreads weights, gradients and optimizer state over the processes."""

    shard: int = 0  # processes that share one copy; 0: all. Copies are data-parallel (HSDP)
    reshard_after_forward: bool = True  # false: faster backward, one whole model more in memory

    def __post_init__(self) -> None:
        _at_least("parallel.shard", self.shard, 0)


@dataclass(frozen=True)
class Compute:
    """How the arithmetic is done on one device."""

    precision: Literal["bfloat16", "float32"] = "bfloat16"  # of forward and backward
    rows_per_pass: int = 1  # rows that one device holds activations of at once
    compile: bool = False  # torch.compile, layer by layer
    checkpoint_activations: bool = False  # keep a layer's inputs only and compute the rest again
    attention: Literal["auto", "sdpa", "flex"] = "auto"  # auto: flex on GPUs, SDPA on CPUs
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 0  # of one process on CPUs; 0: torch's own choice

    def __post_init__(self) -> None:
        _positive("compute.rows_per_pass", self.rows_per_pass)
        _at_least("compute.threads", self.threads, 0)


@dataclass(frozen=True)
class CheckpointPolicy:
    """When the state is kept, and for how long."""

    every: int = 1000  # steps; one is also kept at the end and when interrupted
    keep: int = 3  # the last so many; the best by validation is kept besides

    def __post_init__(self) -> None:
        _positive("checkpoint.every", self.every)
        _positive("checkpoint.keep", self.keep)


@dataclass(frozen=True)
class Validation:
    """What is measured beside the training loss, and how often."""

    every: int = 0  # steps; 0: never
    sources: tuple[str, ...] = ()  # whose held-out documents are scored; empty: those trained on
    rows: int = 64  # windows of sequence_length scored of each source, the same every time
    tasks: tuple[str, ...] = ()  # names of small multiple-choice tasks

    def __post_init__(self) -> None:
        _at_least("validation.every", self.every, 0)
        _positive("validation.rows", self.rows)


@dataclass(frozen=True)
class Log:
    """Where the figures of a run go besides ``log.jsonl`` and the progress bar."""

    tensorboard: bool = True  # event files in <run>/board
    wandb: str = ""  # project; empty: off


@dataclass(frozen=True)
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
        length, short = self.data.sequence_length, self.schedule.short_length
        if length > self.model.max_position_embeddings:
            raise ConfigError(
                "data.sequence_length: expected at most model.max_position_embeddings = "
                f"{self.model.max_position_embeddings}, got {length}; lower it or raise the other"
            )
        if short and length % short:
            raise ConfigError(
                f"schedule.short_length: expected a divisor of data.sequence_length = {length}, "
                f"got {short}; mend one of them"
            )

    def rows_per_process(self, world: int) -> int:
        """Rows of a step that each of ``world`` processes reads; ConfigError if they do not fit."""
        if self.data.rows_per_step % world:
            raise ConfigError(
                f"data.rows_per_step: expected a multiple of the {world} processes, got "
                f"{self.data.rows_per_step}; use --set data.rows_per_step=... or other processes"
            )
        return self.data.rows_per_step // world


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{name}: expected more than 0, got {value}; mend the config")


def _at_least(name: str, value: float, least: float) -> None:
    if value < least:
        raise ConfigError(f"{name}: expected at least {least}, got {value}; mend the config")


def _share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"{name}: expected 0 to less than 1, got {value}; mend the config")

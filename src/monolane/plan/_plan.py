"""The static plan of a pass: an immutable value that every executor runs as it stands.

Why not a graph that a scheduler walks: the order never changes from token to token, so a decision
made at run time would be the same decision made each time, on the critical path.
"""

from dataclasses import dataclass

from monolane.model import EXPERT_ROLES, Head, ModelConfig, QkNorm, Role, WeightFormat, find_format
from monolane.plan._device import DeviceDescription
from monolane.plan._groups import Groups
from monolane.plan._phase import Buffer, Matrix, Phase, PhaseKind
from monolane.plan._split import Share

# Where a matrix is: its role, and its layer or None outside the layers.
Place = tuple[Role, int | None]

# Token positions of one pass at most: what the kernels keep in registers and fast memory. Where a
# pass reads nothing but a prompt, and multiplies faster so, it may be wider. In a mixture an expert
# serves some of the tokens only, and has few of 64.
MAX_WIDTH = 64
PROMPT_WIDTH = 96
MIXTURE_WIDTH = 256


class PlanError(AssertionError):
    """A plan breaks one of its own rules. Only ``build`` makes plans, so this is a bug of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The phases of one pass of up to ``max_width`` token positions, for all workers."""

    config: ModelConfig
    device: DeviceDescription
    dtype: str
    max_width: int  # T at most
    context: int  # tokens that a sequence may hold
    attention_slots: int  # ring slots of ATTENTION_OUTPUT
    mlp_slots: int  # ring slots of MLP_OUTPUT
    splits: int  # S: parts into which the keys of one KV head are cut
    keys: str  # format of cached keys and values
    phases: tuple[Phase, ...]
    formats: tuple[tuple[Place, str], ...] = ()  # of the matrices that are not stored in ``dtype``

    @staticmethod
    def widest(config: ModelConfig) -> int:
        """Return how many token positions of a model a pass may have, on any device.

        States of a delta layer keep the inputs of a pass apart: none of those is wider than it may
        have drafts.
        """
        if config.delta is not None:
            return MAX_WIDTH
        return PROMPT_WIDTH if config.experts is None else MIXTURE_WIDTH

    @property
    def groups(self) -> Groups:
        """Which workers serve which lanes."""
        return Groups(self.config.num_lanes, self.device.total_workers)

    @property
    def format(self) -> WeightFormat:
        """Storage of the weights, but for the matrices of ``formats``."""
        return find_format(self.dtype)

    @property
    def stored(self) -> str:
        """Storage of the weights in words: ``dtype``, or "q4_k, q6_k" of a file in blocks."""
        names = dict.fromkeys(name.removesuffix("_panels") for _, name in self.formats)
        return ", ".join(names) or self.dtype

    @property
    def key_bytes(self) -> int:
        """Bytes of one cached key or value of one KV head."""
        return find_format(self.keys).row_bytes(self.config.cached_width)

    @property
    def shared_head(self) -> bool:
        """Whether one head reads the streams of all lanes, hence needs GATHER."""
        return self.config.head is not Head.VOCAB_PARALLEL and self.config.num_lanes > 1

    @property
    def shares(self) -> tuple[Share, ...]:
        """Every share of the plan once: the rows of the table that native executors read."""
        found = [matrix.share for phase in self.phases for matrix in phase.matrices]
        found += [phase.units for phase in self.phases if phase.units is not None]
        return tuple(dict.fromkeys(found))

    @property
    def hidden_columns(self) -> int:
        """Columns of HIDDEN: of an MLP's lane, or of all that a mixture makes for a token."""
        c, mixture = self.config, self.config.experts
        dense = 0 if all(x.experts for x in c.layers) else c.intermediate_size // c.num_lanes
        return max(dense, 0 if mixture is None else mixture.chosen * mixture.inner + mixture.shared)

    def active_experts(self, matrix: Matrix, width: int) -> float:
        """Return how many of a matrix's experts a pass of ``width`` tokens reads; 1 without any.

        Of one token exactly those chosen, of more as many as if each expert were as likely.
        """
        mixture = self.config.experts
        return 1 if mixture is None or matrix.role not in EXPERT_ROLES else mixture.active(width)

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        """Return the shape of a shared buffer, slots first; of one sequence where it keeps some."""
        c, lanes, width = self.config, self.config.num_lanes, self.max_width
        heads, kv_heads, key = c.num_heads // lanes, c.cached_heads // lanes, c.cached_width
        unnormed = (heads + kv_heads) * key if c.qk_norm is QkNorm.ALL else 0
        latents = 0 if c.latent is None else (c.latent.query_rank or 0) + c.latent.cached
        delta = c.delta
        mixed = 0 if delta is None else delta.mixed
        made = delta.columns if delta is not None else 0 if c.latent is None else c.out_columns
        kept = 0 if delta is None else delta.state + (delta.kernel - 1) * delta.channels
        units = 1 if delta is None else delta.key_heads
        shapes: dict[Buffer, tuple[int, ...]] = {
            Buffer.TOKENS: (width,),
            Buffer.QUERY: (lanes, width, heads * key),
            Buffer.KEY_VALUE: (c.num_layers, c.cached_lists, lanes, self.context, kv_heads, key),
            Buffer.ATTENTION: (lanes, self.splits, width, heads, key + 2),
            Buffer.ATTENTION_OUTPUT: (self.attention_slots, lanes, width, c.hidden_size),
            Buffer.HIDDEN: (lanes, width, self.hidden_columns),
            Buffer.MLP_OUTPUT: (self.mlp_slots, lanes, width, c.hidden_size),
            Buffer.STREAM: (lanes, width, c.hidden_size),
            Buffer.LOGITS: (min(width, MAX_WIDTH), c.vocab_size),
            Buffer.UNNORMED: (lanes, width, unnormed),
            Buffer.ROUTED: (1, width, 0 if c.experts is None else c.experts.count),
            Buffer.LATENTS: (1, width, latents),
            Buffer.HEADS: (1, width, made),
            Buffer.QUERY_GATE: (lanes, width, heads * key if c.attention_gate else 0),
            Buffer.MIXED: (1, width, mixed),
            Buffer.STATE: (c.num_layers, units, kept // units),
        }
        return shapes[buffer]

    def find(self, kind: PhaseKind, layer: int = -1) -> Phase:
        """Return the phase of that kind and layer."""
        return next(p for p in self.phases if p.kind is kind and p.layer == layer)

"""The static plan of a pass: an immutable value that every executor runs as it stands.

Why not a graph that a scheduler walks: the order never changes from token to token, so a decision
made at run time would be the same decision made each time, on the critical path.
"""

from dataclasses import dataclass
from math import prod

from monolane.model import Head, ModelConfig, WeightFormat, find_format
from monolane.ops import EXPERT_ROLES, MAX_WIDTH, Buffer, Role, Room
from monolane.plan._device import DeviceDescription
from monolane.plan._groups import Groups
from monolane.plan._phase import OF_LAYERS, OUTPUTS, Matrix, Phase, PhaseKind
from monolane.plan._split import Share

# Where a matrix is: its role, and its layer or None outside the layers.
Place = tuple[Role, int | None]

# Token positions of a pass that reads nothing but a prompt, where it multiplies faster so. In a
# mixture an expert serves some of the tokens only, and has few of 64.
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
    output_slots: tuple[int, ...]  # ring slots of each of OUTPUTS
    keys: str  # format of cached keys and values
    phases: tuple[Phase, ...]
    formats: tuple[tuple[Place, str], ...] = ()  # of the matrices that are not stored in ``dtype``

    @staticmethod
    def widest(config: ModelConfig) -> int:
        """Return how many token positions of a model a pass may have, on any device.

        States of a fixed size keep the inputs of a pass apart: none of those is wider than it may
        have drafts.
        """
        if config.layers_with_states:
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

    def key_bytes(self, layer: int) -> int:
        """Return the bytes of one cached key or value of one KV head."""
        return find_format(self.keys).row_bytes(self.config.attention(layer).cached_width)

    @property
    def position_bytes(self) -> int:
        """Bytes that all layers cache of a token."""
        return sum(
            x.kept_lists * x.cached_heads * self.key_bytes(layer)
            for layer, x in self.config.attentions.items()
        )

    @property
    def room(self) -> Room:
        """What the shapes of buffers depend on beside the operations' own sizes."""
        groups = self.groups
        return Room(
            lanes=self.config.num_lanes,
            hidden=self.config.hidden_size,
            width=self.max_width,
            context=self.context,
            workers=groups.workers_each,
            group_lanes=groups.lanes_each,
            tiled=self.device.tile_rows > 0,
        )

    def splits_of(self, layer: int) -> int:
        """Return S, the parts into which the keys of one KV head are cut."""
        return self.config.attention(layer).splits(self.room)

    @property
    def splits(self) -> int:
        """S of the layer that has most."""
        return max((self.splits_of(layer) for layer in self.config.attentions), default=1)

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

    def active_experts(self, matrix: Matrix, width: int) -> float:
        """Return how many of a matrix's experts a pass of ``width`` tokens reads; 1 without any.

        Of one token exactly those chosen, of more as many as if each expert were as likely.
        """
        mixture = self.config.experts
        return 1 if mixture is None or matrix.role not in EXPERT_ROLES else mixture.active(width)

    def size(self, buffer: Buffer) -> int:
        """Return the numbers of a slot of a shared buffer, at most: layers may differ."""
        if buffer not in OF_LAYERS:
            return prod(self.shape(buffer))
        places = ((i, j) for i, x in enumerate(self.config.modules) for j in range(len(x)))
        return max(prod(self.shape(buffer, i, OUTPUTS[j])) for i, j in places)

    def slots(self, buffer: Buffer) -> int:
        """Return how many there are of a buffer: of rings, and of what a sequence keeps."""
        rings = {
            **dict(zip(OUTPUTS, self.output_slots, strict=True)),
            Buffer.KEY_VALUE: self.config.num_layers,
            Buffer.STATE: self.config.num_layers,
        }
        return rings.get(buffer, 1)

    def shape(
        self, buffer: Buffer, layer: int = -1, module: Buffer | None = None
    ) -> tuple[int, ...]:
        """Return the shape of a slot of a shared buffer, as a layer's module uses it.

        Of what a sequence keeps, that of one sequence. A module is said by where it puts its
        outputs; without it, it is the first that uses the buffer.
        """
        c, lanes, width = self.config, self.config.num_lanes, self.max_width
        common: dict[Buffer, tuple[int, ...]] = {
            Buffer.TOKENS: (width,),
            **{
                ring: (lanes, width, c.hidden_size) if slots else (0,)
                for ring, slots in zip(OUTPUTS, self.output_slots, strict=True)
            },
            Buffer.STREAM: (lanes, width, c.hidden_size),
            Buffer.LOGITS: (min(width, MAX_WIDTH), c.vocab_size),
            Buffer.ALTUP: (1, width, (c.num_streams - 1) * c.hidden_size),
        }
        if buffer in common:
            return common[buffer]
        for modules in c.modules if layer < 0 else (c.modules[layer],):
            for place, own in zip(OUTPUTS, modules, strict=False):
                found = own.operation.buffers(self.room) if module in (place, None) else {}
                if buffer in found:
                    return found[buffer]
        return (0,)

    def find(self, kind: PhaseKind, layer: int = -1) -> Phase:
        """Return the phase of that kind and layer."""
        return next(p for p in self.phases if p.kind is kind and p.layer == layer)

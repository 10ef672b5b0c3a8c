"""Where everything of a monokernel lies: the tiles in the weights' runs, the exchange buffers, the
cache, and the shared memory of a block. Kernel, packing and launch all read it from here.

Block b of W = lanes * blocks serves lane b // blocks. Blocks are the plan's workers: whose rows are
whose is for the plan to say. Several devices have a run of lanes each, in their order: weights and
cache of those alone, and of all else what one device would have.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from monolane.cuda._program import (
    Exchange,
    Program,
    Rule,
    Slots,
    lower,
    share_layers,
)
from monolane.cuda._shared_memory import Shared, stride
from monolane.cuda._switches import NONE, Switch
from monolane.cuda._tiling import TILE, Tiling
from monolane.model import FORMATS, QkNorm, Role, formats_of
from monolane.plan import PhaseKind, Plan, Scope, Share, split

PRODUCTS = (PhaseKind.QKV, PhaseKind.OUT, PhaseKind.GATE_UP, PhaseKind.DOWN, PhaseKind.HEAD)
TILE_BYTES = {name: TILE * TILE * FORMATS[name].bits // 8 for name in formats_of("cuda")}
# Formats with a float32 scale for each row of the weights.
ROW_SCALED = tuple(name for name in TILE_BYTES if FORMATS[name].group < 0)
# Roles whose rows are shared out; the kernel's tables of shares come in this order.
SHARED_ROLES = (Role.Q, Role.K, Role.V, Role.O, Role.GATE, Role.DOWN, Role.HEAD)
SHARE_TABLES = len(SHARED_ROLES) + 3  # and those of ATTEND, GATHER and MERGE
GAIN_DTYPES = ("bfloat16", "float16")  # of norms that TABLES keeps as they are stored
_MERGED_APART = 1 << 14  # numbers that a block would read to merge the splits of a token
# What one SM needs on its way is some 30 KB: 36 GB/s, times a loaded trip of at most 1 us.
_IN_FLIGHT_BYTES = 72 << 10


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """What differs from layer to layer in the kernel's tables."""

    window: int  # 0: none
    capacity: int  # cached positions: position p lies in row p % capacity
    kv_offset: int  # bytes from the beginning of a sequence's cache
    attention: Rule  # how the module's outputs join the streams
    mlp: Rule


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a plan on blocks of ``warps`` consumer warps and one that streams."""

    plan: Plan
    warps: int
    slot_bytes: int  # of a ring slot, at most
    shared_limit: int  # bytes of shared memory that a block may use
    tile_bytes: int
    tilings: dict[PhaseKind, Tiling]
    layers: tuple[LayerLayout, ...]
    ring_slots: int
    shared: Shared
    wide: bool  # the activations of a pass do not fit into shared memory
    devices: int = 1  # that the lanes are dealt out to
    kept_passes: int = 0  # whose words are all kept, for diagnosis
    switches: Switch = NONE
    # Products whose parts are added round by round, since all their sums have no place in shared
    # memory.
    folded: tuple[PhaseKind, ...] = ()

    @property
    def merge(self) -> Share | None:
        """Who merges which pairs of a lane's attention; None: who multiplies by it merges all.

        Apart, each partial sum is read once in a lane, not by every block; it costs one exchange.
        In a wide pass each block merges tokens of its own.
        """
        return None if self.wide else self.merge_share

    @property
    def merge_share(self) -> Share | None:
        """The same of kernels whose passes are not wide: kernels share their tables."""
        c, blocks = self.plan.config, self.blocks
        pairs = c.num_heads // c.num_lanes * c.head_dim // 2
        many = 2 * pairs * self.plan.splits >= _MERGED_APART
        if pairs % 2 or not many or self.kept_passes:  # words for diagnosis hold one number
            return None
        return Share(Scope.GROUP, split(pairs, blocks))

    @property
    def merge_sizes(self) -> tuple[int, int]:
        """Pairs and heads of a block that merges, at most."""
        if self.merge is None:
            return 0, 0
        pairs = self.plan.config.head_dim // 2
        spans = [(begin // pairs, -(-end // pairs)) for begin, end in pairwise(self.merge.bounds)]
        return (
            max(end - begin for begin, end in pairwise(self.merge.bounds)),
            max(end - begin for begin, end in spans),
        )

    @property
    def total_rows(self) -> int:
        """Rows of a block's product, at most, among those that are folded."""
        return max((self.tilings[kind].padded_rows for kind in self.folded), default=0)

    def sum_bytes(self, kind: PhaseKind) -> int:
        """Bytes of a product's sums, of all parts, in shared memory."""
        tiling = self.tilings[kind]
        rows = tiling.round_rows if kind in self.folded else tiling.padded_rows
        return 4 * tiling.parts * rows * self.width

    @property
    def gains_apart(self) -> bool:
        """Whether norms that are read before products are kept in 16 bits, too."""
        return Switch.TABLES in self.switches and self.plan.config.norm_before

    @property
    def early_tables(self) -> bool:
        """Whether gains, rotary and shares lie in shared memory: a wide pass has no room there."""
        return self.gains_apart and not self.wide

    @property
    def paired_hidden(self) -> bool:
        """Whether a word holds two hidden units: both must be one block's."""
        units = self.plan.config.intermediate_size // self.plan.config.num_lanes
        (share, _) = (x.share for x in self.plan.find(PhaseKind.GATE_UP, 0).matrices)
        wanted = Switch.PAIRS in self.switches and not self.wide
        return wanted and units % 4 == 0 and _is_even(share)

    @property
    def paired_values(self) -> bool:
        """Whether a word holds two numbers of a value."""
        shares = [x.share for x in self.plan.find(PhaseKind.QKV, 0).matrices]
        even = self.plan.config.head_dim % 4 == 0 and all(map(_is_even, shares))
        return Switch.PAIRS in self.switches and even

    @property
    def share_layers(self) -> int:
        """Ways in which layers share rows out, by turns."""
        return share_layers(self.plan)

    @property
    def shares(self) -> int:
        """Shares of a block, of all tables and ways."""
        return SHARE_TABLES * self.share_layers

    @property
    def slots_in_flight(self) -> int:
        """Ring slots that may be on their way at a time."""
        if Switch.IN_FLIGHT not in self.switches:
            return self.ring_slots
        return max(1, min(self.ring_slots - 1, _IN_FLIGHT_BYTES // self.slot_bytes))

    @property
    def merged_rows(self) -> int:
        """Query rows for which the warps' attention is merged at a time."""
        heads = self.plan.config.num_heads // self.plan.config.num_kv_heads
        return min(16 if self.wide else 4, heads * self.width)

    @property
    def width(self) -> int:
        """Token positions of a pass at most, T."""
        return self.plan.max_width

    @property
    def blocks(self) -> int:
        """Blocks of a lane."""
        return self.plan.groups.workers_each

    @property
    def device_lanes(self) -> int:
        """Lanes of a device."""
        return self.plan.config.num_lanes // self.devices

    @property
    def device_workers(self) -> int:
        """Blocks of a device."""
        return self.plan.groups.workers // self.devices

    @property
    def run_bytes(self) -> int:
        """Bytes of weights that a block streams in a pass."""
        return sum(self.phase_offsets[-1:]) + self.tilings[PhaseKind.HEAD].run_bytes(
            self.tile_bytes
        )

    @property
    def phase_offsets(self) -> tuple[int, ...]:
        """Offset in a block's run of each product: 4 of each layer, then the head."""
        offsets = [0]
        for _ in self.layers:
            for kind in PRODUCTS[:-1]:
                offsets.append(offsets[-1] + self.tilings[kind].run_bytes(self.tile_bytes))
        return tuple(offsets)

    @property
    def rounds(self) -> npt.NDArray[np.uint8]:
        """Rounds of blocks' products: [W, 4 x ways + 1], of each way's layer, then the head's."""
        places = [(kind, i) for i in range(self.share_layers) for kind in PRODUCTS[:-1]]
        places.append((PhaseKind.HEAD, -1))
        counts = [self.tilings[x].rounds_of(row_counts(self.plan, x, i)) for x, i in places]
        return np.stack(counts, axis=1).astype(np.uint8)

    @property
    def uneven(self) -> bool:
        """Whether blocks stream different numbers of ring slots."""
        return len(np.unique(self.rounds, axis=0)) > 1

    @property
    def row_offsets(self) -> tuple[int, ...]:
        """Number, in a block's list of scales, of each product's first row; then of all rows."""
        offsets = [0]
        kinds = [kind for _ in self.layers for kind in PRODUCTS[:-1]] + [PhaseKind.HEAD]
        for kind in kinds:
            offsets.append(offsets[-1] + self.tilings[kind].padded_rows)
        return tuple(offsets)

    @property
    def scale_rows(self) -> int:
        """Rows of a block's run that have a scale, the padding's among them."""
        return self.row_offsets[-1] if self.plan.dtype in ROW_SCALED else 0

    @property
    def kv_row_bytes(self) -> int:
        """Bytes of a cached key or value: whole steps of a matrix product, 16 elements."""
        return -(-self.plan.config.head_dim // 16) * 32

    @property
    def query_stride(self) -> int:
        """Bytes between the queries of two rows in shared memory."""
        return stride(self.kv_row_bytes)

    @property
    def kv_bytes(self) -> int:
        """Bytes of one sequence's cache on a device: of each layer [KV head][K, V][capacity] rows.

        In tiles of 16 positions: keys [16][row], values [row][16]; see kernels/attend.cuh.
        """
        last = self.layers[-1]
        heads = self.plan.config.num_kv_heads // self.devices
        return last.kv_offset + 2 * heads * last.capacity * self.kv_row_bytes

    @property
    def own_rows(self) -> int:
        """Rows of the residual stream that a block owns, at most."""
        return row_range(self.plan, PhaseKind.OUT)[1]

    @property
    def activation_stride(self) -> int:
        """Bytes between the activations of two tokens."""
        columns = max(tiling.padded_columns for tiling in self.tilings.values())
        return stride(2 * columns)

    @property
    def raw_slots(self) -> tuple[int, int]:
        """Ring slots of the raw outputs of attention and of the MLP; ``prove`` shows they suffice.

        At least two: a lane that sums now may publish again before a slower one has read. Where
        layers that do not exchange lie between those that do, a lane may run further ahead than any
        ring is long, but not beyond the pass: there every layer has a slot of its own.
        """
        found = []
        delays_of = [x.attention.delay for x in self.layers], [x.mlp.delay for x in self.layers]
        for slots, delays in zip(self.plan.output_slots, delays_of, strict=False):
            first = next((i for i, delay in enumerate(delays) if delay > 0), len(delays))
            regular = len(set(delays[first:])) <= 1 and len(set(delays[:first])) <= 1
            found.append(max(2, slots) if regular else max(2, len(delays)))
        return found[0], found[1]

    @property
    def program(self) -> Program:
        """What a block does in a pass."""
        attention, mlp = self.raw_slots
        slots = Slots(attention=attention, mlp=mlp, layers=self.share_layers, kept=self.kept_passes)
        local = Switch.NORM in self.switches
        return lower(
            self.plan, self.wide, slots, self.devices, local_squares=local, merge=self.merge
        )

    @property
    def words(self) -> dict[str, int]:
        """Words of 8 bytes in each buffer that blocks share; named as in the kernel's Params.

        The same on every device, so that a word lies as far behind the first of them on each.
        """
        c, plan, t = self.plan.config, self.plan, self.width
        lanes, d, workers = c.num_lanes, c.hidden_size, plan.groups.workers
        heads = c.num_heads + 2 * c.num_kv_heads
        x, program = Exchange, self.program
        slots, copies, own = program.slots, program.copies, workers * t * _even(self.own_rows) // 2
        qkv, partial = t * heads * c.head_dim, plan.splits * t * c.num_heads * _even(c.head_dim + 2)
        return {
            "stream_words": copies(x.STREAM) * lanes * t * d,
            "square_words": copies(x.SQUARES) * lanes * t * _even(self.blocks),
            "gained_words": copies(x.GAINED) * lanes * t * _even(self.blocks)
            if c.norm_after
            else 2,
            "qkv_words": copies(x.QKV) * qkv,
            "head_square_words": copies(x.HEAD_SQUARES) * lanes * t * 2 * _even(self.blocks)
            if c.qk_norm is QkNorm.ALL
            else 2,
            "partial_words": copies(x.PARTIAL) * partial,
            "merged_words": copies(x.MERGED) * t * c.num_heads * c.head_dim // 2
            if self.merge
            else 2,
            "hidden_words": copies(x.HIDDEN) * t * lanes * _even(c.intermediate_size // lanes),
            "raw_words": copies(x.LANES) * lanes * t * d,
            "joined_words": copies(x.JOINED) * lanes * t * d if plan.shared_head else 2,
            "candidate_words": copies(x.CANDIDATES) * t * workers * 2,
            "best_words": copies(x.BEST) * t * self.devices * 2,
            "alarm_word": 2,
            "control_words": copies(x.CONTROL),
            "logit_words": copies(x.LOGITS) * t * _even(c.vocab_size),
            "decision_words": copies(x.DECISION) * t,
            "verdict_words": copies(x.GUIDE) * _even(t),
            "lane_counters": 16 * lanes,
            "activation_rows": slots.activations * lanes * t * self.activation_stride // 8
            if self.wide
            else 2,
            "totals": workers * t * _even(self.total_rows) // 2 or 2,
            "own_streams": own if self.wide else 2,
            "own_gains": own if self.wide and c.norm_after else 2,
        }


def _is_even(share: Share) -> bool:
    return all(bound % 2 == 0 for bound in share.bounds)


def row_counts(plan: Plan, kind: PhaseKind, layer: int) -> npt.NDArray[np.int64]:
    """Return the rows of each worker in a phase: [W]."""
    matrices = plan.find(kind, layer).matrices
    each = sum((np.diff(x.share.bounds) for x in matrices), np.zeros(1, np.int64))
    return np.resize(each, plan.groups.workers)


def row_range(plan: Plan, kind: PhaseKind) -> tuple[int, int]:
    """Return the rows of the block that has fewest in a kind of phase, and those of the busiest."""
    layers = (-1,) if kind is PhaseKind.HEAD else range(share_layers(plan))
    counts = np.concatenate([row_counts(plan, kind, layer) for layer in layers])
    return int(counts.min()), int(counts.max())


def _even(count: int) -> int:
    return count + count % 2

"""Where everything of a monokernel lies: the tiles in the weights' runs, the exchange buffers, the
cache, and the shared memory of a block. Kernel, packing and launch all read it from here.

Block b of W = lanes * blocks serves lane b // blocks. Blocks are the plan's workers: whose rows are
whose is for the plan to say. Several devices have a run of lanes each, in their order: weights and
cache of those alone, and of all else what one device would have.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from monolane.cuda._params import ADVANCE_DTYPE
from monolane.cuda._program import (
    Exchange,
    Program,
    Rule,
    Slots,
    lower,
    rules_of,
    share_layers,
)
from monolane.cuda._switches import NONE, Switch
from monolane.cuda._tiling import TILE, Tiling, find_tiling, in_smaller_slots
from monolane.errors import BackendError, ConfigError
from monolane.model import FORMATS, ModelConfig, Role, formats_of
from monolane.plan import MAX_WIDTH, Buffer, PhaseKind, Plan, Scope, Share, split

PRODUCTS = (PhaseKind.QKV, PhaseKind.OUT, PhaseKind.GATE_UP, PhaseKind.DOWN, PhaseKind.HEAD)
TILE_BYTES = {name: TILE * TILE * FORMATS[name].bits // 8 for name in formats_of("cuda")}
# Formats with a float32 scale for each row of the weights.
ROW_SCALED = tuple(name for name in TILE_BYTES if FORMATS[name].group < 0)
# Roles whose rows are shared out; the kernel's tables of shares come in this order.
SHARED_ROLES = (Role.Q, Role.K, Role.V, Role.O, Role.GATE, Role.DOWN, Role.HEAD)
# Fields of a model's config that the kernels compute beyond what every executor does.
_COMPUTED = (
    "qkv_bias", "qk_norm=head", "qk_unscaled", "norm_turned", "query_scale", "score_cap",
    "layers.rotary", "local_rotary", "rotary.amplitude", "rotary.part", "attention_temperature",
    "activation=gelu_tanh", "norm_offset", "embedding_scale", "residual_scale", "logit_scale",
    "logit_cap",
)  # fmt: skip
SHARE_TABLES = len(SHARED_ROLES) + 3  # and those of ATTEND, GATHER and MERGE
GAIN_DTYPES = ("bfloat16", "float16")  # of norms that TABLES keeps as they are stored
HELD_STOPS = 32  # stop tokens that a block keeps in shared memory, with TOKEN_END
_SMALL_SLOT_BYTES = 12 << 10
_MERGED_APART = 1 << 14  # numbers that a block would read to merge the splits of a token
_NARROW = 16  # rows of a pass whose activations live in shared memory, if they fit
# What one SM needs on its way is some 30 KB: 36 GB/s, times a loaded trip of at most 1 us.
_IN_FLIGHT_BYTES = 72 << 10
_BANKS = 128  # bytes: shared memory serves 32 words at a time


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """What differs from layer to layer in the kernel's tables."""

    window: int  # 0: none
    capacity: int  # cached positions: position p lies in row p % capacity
    kv_offset: int  # bytes from the beginning of a sequence's cache
    attention: Rule  # how the module's outputs join the streams
    mlp: Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Byte offsets within a block's shared memory."""

    ring: int
    barriers: int
    activations: int  # 16-bit [T][stride]; in memory in a wide pass
    stage: int  # wide passes: the activations of two ring slots
    partial: int  # float: the parts of a phase's sums, or attention's partial results
    stream: int  # float [T][own rows]: the block's rows of the stream; in memory in a wide pass
    query: int  # 16-bit [T][query heads of a KV head][query stride]
    scales: int  # float: of the rows of a phase's product, where rows have scales
    gains: int  # 16-bit [D]: of the next norm, with TABLES
    rotary: int  # float [T][h]: of the pass's positions, with TABLES
    shares: int  # [tables of a layer, or of all]: the block's own, with TABLES
    rounds: int  # u8 [4 x ways of sharing out + 1]: the block's own, where blocks differ
    requests: int  # Advance [T], then the first stop tokens, with TOKEN_END
    squares: int  # float [2][B], then the first rows of a lane's blocks [B + 1], with NORM
    state: int
    total: int


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
    def early_tables(self) -> bool:
        """Whether gains, rotary and shares lie in shared memory: a wide pass has no room there."""
        return Switch.TABLES in self.switches and not self.wide

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
        return _stride(self.kv_row_bytes)

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
        return _row_range(self.plan, PhaseKind.OUT)[1]

    @property
    def activation_stride(self) -> int:
        """Bytes between the activations of two tokens."""
        columns = max(tiling.padded_columns for tiling in self.tilings.values())
        return _stride(2 * columns)

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
        slots, copies = program.slots, program.copies
        qkv, partial = t * heads * c.head_dim, plan.splits * t * c.num_heads * _even(c.head_dim + 2)
        return {
            "stream_words": copies(x.STREAM) * lanes * t * d,
            "square_words": copies(x.SQUARES) * lanes * t * _even(self.blocks),
            "qkv_words": copies(x.QKV) * qkv,
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
            "own_streams": workers * t * _even(self.own_rows) // 2 if self.wide else 2,
        }


def lay_out(
    plan: Plan,
    *,
    warps: int = 8,
    slot_bytes: int = 24 << 10,
    shared_limit: int = 227 << 10,
    wide: bool | None = None,
    devices: int = 1,
    kept_passes: int = 0,
    switches: Switch = NONE,
    few_slots: int = 4,
    widens: bool = True,
) -> Layout:
    """Return the layout of a plan; ConfigError if the model does not fit the kernel.

    wide     whether activations live in memory; None: from 17 tokens a pass on
    widens   where wide is None: also if they do not fit into shared memory
    devices  that the lanes are dealt out to: a divisor of their number
    kept_passes
             for diagnosis: every word of so many passes in a row stays where it was published, in a
             place of its own; 0: places are used again, as soon as nobody needs what is there
    switches see ``Switch``; with SLOTS ``slot_bytes`` is what the products are cut for, and slots
             have 12 KB where tiles fit into them
    few_slots
             of a ring: before it has fewer, sums of products are folded round by round; 0: never
    """
    _check(plan, warps)
    if Switch.TABLES in switches and plan.config.dtype not in GAIN_DTYPES:
        raise ConfigError(
            f"cuda: Switch.TABLES: expected norms stored in {' or '.join(GAIN_DTYPES)}, got "
            f"{plan.config.dtype}; leave it off"
        )
    if plan.config.num_lanes % devices:
        raise ConfigError(
            f"cuda: expected a number of devices that divides the {plan.config.num_lanes} lanes of "
            f"the model, got {devices}"
        )
    if Switch.PAIRS in switches and kept_passes:
        raise ConfigError("cuda: Switch.PAIRS: words for diagnosis hold one number; leave it off")
    tile_bytes = TILE_BYTES[plan.dtype]
    tilings = {}
    for kind in PRODUCTS:
        matrices = plan.find(kind, 0 if kind is not PhaseKind.HEAD else -1).matrices
        least, most = _row_range(plan, kind)
        capacity = slot_bytes // tile_bytes
        tilings[kind] = find_tiling(most, matrices[0].columns, warps, capacity, least)
    if Switch.SLOTS in switches and slot_bytes > _SMALL_SLOT_BYTES:
        tilings = {
            kind: in_smaller_slots(tiling, _SMALL_SLOT_BYTES // tile_bytes)
            for kind, tiling in tilings.items()
        }
        slot_bytes = max(_SMALL_SLOT_BYTES, *(x.slot_bytes(tile_bytes) for x in tilings.values()))
    draft = Layout(
        plan, warps, slot_bytes, shared_limit, tile_bytes, tilings, _layers(plan, devices), 0,
        Shared(ring=0, barriers=0, activations=0, stage=0, partial=0, stream=0, query=0, scales=0,
               gains=0, rotary=0, shares=0, rounds=0, requests=0, squares=0, state=0, total=0),
        plan.max_width > _NARROW if wide is None else wide, devices, kept_passes, switches,
    )  # fmt: skip
    found = _with_ring(draft, few_slots)
    if found.ring_slots < 2 and widens and wide is None and 1 < plan.max_width <= _NARROW:
        found = _with_ring(replace(draft, wide=True), few_slots)
    if found.ring_slots < 2:
        raise ConfigError(
            f"cuda: expected room for at least 2 ring slots of {slot_bytes} bytes beside "
            f"{_shared(found, 0).total} bytes in the {shared_limit} of a block; use a smaller "
            f"width than {plan.max_width}"
        )
    return found


def _with_ring(draft: Layout, few_slots: int) -> Layout:
    """Return a layout with the ring for which there is room; the largest sums give way first."""
    largest = sorted(PRODUCTS, key=draft.sum_bytes, reverse=True)
    for count in range(len(PRODUCTS) + 1 if few_slots else 1):
        folded = tuple(kind for kind in largest[:count] if draft.tilings[kind].rounds > 1)
        draft = replace(draft, folded=folded)
        slots = (draft.shared_limit - _shared(draft, 0).total) // (draft.slot_bytes + 16)
        if slots >= few_slots:
            break
    slots = max(slots, 0)
    return replace(draft, ring_slots=slots, shared=_shared(draft, slots))


def check_computed(config: ModelConfig) -> None:
    """Refuse by its name a field that the kernels do not compute: BackendError."""
    config.check_features("cuda", *_COMPUTED)
    local = config.local_rotary
    if local is not None and local.part != config.rotary.part:
        raise BackendError(
            f"rotary.part: the cuda backend expects as much of a head to turn in all layers, got "
            f"{config.rotary.part} and {local.part}; choose another backend"
        )


def _check(plan: Plan, warps: int) -> None:
    c, groups = plan.config, plan.groups
    check_computed(c)
    if groups.lanes_each != 1:
        raise ConfigError(
            f"cuda: expected a multiple of the {c.num_lanes} lanes as workers, got {groups.workers}"
        )
    if plan.dtype not in TILE_BYTES:
        raise ConfigError(f"cuda: expected dtype {', '.join(TILE_BYTES)}, got {plan.dtype}")
    if plan.device.chunk % 16:
        raise ConfigError(
            f"cuda: expected chunks of a multiple of 16 keys, got {plan.device.chunk}"
        )
    if plan.device.tile_rows != TILE:
        raise ConfigError(f"cuda: expected tiles of {TILE} rows, got {plan.device.tile_rows}")
    stream = [plan.find(kind, 0).matrices[0].share for kind in (PhaseKind.OUT, PhaseKind.DOWN)]
    if stream[0] != stream[1]:
        raise ConfigError("cuda: expected OUT and DOWN to share the residual stream out alike")
    # A block that owns no row would publish nothing, and so could fall behind unseen.
    bounds = stream[0].bounds
    if any(begin == end for begin, end in pairwise(bounds)):
        raise ConfigError(
            f"cuda: expected at most {c.hidden_size} blocks a lane, got {groups.workers_each}"
        )


def _is_even(share: Share) -> bool:
    return all(bound % 2 == 0 for bound in share.bounds)


def row_counts(plan: Plan, kind: PhaseKind, layer: int) -> npt.NDArray[np.int64]:
    """Return the rows of each worker in a phase: [W]."""
    matrices = plan.find(kind, layer).matrices
    each = sum((np.diff(x.share.bounds) for x in matrices), np.zeros(1, np.int64))
    return np.resize(each, plan.groups.workers)


def _row_range(plan: Plan, kind: PhaseKind) -> tuple[int, int]:
    """Return the rows of the block that has fewest in a kind of phase, and those of the busiest."""
    layers = (-1,) if kind is PhaseKind.HEAD else range(share_layers(plan))
    counts = np.concatenate([row_counts(plan, kind, layer) for layer in layers])
    return int(counts.min()), int(counts.max())


def _layers(plan: Plan, devices: int) -> tuple[LayerLayout, ...]:
    config, chunk = plan.config, plan.device.chunk
    row = 2 * (config.num_kv_heads // devices) * (-(-config.head_dim // 16) * 32)
    offset, found, rules = 0, [], rules_of(plan)
    for i, layer in enumerate(config.layers):
        # The oldest key that the first token of a pass sees, and the last that the pass writes, are
        # window + MAX_WIDTH - 1 apart; the same for passes of every width, which share the cache.
        needed = min(plan.context, layer.window + MAX_WIDTH) if layer.window else plan.context
        capacity = -(-needed // chunk) * chunk
        found.append(
            LayerLayout(
                window=layer.window or 0,
                capacity=capacity,
                kv_offset=offset,
                attention=rules[Buffer.FIRST_OUTPUT, i],
                mlp=rules[Buffer.SECOND_OUTPUT, i],
            )
        )
        offset += row * capacity
    return tuple(found)


def _shared(layout: Layout, ring_slots: int) -> Shared:
    c, t = layout.plan.config, layout.width
    tilings = tuple(layout.tilings.values())
    partial = max(map(layout.sum_bytes, PRODUCTS))
    scratch = 4 * layout.warps * layout.merged_rows * (c.head_dim + 2)
    merged = 8 * t * layout.plan.splits * sum(layout.merge_sizes)
    partial = max(partial, scratch, merged, 4096)  # 4096: the histogram of a choice
    query = t * (c.num_heads // c.num_kv_heads) * layout.query_stride
    sizes = {"ring": ring_slots * layout.slot_bytes, "barriers": ring_slots * 16}
    if layout.wide:
        # Staged activations, sums and queries take turns at one place, but for sums that must
        # outlast the staging of a second round.
        stage = max(2 * x.parts * t * x.step * 32 for x in tilings)
        apart = any(x.rounds > 1 for kind, x in layout.tilings.items() if kind not in layout.folded)
        sizes |= {"stage": stage if apart else 0}
        sizes |= {
            "partial": max(partial if apart else max(partial, stage), _round(scratch) + query)
        }
    else:
        sizes |= {
            "activations": t * layout.activation_stride,
            "partial": partial,
            "stream": 4 * t * layout.own_rows,
            "query": query,
        }
    scales = max(x.padded_rows for x in tilings) if layout.plan.dtype in ROW_SCALED else 0
    early = layout.early_tables
    requests = ADVANCE_DTYPE.itemsize * t + 4 * HELD_STOPS
    if Switch.TOKEN_END not in layout.switches:
        requests = 0
    sizes |= {
        "scales": 4 * scales,
        "gains": early * 2 * c.hidden_size,
        "rotary": early * 4 * t * c.head_dim * (1 if c.local_rotary is None else 2),
        "shares": early * 8 * SHARE_TABLES * layout.share_layers,
        "rounds": layout.uneven * (4 * layout.share_layers + 1),
        "squares": 4 * (3 * layout.blocks + 1) if Switch.NORM in layout.switches else 0,
        "requests": requests,
        "state": 512 + (96 + 8 * layout.warps) * t,
    }
    offsets, at = {}, 0
    for name, size in sizes.items():
        offsets[name] = at
        at += _round(size)
    if layout.wide:
        offsets |= {"activations": 0, "stream": 0, "query": offsets["partial"] + _round(scratch)}
    offsets.setdefault("stage", 0)
    return Shared(**offsets, total=at)


def _round(size: int) -> int:
    return -(-size // _BANKS) * _BANKS


def _stride(least: int) -> int:
    """Return bytes >= least such that eight tokens' 32-byte pieces fall on different banks."""
    return -(-(least - 32) // _BANKS) * _BANKS + 32 if least > 32 else 32


def _even(count: int) -> int:
    return count + count % 2

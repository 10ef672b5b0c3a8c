"""From a plan to the layout of a kernel that runs it: tiles, slots, the ring, shared memory."""

from dataclasses import replace
from itertools import pairwise

from monolane.cuda._computed import check_computed
from monolane.cuda._layout import (
    GAIN_DTYPES,
    PRODUCTS,
    TILE_BYTES,
    LayerLayout,
    Layout,
    row_range,
)
from monolane.cuda._params import ADVANCE_DTYPE
from monolane.cuda._program import rules_of
from monolane.cuda._shared_memory import HELD_STOPS, Shared, aligned
from monolane.cuda._switches import NONE, Switch
from monolane.cuda._tiling import TILE, find_tiling, in_smaller_slots
from monolane.errors import ConfigError
from monolane.model import QkNorm
from monolane.plan import MAX_WIDTH, Buffer, PhaseKind, Plan

_SMALL_SLOT_BYTES = 12 << 10
_NARROW = 16  # rows of a pass whose activations live in shared memory, if they fit


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
        least, most = row_range(plan, kind)
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
        Shared(ring=0, barriers=0, activations=0, stage=0, partial=0, stream=0, gained=0, query=0,
               scales=0, gains=0, rotary=0, shares=0, rounds=0, requests=0, squares=0, state=0,
               total=0),
        plan.max_width > _NARROW if wide is None else wide, devices, kept_passes, switches,
    )  # fmt: skip
    found = _with_ring(draft, few_slots)
    if found.ring_slots < 2 and widens and wide is None and 1 < plan.max_width <= _NARROW:
        found = _with_ring(replace(draft, wide=True), few_slots)
    if found.ring_slots < 2:
        raise ConfigError(
            f"cuda: expected room for at least 2 ring slots of {slot_bytes} bytes beside "
            f"{_share_out_memory(found, 0).total} bytes in the {shared_limit} of a block; use a "
            f"smaller width than {plan.max_width}"
        )
    return found


def _with_ring(draft: Layout, few_slots: int) -> Layout:
    """Return a layout with the ring for which there is room; the largest sums give way first."""
    largest = sorted(PRODUCTS, key=draft.sum_bytes, reverse=True)
    for count in range(len(PRODUCTS) + 1 if few_slots else 1):
        folded = tuple(kind for kind in largest[:count] if draft.tilings[kind].rounds > 1)
        draft = replace(draft, folded=folded)
        slots = (draft.shared_limit - _share_out_memory(draft, 0).total) // (draft.slot_bytes + 16)
        if slots >= few_slots:
            break
    slots = max(slots, 0)
    return replace(draft, ring_slots=slots, shared=_share_out_memory(draft, slots))


def _share_out_memory(layout: Layout, ring_slots: int) -> Shared:
    """Return where everything lies in a layout, beside so many ring slots."""
    c, t = layout.plan.config, layout.width
    tilings = tuple(layout.tilings.values())
    partial = max(map(layout.sum_bytes, layout.tilings))
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
            "partial": max(partial if apart else max(partial, stage), aligned(scratch) + query)
        }
    else:
        sizes |= {
            "activations": t * layout.activation_stride,
            "partial": partial,
            "stream": 4 * t * layout.own_rows,
            "gained": 4 * t * layout.own_rows * c.norm_after,
            "query": query,
        }
    scales = max(x.padded_rows for x in tilings) if layout.scale_rows else 0
    early = layout.early_tables
    requests = ADVANCE_DTYPE.itemsize * t + 4 * HELD_STOPS
    if Switch.TOKEN_END not in layout.switches:
        requests = 0
    sizes |= {
        "scales": 4 * scales,
        "gains": early * 2 * c.hidden_size,
        "rotary": early * 4 * t * c.head_dim * (1 if c.local_rotary is None else 2),
        "shares": early * 8 * layout.shares,
        "rounds": layout.uneven * (4 * layout.share_layers + 1),
        "squares": 4 * (3 * layout.blocks + 1) if Switch.NORM in layout.switches else 0,
        "requests": requests,
        "state": 512 + (96 + 8 * layout.warps + 8 * (c.qk_norm is QkNorm.ALL)) * t,
    }
    offsets, at = {}, 0
    for name, size in sizes.items():
        offsets[name] = at
        at += aligned(size)
    if layout.wide:
        offsets |= {
            "activations": 0,
            "stream": 0,
            "gained": 0,
            "query": offsets["partial"] + aligned(scratch),
        }
    offsets.setdefault("stage", 0)
    return Shared(**offsets, total=at)


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

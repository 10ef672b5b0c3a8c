"""A model on the emulated monokernel, launch by launch, below the executor and without its threads.

Past 500 lines on purpose: memory, schedule and launches of an emulated device share one state.

Here time is virtual and everything is drawn from the launch's seed, so that a schedule replays, the
host may store at a moment of the kernel's own clock, and every word that blocks exchange can be
looked at and spoilt between launches. The executor's own tests run on EmulatedGpu instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import emulation
import ml_dtypes
import numpy as np
import numpy.typing as npt

from monolane.cuda._kernel_header import EVENTS, MASKED, PARKED_TOKEN, mask_words, specialisation
from monolane.cuda._lay_out import lay_out
from monolane.cuda._layout import Layout
from monolane.cuda._pack import pack, pack_scales
from monolane.cuda._params import (
    ADVANCE_DTYPE,
    BIAS_DTYPE,
    EPOCH_DTYPE,
    PARAMS_DTYPE,
    PROGRESS_DTYPE,
)
from monolane.cuda._switches import NONE, Switch
from monolane.cuda._tables import make_tables
from monolane.executor_api import Advance, Draw
from monolane.executor_api import pack as pack_advances
from monolane.model import (
    NOW,
    Checkpoint,
    Head,
    Kind,
    LayerConfig,
    ModelConfig,
    Role,
    Weights,
    lane_shape,
    layer_roles,
    read_config,
)
from monolane.plan import Choice, DeviceDescription, build

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
MakeRig = Callable[..., "Rig"]  # of weights and the wishes of Rig

GOLDEN = Path(__file__).parents[1] / "golden"
# Ticks: a pass of a tiny model takes a few thousand, tens of thousands where memory is slow.
PATIENCE = 20_000_000
POISON = 0xFF  # a NaN in every format


# ---- models ------------------------------------------------------------------------------------
@cache
def golden_weights(name: str) -> Weights:
    """A golden folder's weights."""
    folder = GOLDEN / name
    return Weights.load(read_config(folder), Checkpoint.open(folder))


def tiny_config(**changes: Any) -> ModelConfig:
    """Two lanes of one KV head each, in which every size is as small as the kernel takes it."""
    sizes: dict[str, Any] = {
        "family": "laneformer",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "num_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": 24,
        "max_positions": 64,
        "num_lanes": 2,
        "layers": (LayerConfig(NOW, NOW),) * 2,
        "head": Head.VOCAB_PARALLEL,
    }
    return ModelConfig(**(sizes | changes))


def random_weights(config: ModelConfig, seed: int = 0) -> Weights:
    """Weights that bfloat16 and float16 hold alike, so that only activations are rounded.

    Streams and logits have a size of about one.
    """
    rng = np.random.default_rng(seed)

    def make(role: Role) -> Floats:
        shape = lane_shape(config, role)
        if role.kind is Kind.NORM:
            values = rng.uniform(0.5, 1.5, size=shape)
        else:
            scale = 1.0 if role is Role.EMBEDDING else shape[-1] ** -0.5
            values = rng.normal(scale=scale, size=shape)
        # Beyond float16's smallest normal number a bfloat16 may lose bits to it.
        values[np.abs(values) < 2.0**-13] = 0
        return values.astype(ml_dtypes.bfloat16).astype(np.float32)

    outer = {role: make(role) for role in (Role.EMBEDDING, Role.FINAL_NORM, Role.HEAD)}
    if config.tie_embeddings:
        outer[Role.HEAD] = outer[Role.EMBEDDING].reshape(lane_shape(config, Role.HEAD))
    layers = tuple({role: make(role) for role in layer_roles(config)} for _ in config.layers)
    return Weights(config, outer, layers)


# ---- what is asked of a launch, and what comes of it -------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Ask:
    """What one slot is to do; the kernel's Advance."""

    tokens: Sequence[int]
    slot: int = 0
    budget: int = 1
    stops: Sequence[int] = ()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    all_logits: bool = False  # of every token, and nothing is drawn
    record_logits: bool = False  # those that tokens are drawn from
    logit_bias: Sequence[tuple[int, float]] = ()
    guided: bool = False
    mask: Any = None  # uint32 [ceil(V / 32)], of the first draw; None: its guide has not come


@dataclass(frozen=True)
class Outcome:
    """What a launch left."""

    events: tuple[tuple[int, int], ...]  # (ask, token), in the order in which they came
    logits: Floats  # [recorded rows, V]
    epoch: Array  # EPOCH_DTYPE []
    progress: Array  # PROGRESS_DTYPE [asks]
    fault: npt.NDArray[np.uint32]  # [8], of several devices [N][8]; zeros: no wait starved
    error: str | None  # of the emulator
    effort: emulation.Effort = field(compare=False)

    def tokens(self, ask: int = 0) -> list[int]:
        """The tokens drawn for an ask."""
        return [token for i, token in self.events if i == ask]

    @property
    def healthy(self) -> bool:
        """Whether nothing went wrong that somebody noticed."""
        return self.error is None and not self.fault.any()

    def same(self, other: Outcome) -> bool:
        """Whether both are healthy and equal to the last bit."""
        return (
            self.healthy
            and other.healthy
            and self.events == other.events
            and self.logits.tobytes() == other.logits.tobytes()
            and self.epoch == other.epoch
            and np.array_equal(self.progress, other.progress)
        )


@dataclass(frozen=True)
class State:
    """A rig's memory between two launches."""

    memory: tuple[dict[str, Array], ...]  # of each device
    passes: int
    syncs: int
    lengths: tuple[int, ...]


# ---- the machine -------------------------------------------------------------------------------
class Rig:
    """A model in emulated memory, with a kernel for each width; they share all that lies there.

    workers     blocks in all
    devices     that the lanes are dealt out to, each with memory of its own
    widths      of the kernels: rows of a pass at most; the launches' default is the first
    ring        ring slots of shared memory; few, so that they are reused soon
    chunk       keys of a split in a row
    wide        whether activations live in memory; None: as the layout thinks
    kernels     the folder of the kernels' source
    sm          80: without bulk copies
    """

    def __init__(
        self,
        weights: Weights,
        folder: Path,
        *,
        workers: int,
        devices: int = 1,
        widths: Sequence[int] = (1,),
        dtype: str = "bfloat16",
        warps: int = 2,
        slot_bytes: int = 4096,
        ring: int = 3,
        chunk: int = 16,
        context: int | None = None,
        slots: int = 2,
        wide: bool | None = None,
        kernels: Path = emulation.KERNELS,
        sm: int = 90,
        optimise: str = "-Og",  # half as long to compile as -O1, an eighth longer to run
        switches: Switch = NONE,
        folds: bool = False,
    ) -> None:
        self.weights, self.config, self.slots = weights, weights.config, slots
        device = DeviceDescription(
            name="emulated", workers=workers, bandwidth=1e9, compute=1e9, source="a test",
            chunk=chunk, choice=Choice.EVERYONE, tile_rows=16,
        )  # fmt: skip
        self.layouts = {
            width: _lay_out(
                build(weights.config, device, dtype, max_width=width, context=context),
                warps, slot_bytes, ring, wide, devices, switches, folds,
            )
            for width in widths
        }  # fmt: skip
        self.layout = first = self.layouts[widths[0]]
        assert all(x.tilings == first.tilings for x in self.layouts.values())
        assert all(x.layers == first.layers for x in self.layouts.values())
        self._kernels = {
            width: compile_kernel(layout, folder, kernels, sm, optimise)
            for width, layout in self.layouts.items()
        }
        self.homes = self._allocate(devices)
        self.memory = self.homes[0]
        self.passes = self.syncs = self._told = 0
        self.lengths = [0] * slots

    def _allocate(self, devices: int) -> list[dict[str, Array]]:
        """Everything that Params points at and that outlives a launch, of each device.

        What is the host's is with the first one's.
        """
        layout = self.layout
        tables = make_tables(layout, self.weights)
        named = {name: getattr(tables, name) for name in tables.__slots__}
        runs, scales = pack(layout, self.weights), pack_scales(layout, self.weights)
        homes, self.bounds = [], []
        for device in range(devices):
            own = slice(device * layout.device_workers, (device + 1) * layout.device_workers)
            named["weights"] = runs[own]
            named["row_scales"] = scales[own] if layout.scale_rows else None
            named["cache"] = np.zeros(self.slots * layout.kv_bytes, np.uint8)
            for name in layout.words:
                named[name] = np.zeros(max(x.words[name] for x in self.layouts.values()), np.uint64)
            named["fault"] = np.zeros(8, np.uint32)
            named["peers"] = np.zeros(devices, np.int64)
            home, bounds = _side_by_side({k: v for k, v in named.items() if v is not None})
            homes.append(home)
            self.bounds.append(bounds)
        for home, (begin, _) in zip(homes, self.bounds, strict=True):
            home["peers"][:] = [there - begin for there, _ in self.bounds]
        words = 1 + mask_words(self.config.vocab_size)
        homes[0]["control"] = _aligned(np.zeros(4, np.uint32))
        homes[0]["events"] = _aligned(np.zeros((EVENTS, 2), np.uint64))
        homes[0]["guides"] = _aligned(np.zeros((max(self.layouts), words), np.uint64))
        return homes

    def forget(self) -> None:
        """Empty all slots and clear the words, as the executor does after a fault."""
        for home in self.homes:
            for name in (*self.layout.words, "fault"):
                home[name][...] = 0
        self.memory["control"][...] = self.memory["events"][...] = 0
        self.passes = self.syncs = 0
        self.lengths = [0] * self.slots

    def keep(self) -> State:
        """What a launch may change: the words, the cache, and how far the slots have come."""
        names = (*self.layout.words, "cache")
        kept = tuple({name: home[name].copy() for name in names} for home in self.homes)
        return State(kept, self.passes, self.syncs, tuple(self.lengths))

    def bring_back(self, state: State) -> None:
        """As it was when it was kept, here or in another rig of the same layout."""
        for home, kept in zip(self.homes, state.memory, strict=True):
            for name, array in kept.items():
                home[name][...] = array
        self.passes, self.syncs, self.lengths = state.passes, state.syncs, list(state.lengths)

    def poison_cache(self) -> None:
        """What other sequences might have left in the cache: the worst of it.

        Not where a head's padding lies, which nobody writes: it is zero from the start.
        """
        layout, head_dim = self.layout, self.config.head_dim
        heads, step = self.config.num_kv_heads // layout.devices, layout.kv_row_bytes // 2
        for home, layer in product(self.homes, layout.layers):
            cache = home["cache"].reshape(self.slots, -1)
            size = 2 * heads * layer.capacity * layout.kv_row_bytes
            tiles = cache[:, layer.kv_offset : layer.kv_offset + size].view(np.uint16)
            tiles = tiles.reshape(self.slots, heads, 2, -1, 16 * step)
            keys = tiles[:, :, 0].reshape(self.slots, heads, -1, 16, step)
            values = tiles[:, :, 1].reshape(self.slots, heads, -1, step, 16)
            keys[..., :head_dim] = POISON << 8 | POISON
            values[..., :head_dim, :] = POISON << 8 | POISON

    def launch(
        self,
        *asks: Ask,
        width: int | None = None,
        seed: int = 0,
        mood: str | None = None,
        handover: int = 0,
        after: Outcome | None = None,
        stores: Sequence[emulation.HostStore] = (),
        watchdog: int | tuple[int, ...] = PATIENCE,
        skew: int = 0,
        dies: tuple[int, int] | None = None,
    ) -> Outcome:
        """Run one launch to its end.

        width       of the kernel
        seed, mood  of the schedule
        handover    end when a pass would have at most so many rows
        after       a launch of the same asks that this one goes on from, its events kept
        stores      what the host writes meanwhile
        watchdog    ticks: patience of a wait; of several devices also one each
        skew        ticks by which a device starts later than another, at most
        dies        a device, and the tick at which it stops for ever
        """
        width = width or self.layout.width
        layout, kernel = self.layouts[width], self._kernels[width]
        assert len(asks) <= width, "a row of a pass for each ask"
        advances, tokens, stops, biases = _advances(asks)
        progress = np.zeros(len(asks), PROGRESS_DTYPE)
        epoch = np.zeros((), EPOCH_DTYPE)
        if after is None:
            progress["length"] = [self.lengths[ask.slot] for ask in asks]
            epoch["pass_number"] = self.passes
            if "syncs" in epoch.dtype.fields:
                epoch["syncs"] = self.syncs
            self.memory["events"][: self._told] = 0
            self._told = 0
        else:
            progress[:], epoch[...] = after.progress, after.epoch
        rows = sum(len(a.tokens) if a.all_logits else a.budget * a.record_logits for a in asks)
        logits = np.full((rows, self.config.vocab_size), np.nan, np.float32)
        if after is not None:
            logits[: len(after.logits)] = after.logits
        given = {"advances": advances, "tokens": tokens, "stops": stops, "logits": logits}
        given |= {"progress_in": progress, "epoch_in": epoch, "biases": biases}
        self._write_guides(asks)
        grids, found = [], []
        for device, home in enumerate(self.homes):
            found.append({"progress_out": progress.copy(), "epoch_out": epoch.copy()})
            home["fault"][:] = 0
            params = np.zeros((), PARAMS_DTYPE)
            for name, array in (self.memory | home | given | found[-1]).items():
                params[name] = array.ctypes.data
            params["watchdog_ns"] = np.broadcast_to(watchdog, len(self.homes))[device]
            params["advance_count"] = len(asks)
            params["handover"], params["device"] = handover, device
            if not any(ask.guided for ask in asks):
                params["guides"] = 0
            several = len(self.homes) > 1
            grids.append(
                emulation.Grid(
                    "monokernel", layout.device_workers, 32 * (layout.warps + 1),
                    layout.shared.total, params.tobytes(),
                    memory=self.bounds[device] if several else (0, 0),
                )
            )  # fmt: skip
        error = kernel.launch_all(grids, seed=seed, mood=mood, stores=stores, skew=skew, dies=dies)
        outcome = self._outcome(asks, found[0], logits, error, kernel.effort)
        if outcome.healthy:
            assert all(_alike(x, found[0]) for x in found), "devices keep different counts"
        return outcome

    def _write_guides(self, asks: Sequence[Ask]) -> None:
        """What the host says of first draws, stamped as `_advances` numbers them."""
        self.memory["guides"][...] = 0
        for i, ask in enumerate(asks):
            if ask.mask is not None:
                stamp = np.uint64(_first_guide(i) << 32)
                self.memory["guides"][i, 1:] = ask.mask.astype(np.uint64) | stamp
                self.memory["guides"][i, 0] = np.uint64(MASKED) | stamp

    def _outcome(
        self,
        asks: Sequence[Ask],
        results: dict[str, Array],
        logits: Floats,
        error: str | None,
        effort: emulation.Effort,
    ) -> Outcome:
        epoch, progress = results["epoch_out"], results["progress_out"]
        fault = np.squeeze([home["fault"] for home in self.homes]).copy()
        count = min(int(epoch["events"]), EVENTS)
        self._told = max(self._told, count)
        words = self.memory["events"][:count]
        stamps = (words >> np.uint64(32)).tolist()
        if error is None and not fault.any():
            assert stamps == [[i + 1, i + 1] for i in range(count)], "a token was not told"
            self.passes = int(epoch["pass_number"])
            self.syncs = int(epoch["syncs"]) if "syncs" in epoch.dtype.fields else 0
            for ask, row in zip(asks, progress, strict=True):
                self.lengths[ask.slot] = int(row["length"])
        # After a fault tokens are counted that the host was not told.
        told = next((i for i, both in enumerate(stamps) if both != [i + 1] * 2), count)
        low = (words[:told] & np.uint64(0xFFFFFFFF)).tolist()
        events = tuple((ask, token) for token, ask in low if token != PARKED_TOKEN)
        recorded = logits[: min(int(epoch["logit_rows"]), len(logits))]
        return Outcome(events, recorded, epoch, progress, fault, error, effort)


def _alike(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return all(np.array_equal(array, other[name]) for name, array in one.items())


def compile_kernel(
    layout: Layout, folder: Path, kernels: Path, sm: int, optimise: str
) -> emulation.Emulated:
    """Compile a specialisation for the host; once, whoever of a session's processes asks first."""
    home = emulation.write_headers(folder, {"specialisation.h": specialisation(layout)})
    return emulation.build(
        kernels / "monokernel.cu",
        folder,
        includes=[home, kernels],
        defines={} if sm >= 90 else {"MONOLANE_EMULATED_SM": sm},
        optimise=optimise,
    )


def _lay_out(
    plan: Any,
    warps: int,
    slot_bytes: int,
    ring: int,
    wide: bool | None,
    devices: int,
    switches: Switch,
    folds: bool,
) -> Layout:
    wish: dict[str, Any] = {"warps": warps, "slot_bytes": slot_bytes, "devices": devices}
    wish |= {"switches": switches, "few_slots": 1000 if folds else 0}
    if wide is not None:
        wish["wide"] = wide
    layout = lay_out(plan, **wish)
    limit = layout.shared.total - (layout.ring_slots - ring) * (layout.slot_bytes + 16)
    found = lay_out(plan, **wish, shared_limit=limit)
    while found.ring_slots < ring:  # sections of shared memory are rounded up
        limit += 128
        found = lay_out(plan, **wish, shared_limit=limit)
    return found


def _first_guide(ask: int) -> int:
    return 1 + 1000 * ask


def _advances(asks: Sequence[Ask]) -> tuple[Array, Array, Array, Array]:
    """Advance records and their lists, of which none is empty."""
    packed = pack_advances(
        [
            Advance(
                slot=ask.slot,
                token_ids=tuple(ask.tokens),
                budget=ask.budget,
                draw=Draw(
                    temperature=ask.temperature,
                    top_k=ask.top_k,
                    top_p=ask.top_p,
                    min_p=ask.min_p,
                    seed=ask.seed,
                    logit_bias=tuple(sorted(ask.logit_bias)),
                ),
                stop_ids=frozenset(ask.stops),
                logprobs=0 if ask.record_logits else None,
                guided=ask.guided,
            )
            for ask in asks
        ]
    )
    rows = np.zeros(len(asks), ADVANCE_DTYPE)
    for name in packed.records.dtype.names or ():
        rows[name] = packed.records[name]
    rows["all_logits"] = [ask.all_logits for ask in asks]
    rows["first_guide"] = [_first_guide(i) for i in range(len(asks))]
    ends = np.zeros(1, np.uint32)
    tokens, stops = (np.concatenate([x, ends]) for x in (packed.tokens, packed.stops))
    return rows, tokens, stops, np.concatenate([packed.biases, np.zeros(1, BIAS_DTYPE)])


def _aligned(array: Array) -> Array:
    """A copy at the alignment that a device's allocator gives."""
    raw = np.zeros(array.nbytes + 256, np.uint8)
    begin = -raw.ctypes.data % 256
    copy = raw[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _side_by_side(arrays: dict[str, Array]) -> tuple[dict[str, Array], tuple[int, int]]:
    """Copies in one piece of memory, each aligned, and where it begins and ends."""
    sizes = [-(-array.nbytes // 256) * 256 for array in arrays.values()]
    all_bytes = _aligned(np.zeros(sum(sizes), np.uint8))
    found, at = {}, 0
    for (name, array), size in zip(arrays.items(), sizes, strict=True):
        found[name] = all_bytes[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        found[name][...] = array
        at += size
    begin = all_bytes.ctypes.data
    return found, (begin, begin + at)

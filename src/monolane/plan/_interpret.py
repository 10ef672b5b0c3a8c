"""Running a plan slowly: simulated workers, each at its own pace, under a hostile scheduler.

Each worker takes whole phases; which of those that may begin one does so next, a seeded scheduler
decides. It has favourites and changes them seldom, so some workers run ahead as far as the waits
let them and others lag. A missing wait then shows as NaN or as other logits: the buffers that
workers share are NaN until written, and NaN again when the first worker begins to overwrite a slot.
Sound plans never notice; in an unsound one a worker that still needed the old content, or that
reads the new too early, reads NaN.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.model import Head, Role, Weights
from monolane.plan._device import Choice
from monolane.plan._phase import Buffer, Matrix, Phase, PhaseKind, Update
from monolane.plan._plan import Plan
from monolane.plan._split import Scope
from monolane.plan._validate import PlanError
from monolane.reference import linear, rms_norm, rotate, silu

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Interpretation:
    """What came out: logits of every token fed, and the tokens drawn."""

    logits: Floats  # [tokens fed, V]
    token_ids: tuple[int, ...]  # greedy; each but the last was fed in its turn


def interpret(
    plan: Plan,
    weights: Weights,
    passes: Sequence[Sequence[int]],
    *,
    draws: int = 1,
    seed: int = 0,
    laggard: int | None = None,
) -> Interpretation:
    """Feed token ids, a pass at a time, then draw greedily; PlanError if the plan shows a fault.

    ``laggard`` names a worker that runs only when no other can: the schedule in which a missing
    wait for that worker cannot hide. Without it the seed decides whom the scheduler favours.
    """
    run = _Run(plan, weights, [list(ids) for ids in passes], draws)
    workers = [_Worker(run, index) for index in range(plan.groups.workers)]
    rng = np.random.default_rng(seed)
    while unfinished := [worker for worker in workers if not worker.finished]:
        ready = [worker for worker in unfinished if worker.may_begin(workers)]
        if not ready:
            stuck = ", ".join(f"{w.index} before {w.phase.name}" for w in unfinished)
            raise PlanError(f"all workers wait: {stuck}")
        if run.favour is None or rng.random() < 0.02:
            run.favour = rng.permutation(len(workers))
            if laggard is not None:
                run.favour[laggard] = -1
        favour = run.favour
        max(ready, key=lambda worker: int(favour[worker.index])).step()
    return Interpretation(np.concatenate(run.logits), tuple(run.drawn))


class _Memory:
    """Arrays as ``Plan.shape`` gives them; those without slots have none here either."""

    def __init__(self, plan: Plan) -> None:
        self._arrays: dict[Buffer, Floats] = {
            buffer: np.full(plan.shape(buffer), np.nan, np.float32)
            for buffer in Buffer
            if buffer is not Buffer.TOKENS
        }
        self._versions: dict[tuple[Buffer, str], int] = {}
        self.tokens: list[int] = []  # TOKENS

    def read(self, buffer: Buffer, where: tuple[int | slice, ...]) -> Floats:
        """Return a part of a buffer; PlanError if some of it has not been written."""
        part: Floats = self._arrays[buffer][where]
        if np.isnan(part).any():
            raise PlanError(f"reads {buffer.name} before it is written")
        return part

    def write(
        self,
        buffer: Buffer,
        region: tuple[int | slice, ...],
        part: tuple[int | slice, ...],
        values: Floats,
        version: int,
    ) -> None:
        """Write ``values`` into ``part`` of a region, which is poisoned once per version."""
        array = self._arrays[buffer][region]
        key = buffer, str(region)
        if buffer is not Buffer.KEY_VALUE and self._versions.get(key) != version:
            array[...] = np.nan
            self._versions[key] = version
        array[part] = values


class _Run:
    """What all workers see: the plan, the weights, the shared memory, and the passes to make."""

    def __init__(self, plan: Plan, weights: Weights, passes: list[list[int]], draws: int) -> None:
        self.plan = plan
        plan.config.check_features("interpreter", "qkv_bias")
        weights = weights.dequantized()
        self.outer = _float32(weights.outer)
        self.layers = [_float32(layer) for layer in weights.layers]
        self.frequencies = plan.config.rotary.frequencies(plan.config.head_dim)
        self.memory = _Memory(plan)
        self.passes = passes
        self.count = len(passes) + draws - 1
        self.memory.tokens = list(passes[0])
        self.logits: list[Floats] = []
        self.drawn: list[int] = []
        self.favour: npt.NDArray[np.int64] | None = None

    def next_tokens(self, pass_index: int, drawn: int) -> list[int]:
        """Return what the pass after ``pass_index`` feeds."""
        following = pass_index + 1
        return list(self.passes[following]) if following < len(self.passes) else [drawn]


class _Worker:
    """One worker: its progress, its private memory, and a method per kind of phase."""

    def __init__(self, run: _Run, index: int) -> None:
        self.run, self.plan, self.memory, self.index = run, run.plan, run.memory, index
        groups = run.plan.groups
        self.group = groups.of(index)
        self.lanes = groups.lanes_of(self.group)
        self.progress = 0  # phases finished, over all passes
        self.position = 0  # of the pass's first token
        self.tokens = list(run.passes[0])
        self.x = np.zeros((0,), np.float32)  # [own lanes, T, D]

    @property
    def phase(self) -> Phase:
        return self.plan.phases[self.progress % len(self.plan.phases)]

    @property
    def pass_index(self) -> int:
        return self.progress // len(self.plan.phases)

    @property
    def finished(self) -> bool:
        return self.pass_index == self.run.count

    @property
    def width(self) -> int:
        return len(self.tokens)

    def may_begin(self, workers: "list[_Worker]") -> bool:
        """Tell whether the waits of the next phase are over."""
        base = self.pass_index * len(self.plan.phases)
        team = self.plan.groups.workers_of(self.group)
        return all(
            worker.progress >= base + wait.count
            for wait in self.phase.waits
            for worker in (workers if wait.scope is Scope.ALL else [workers[i] for i in team])
        )

    def step(self) -> None:
        """Do the next phase."""
        phase = self.phase
        try:
            if phase.update is not None:
                self._update(phase.update)
            _ACTIONS[phase.kind](self, phase)
        except PlanError as error:
            raise PlanError(f"worker {self.index} in {phase.name}: {error}") from None
        self.progress += 1

    def embed(self, phase: Phase) -> None:
        del phase
        if self.plan.device.choice is Choice.LEADER:
            self.tokens = list(self.memory.tokens)
        embedded = self.run.outer[Role.EMBEDDING][self.tokens]  # [T, D]
        self.x = np.repeat(embedded[None], len(self.lanes), axis=0)

    def qkv(self, phase: Phase) -> None:
        normed = self._norm(phase.layer, Role.ATTENTION_NORM)
        for matrix, bias in zip(
            phase.matrices, (Role.Q_BIAS, Role.K_BIAS, Role.V_BIAS), strict=True
        ):
            for lane, rows in self._pieces(matrix):
                y = self._product(phase.layer, matrix, lane, rows, self._own(normed, lane))
                if self.plan.config.qkv_bias:
                    y = y + self.run.layers[phase.layer][bias][lane, rows]
                if matrix.role is not Role.V:
                    y = self._rotate(y, rows, matrix.rows)
                self._store_qkv(phase, matrix.role, lane, rows, y)

    def attend(self, phase: Phase) -> None:
        assert phase.units is not None
        config, splits = self.plan.config, self.plan.splits
        kv_heads = config.num_kv_heads // config.num_lanes
        for unit in range(*phase.units.of(self.index)):
            head, split = divmod(unit, splits)
            lane, kv_head = self.lanes[head // kv_heads], head % kv_heads
            self._attend_unit(phase, lane, kv_head, split)

    def out(self, phase: Phase) -> None:
        for lane, rows in self._pieces(phase.matrices[0]):
            merged = self._merged(lane)
            y = self._product(phase.layer, phase.matrices[0], lane, rows, merged)
            self._store(Buffer.ATTENTION_OUTPUT, (phase.writes[0].slot, lane), rows, y)

    def gate_up(self, phase: Phase) -> None:
        normed = self._norm(phase.layer, Role.MLP_NORM)
        gate, up = phase.matrices
        for lane, rows in self._pieces(gate):
            x = self._own(normed, lane)
            left = silu(self._product(phase.layer, gate, lane, rows, x))
            right = self._product(phase.layer, up, lane, rows, x)
            self._store(Buffer.HIDDEN, (lane,), rows, left * right)

    def down(self, phase: Phase) -> None:
        for lane, rows in self._pieces(phase.matrices[0]):
            hidden = self.memory.read(Buffer.HIDDEN, (lane, slice(self.width)))
            y = self._product(phase.layer, phase.matrices[0], lane, rows, hidden)
            self._store(Buffer.MLP_OUTPUT, (phase.writes[0].slot, lane), rows, y)

    def gather(self, phase: Phase) -> None:
        assert phase.units is not None
        streams = self.x
        if self.plan.config.head is not Head.SUM:
            streams = self._norm(None, Role.FINAL_NORM)
        for lane, part in _cut(*phase.units.of(self.index), streams.shape[-1]):
            self._store(Buffer.STREAM, (self.lanes[lane],), part, streams[lane][:, part])

    def head(self, phase: Phase) -> None:
        (matrix,) = phase.matrices
        if not self.plan.shared_head:
            normed = self._norm(None, Role.FINAL_NORM)
            for lane, rows in self._pieces(matrix):
                y = self._product(None, matrix, lane, rows, self._own(normed, lane))
                region = slice(lane * matrix.rows, (lane + 1) * matrix.rows)
                self._store(Buffer.LOGITS, (slice(None), region), rows, y)
            return
        joined = self._joined()
        for _, rows in _cut(*matrix.share.of(self.index), matrix.rows):
            y = self._product(None, matrix, 0, rows, joined)
            self._store(Buffer.LOGITS, (slice(None), slice(0, matrix.rows)), rows, y)

    def choose(self, phase: Phase) -> None:
        del phase
        self.position += self.width
        leads = self.plan.device.choice is Choice.LEADER
        if leads and self.index != 0:
            return
        logits = self.memory.read(Buffer.LOGITS, (slice(self.width),))  # [T, V]
        drawn = int(logits[-1].argmax())
        following = self.run.next_tokens(self.pass_index, drawn)
        if leads:
            self.memory.tokens = following
        else:
            self.tokens = following
        if self.index == 0:
            self.run.logits.append(logits.copy())
            if self.pass_index + 1 >= len(self.run.passes):
                self.run.drawn.append(drawn)

    def _update(self, update: Update) -> None:
        """x_l += reduce(...), summing over lanes in ascending order, as all executors do."""
        count, delay = self.plan.config.num_lanes, update.reduce.delay
        width = slice(self.width)
        for i, lane in enumerate(self.lanes):
            if delay == 0:
                summed = range(count)
                gain = np.zeros_like(self.x[i])
            else:
                summed = range(0) if delay is None else range(count)
                gain = self.memory.read(update.module, (update.own_slot, lane, width))
                gain = gain * np.float32(count**0.5) if delay is None else gain
            others = np.zeros_like(gain)
            for j in summed:
                if j != lane or delay == 0:
                    others += self.memory.read(update.module, (update.other_slot, j, width))
            self.x[i] += gain + others

    def _norm(self, layer: int | None, role: Role) -> Floats:
        """Norm the own lanes' streams: [own lanes, T, D]."""
        scale = self._weights(layer)[role]
        lanes = slice(self.lanes[0], self.lanes[-1] + 1)
        own = scale[lanes] if len(scale) > 1 else scale
        return rms_norm(self.x, own, self.plan.config.norm_eps)

    def _own(self, x: Floats, lane: int) -> Floats:
        own: Floats = x[lane - self.lanes[0]]
        return own

    def _weights(self, layer: int | None) -> dict[Role, Floats]:
        return self.run.outer if layer is None else self.run.layers[layer]

    def _product(
        self, layer: int | None, matrix: Matrix, lane: int, rows: slice, x_TD: Floats
    ) -> Floats:
        weight = self._weights(layer)[matrix.role][lane, rows]
        product: Floats = linear(x_TD[None], weight[None])[0]
        return product

    def _pieces(self, matrix: Matrix) -> Iterator[tuple[int, slice]]:
        """Yield (lane, rows of that lane) of the own share."""
        for lane, rows in _cut(*matrix.share.of(self.index), matrix.rows):
            yield self.lanes[lane], rows

    def _rotate(self, y: Floats, rows: slice, count: int) -> Floats:
        """Turn some rows of the heads; a pair of which one row is missing comes out wrong."""
        config = self.plan.config
        whole = np.zeros((1, self.width, count), np.float32)
        whole[0, :, rows] = y
        positions = np.arange(self.position, self.position + self.width)
        heads = whole.reshape(1, self.width, -1, config.head_dim)
        turned = rotate(heads, positions, self.run.frequencies, config.rotary.style)
        part: Floats = turned.reshape(whole.shape)[0, :, rows]
        return part

    def _attend_unit(self, phase: Phase, lane: int, kv_head: int, split: int) -> None:
        config, end = self.plan.config, self.position + self.width
        each = config.num_heads // config.num_kv_heads
        heads = slice(kv_head * each, (kv_head + 1) * each)
        query = self.memory.read(Buffer.QUERY, (lane, slice(self.width)))
        q = query.reshape(self.width, -1, config.head_dim)[:, heads]  # [T, a, h]
        keys = np.arange(end)
        keys = keys[keys // self.plan.device.chunk % self.plan.splits == split]
        k, v = (
            self.memory.read(Buffer.KEY_VALUE, (phase.layer, i, lane, slice(end), kv_head))[keys]
            for i in (0, 1)
        )
        seen = _visible(keys, self.position, self.width, config.layers[phase.layer].window)
        partial = _partial_attention(q, k, v, seen)
        where = (split, slice(self.width), heads)
        self.memory.write(Buffer.ATTENTION, (lane,), where, partial, self.progress)

    def _merged(self, lane: int) -> Floats:
        """Merge the splits of all heads of a lane: [T, H/L*h]."""
        where = (lane, slice(None), slice(self.width))
        partial = self.memory.read(Buffer.ATTENTION, where)  # [S, T, H/L, h + 2]
        sums, peaks, totals = partial[..., :-2], partial[..., -2:-1], partial[..., -1:]
        share = np.exp(peaks - peaks.max(axis=0))
        merged: Floats = (share * sums).sum(axis=0) / (share * totals).sum(axis=0)
        return merged.reshape(self.width, -1)

    def _joined(self) -> Floats:
        """Bring all lanes' streams together for the head that they share: [T, D or L*D]."""
        config = self.plan.config
        streams = self.memory.read(Buffer.STREAM, (slice(None), slice(self.width)))
        if config.head is Head.SUM:
            scale = self.run.outer[Role.FINAL_NORM]
            summed = streams.sum(axis=0, keepdims=True)
            normed: Floats = rms_norm(summed, scale, config.norm_eps)[0]
            return normed
        if config.head is Head.MEAN:
            mean: Floats = streams.mean(axis=0)
            return mean
        return np.concatenate(list(streams), axis=-1)

    def _store(
        self, buffer: Buffer, region: tuple[int | slice, ...], rows: slice, y: Floats
    ) -> None:
        self.memory.write(buffer, region, (slice(self.width), rows), y, self.progress)

    def _store_qkv(self, phase: Phase, role: Role, lane: int, rows: slice, y: Floats) -> None:
        if role is Role.Q:
            self._store(Buffer.QUERY, (lane,), rows, y)
            return
        new = slice(self.position, self.position + self.width)
        region = (phase.layer, 0 if role is Role.K else 1, lane, new)
        h = self.plan.config.head_dim
        for head, columns in _cut(rows.start, rows.stop, h):
            begin = head * h + columns.start - rows.start
            part = y[:, begin : begin + columns.stop - columns.start]
            where = (slice(None), head, columns)
            self.memory.write(Buffer.KEY_VALUE, region, where, part, self.progress)


_ACTIONS = {
    PhaseKind.EMBED: _Worker.embed,
    PhaseKind.QKV: _Worker.qkv,
    PhaseKind.ATTEND: _Worker.attend,
    PhaseKind.OUT: _Worker.out,
    PhaseKind.GATE_UP: _Worker.gate_up,
    PhaseKind.DOWN: _Worker.down,
    PhaseKind.GATHER: _Worker.gather,
    PhaseKind.HEAD: _Worker.head,
    PhaseKind.CHOOSE: _Worker.choose,
}


def _cut(begin: int, end: int, rows: int) -> Iterator[tuple[int, slice]]:
    """Cut a range of group rows where one lane ends: (lane, rows of it)."""
    while begin < end:
        lane, row = divmod(begin, rows)
        stop = min(end, (lane + 1) * rows)
        yield lane, slice(row, row + stop - begin)
        begin = stop


def _visible(
    keys: npt.NDArray[np.int64], first: int, width: int, window: int | None
) -> npt.NDArray[np.bool_]:
    """Tell which of the keys each of the tokens sees: [T, keys]."""
    query = np.arange(first, first + width)[:, None]
    seen = keys[None] <= query
    if window is not None:
        seen &= keys[None] > query - window
    return seen


def _partial_attention(q: Floats, k: Floats, v: Floats, seen: npt.NDArray[np.bool_]) -> Floats:
    """Attend to some keys: sum of e * v, then the peak of the scores and the total of e.

    q [T, a, h], k and v [S, h], seen [T, S] -> [T, a, h + 2]. Nothing seen: peak -inf, total 0.
    """
    scores = np.einsum("tah,sh->tas", q, k) * np.float32(q.shape[-1] ** -0.5)
    scores = np.where(seen[:, None, :], scores, np.float32(-np.inf))
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    total = e.sum(axis=-1, keepdims=True)
    return np.concatenate([np.einsum("tas,sh->tah", e, v), peak, total], -1, dtype=np.float32)


def _float32(arrays: Mapping[Role, npt.NDArray[Any]]) -> dict[Role, Floats]:
    return {role: np.asarray(array, np.float32) for role, array in arrays.items()}

# Past 500 lines on purpose: the phases share one worker's state, and are read side by side.
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

from monolane.model import COMMON_FEATURES, NORMS, Head, QkNorm, Role, Weights
from monolane.plan._device import Choice
from monolane.plan._memory import Floats, SharedMemory
from monolane.plan._phase import Buffer, Matrix, Phase, PhaseKind, Update
from monolane.plan._plan import Plan
from monolane.plan._split import Scope
from monolane.plan._validate import PlanError
from monolane.reference import GATES, choose_experts, linear, rms_norm, rotate

_EXPERT_BIASES = {
    Role.EXPERT_GATE: Role.EXPERT_GATE_BIAS,
    Role.EXPERT_UP: Role.EXPERT_UP_BIAS,
    Role.EXPERT_DOWN: Role.EXPERT_DOWN_BIAS,
}


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


class _Run:
    """What all workers see: the plan, the weights, the shared memory, and the passes to make."""

    def __init__(self, plan: Plan, weights: Weights, passes: list[list[int]], draws: int) -> None:
        self.plan = plan
        plan.config.check_features("interpreter", *COMMON_FEATURES)
        weights = weights.dequantized()
        offset = np.float32(plan.config.norm_offset)
        self.outer = _float32(weights.outer, offset)
        self.layers = [_float32(layer, offset) for layer in weights.layers]
        self.experts = {
            place: [np.asarray(matrix, np.float32) for matrix in each]
            for place, each in weights.experts.items()
        }
        self.memory = SharedMemory(plan)
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
        self.choice = self.x  # [T, E]: weights of the chosen experts
        self.normed = self.x  # [T, D]: what latents are made of

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
        embedded = embedded * np.float32(self.plan.config.embedding_scale)
        self.x = np.repeat(embedded[None], len(self.lanes), axis=0)

    def qkv(self, phase: Phase) -> None:
        read = self._read_stream(phase.layer, Role.ATTENTION_NORM)
        for matrix, bias in zip(
            phase.matrices, (Role.Q_BIAS, Role.K_BIAS, Role.V_BIAS), strict=True
        ):
            for lane, rows in self._pieces(matrix):
                y = self._product(phase.layer, matrix, lane, rows, self._own(read, lane))
                if self.plan.config.qkv_bias:
                    y = y + self.run.layers[phase.layer][bias][lane, rows]
                if matrix.role is Role.V:
                    self._store_qkv(phase, Role.V, lane, rows, y)
                elif self.plan.config.qk_norm is QkNorm.ALL:
                    before = phase.matrices[0].rows if matrix.role is Role.K else 0
                    where = slice(before + rows.start, before + rows.stop)
                    self._store(Buffer.UNNORMED, (lane,), where, y)
                else:
                    y = self._finished(phase.layer, matrix.role, rows, matrix.rows, y)
                    self._store_qkv(phase, matrix.role, lane, rows, y)

    def norm_qk(self, phase: Phase) -> None:
        assert phase.units is not None
        config = self.plan.config
        lanes, dim = config.num_lanes, config.head_dim
        both = [
            self.memory.read(Buffer.UNNORMED, (lane, slice(self.width))) for lane in range(lanes)
        ]
        heads, kv_heads = config.num_heads // lanes, config.num_kv_heads // lanes
        for role, scale, before, count in (
            (Role.Q, Role.Q_NORM, 0, heads),
            (Role.K, Role.K_NORM, heads, kv_heads),
        ):
            columns = slice(before * dim, (before + count) * dim)
            x = np.concatenate([lane[:, columns] for lane in both], axis=-1)
            normed = rms_norm(x[None], self.run.layers[phase.layer][scale], config.norm_eps)[0]
            for i, lane in enumerate(self.lanes):
                first = i * (heads + kv_heads) + before
                own = [min(max(u - first, 0), count) * dim for u in phase.units.of(self.index)]
                rows = slice(*own)
                if own[0] < own[1]:
                    y = normed[:, lane * count * dim :][:, rows]
                    turned = self._rotate(phase.layer, rows, count * dim, y)
                    self._store_qkv(phase, role, lane, rows, turned)

    def latent(self, phase: Phase) -> None:
        self.normed = self._read_stream(phase.layer, Role.ATTENTION_NORM)[0]
        before = 0
        for matrix in phase.matrices:
            for lane, rows in self._pieces(matrix):
                y = self._product(phase.layer, matrix, lane, rows, self.normed)
                where = slice(before + rows.start, before + rows.stop)
                self._store(Buffer.LATENTS, (0,), where, y)
            before += matrix.rows

    def expand(self, phase: Phase) -> None:
        latent, weights = self.plan.config.latent, self.run.layers[phase.layer]
        assert latent is not None
        both = self.memory.read(Buffer.LATENTS, (0, slice(self.width)))
        queries = latent.query_rank or 0
        if self.index == 0:
            l_TR, t_Tr = np.split(both[:, queries:], [latent.rank], axis=-1)
            l_TR = rms_norm(l_TR[None], weights[Role.K_NORM], latent.norm_eps)[0]
            new = slice(self.position, self.position + self.width)
            line = np.concatenate([l_TR, self._turned(phase.layer, t_Tr[:, None])[:, 0]], axis=-1)
            region, whole = (phase.layer, 0, 0, new), (slice(None), 0)
            self.memory.write(Buffer.KEY_VALUE, region, whole, line, self.progress)
        made_of = self.normed
        if queries:
            made_of = rms_norm(both[None, :, :queries], weights[Role.Q_NORM], latent.norm_eps)[0]
        query, up = phase.matrices
        begin, end = query.share.of(self.index)
        if begin == end:
            return
        y = self._product(phase.layer, query, 0, slice(begin, end), made_of)
        q_THh = y.reshape(self.width, -1, latent.head)
        turned = self._turned(phase.layer, q_THh[..., latent.plain :])
        for i, (head, rows) in enumerate(self._pieces(up)):
            plain = q_THh[:, i, : latent.plain]
            met = self._product(phase.layer, up, head, rows, plain)
            where = slice(head * latent.cached, (head + 1) * latent.cached)
            self._store(Buffer.QUERY, (0,), where, np.concatenate([met, turned[:, i]], axis=-1))

    def values(self, phase: Phase) -> None:
        latent, (matrix,) = self.plan.config.latent, phase.matrices
        assert latent is not None
        merged = self._merged(phase.layer, 0).reshape(self.width, -1, latent.cached)
        for head, rows in self._pieces(matrix):
            y = self._product(phase.layer, matrix, head, rows, merged[:, head, : latent.rank])
            where = slice(head * latent.value + rows.start, head * latent.value + rows.stop)
            self._store(Buffer.HEADS, (0,), where, y)

    def attend(self, phase: Phase) -> None:
        assert phase.units is not None
        config, splits = self.plan.config, self.plan.splits
        kv_heads = config.cached_heads // config.num_lanes
        for unit in range(*phase.units.of(self.index)):
            head, split = divmod(unit, splits)
            lane, kv_head = self.lanes[head // kv_heads], head % kv_heads
            self._attend_unit(phase, lane, kv_head, split)

    def out(self, phase: Phase) -> None:
        for lane, rows in self._pieces(phase.matrices[0]):
            if self.plan.config.latent is None:
                read = self._merged(phase.layer, lane)
            else:
                read = self.memory.read(Buffer.HEADS, (lane, slice(self.width)))
            y = self._product(phase.layer, phase.matrices[0], lane, rows, read)
            if self.plan.config.out_bias:
                y = y + self.run.layers[phase.layer][Role.O_BIAS][0, rows]
            self._store(Buffer.ATTENTION_OUTPUT, (phase.writes[0].slot, lane), rows, y)

    def gate_up(self, phase: Phase) -> None:
        config = self.plan.config
        read, gates = self._read_stream(phase.layer, Role.MLP_NORM), GATES[config.activation]
        gate, up = phase.matrices
        for lane, rows in self._pieces(gate):
            x = self._own(read, lane)
            left = self._product(phase.layer, gate, lane, rows, x)
            right = self._product(phase.layer, up, lane, rows, x)
            self._store(Buffer.HIDDEN, (lane,), rows, gates(left, right))

    def down(self, phase: Phase) -> None:
        for lane, rows in self._pieces(phase.matrices[0]):
            columns = slice(phase.matrices[0].columns)
            hidden = self.memory.read(Buffer.HIDDEN, (lane, slice(self.width), columns))
            y = self._product(phase.layer, phase.matrices[0], lane, rows, hidden)
            self._store(Buffer.MLP_OUTPUT, (phase.writes[0].slot, lane), rows, y)

    def route(self, phase: Phase) -> None:
        read = self._read_stream(phase.layer, Role.MLP_NORM)
        (matrix,) = phase.matrices
        for lane, rows in self._pieces(matrix):
            y = self._product(phase.layer, matrix, lane, rows, self._own(read, lane))
            if Role.ROUTER_BIAS in (layer := self.run.layers[phase.layer]):
                y = y + layer[Role.ROUTER_BIAS][lane, rows]
            self._store(Buffer.ROUTED, (lane,), rows, y)

    def expert_gate_up(self, phase: Phase) -> None:
        config = self.plan.config
        assert config.experts is not None
        logits = self.memory.read(Buffer.ROUTED, (0, slice(self.width)))
        correction = self.run.layers[phase.layer].get(Role.ROUTER_CORRECTION)
        self.choice = choose_experts(logits, config.experts, correction)
        x, gates = self._read_stream(phase.layer, Role.MLP_NORM)[0], GATES[config.activation]
        for _, rows in self._pieces(phase.matrices[0]):
            whole = np.zeros((self.width, config.experts.chosen, len(range(rows.start, rows.stop))))
            hidden = whole.astype(np.float32)
            for expert, tokens, places in self._chosen():
                left, right = (
                    self._expert_product(phase.layer, role, expert, rows, x[tokens])
                    for role in (Role.EXPERT_GATE, Role.EXPERT_UP)
                )
                hidden[tokens, places] = gates(left, right)
            for place in range(config.experts.chosen):
                begin = place * config.experts.inner
                where = slice(begin + rows.start, begin + rows.stop)
                self._store(Buffer.HIDDEN, (0,), where, hidden[:, place])
        for lane, rows in self._pieces(phase.matrices[2]) if config.experts.shared else ():
            left, right = (
                self._product(phase.layer, matrix, lane, rows, x) for matrix in phase.matrices[2:]
            )
            begin = config.experts.chosen * config.experts.inner
            where = slice(begin + rows.start, begin + rows.stop)
            self._store(Buffer.HIDDEN, (0,), where, gates(left, right))

    def expert_down(self, phase: Phase) -> None:
        experts, (matrix, *shared) = self.plan.config.experts, phase.matrices
        assert experts is not None
        for lane, rows in self._pieces(matrix):
            own = experts.chosen * experts.inner
            columns = slice(own + experts.shared)
            both = self.memory.read(Buffer.HIDDEN, (lane, slice(self.width), columns))
            hidden = both[:, :own].reshape(self.width, experts.chosen, experts.inner)
            y = np.zeros((self.width, rows.stop - rows.start), np.float32)
            for expert, tokens, places in self._chosen():
                read = hidden[tokens, places]
                made = self._expert_product(phase.layer, matrix.role, expert, rows, read)
                y[tokens] += self.choice[tokens, expert][:, None] * made
            for every in shared:  # with the same rows
                y += self._product(phase.layer, every, lane, rows, both[:, own:])
            self._store(Buffer.MLP_OUTPUT, (phase.writes[0].slot, lane), rows, y)

    def _expert_product(
        self, layer: int, role: Role, expert: int, rows: slice, x: Floats
    ) -> Floats:
        y: Floats = linear(x[None], self.run.experts[role, layer][expert][:, rows])[0]
        bias = self.run.layers[layer].get(_EXPERT_BIASES[role])
        return y if bias is None else y + bias[0, expert, rows]

    def _chosen(self) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield each chosen expert, its tokens, and its place among the experts of each."""
        places = np.cumsum(self.choice > 0, axis=-1) - 1
        for expert in range(self.choice.shape[-1]):
            tokens = np.flatnonzero(self.choice[:, expert])
            if tokens.size:
                yield expert, tokens, places[tokens, expert]

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
        config, delay = self.plan.config, update.reduce.delay
        count, width = config.num_lanes, slice(self.width)
        attention = update.module is Buffer.ATTENTION_OUTPUT
        role = Role.POST_ATTENTION_NORM if attention else Role.POST_MLP_NORM
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
            gain = gain + others
            if config.norm_after:
                scale = self.run.layers[update.layer][role]
                own = scale[lane : lane + 1] if len(scale) > 1 else scale
                gain = rms_norm(gain[None], own, config.norm_eps)[0]
            self.x[i] += gain

    def _read_stream(self, layer: int, role: Role) -> Floats:
        """Return what a module reads of the own lanes' streams: [own lanes, T, D]."""
        return self._norm(layer, role) if self.plan.config.norm_before else self.x

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
        """Yield (lane, rows of that lane) of the own share; of K_UP and V_UP heads for lanes."""
        of_heads = matrix.role in (Role.K_UP, Role.V_UP)
        lanes = range(matrix.lanes) if of_heads else self.lanes
        for lane, rows in _cut(*matrix.share.of(self.index), matrix.rows):
            yield lanes[lane], rows

    def _finished(self, layer: int, role: Role, rows: slice, count: int, y: Floats) -> Floats:
        """Norm and turn some rows of a lane's heads; a head of which rows are missing is wrong."""
        config = self.plan.config
        if config.qk_norm is QkNorm.HEAD:
            scale = self.run.layers[layer][Role.Q_NORM if role is Role.Q else Role.K_NORM]
            normed = rms_norm(self._heads(rows, count, y), scale, config.norm_eps)
            y = normed.reshape(self.width, count)[:, rows]
        return self._rotate(layer, rows, count, y)

    def _rotate(self, layer: int, rows: slice, count: int, y: Floats) -> Floats:
        """Turn some rows of the heads; a pair of which one row is missing comes out wrong."""
        turned = self._turned(layer, self._heads(rows, count, y)[0])
        part: Floats = turned.reshape(self.width, count)[:, rows]
        return part

    def _turned(self, layer: int, heads_THh: Floats) -> Floats:
        """Turn all that is given of some heads."""
        config = self.plan.config
        which = config.layers[layer].rotary
        if which == "none":
            return heads_THh
        rotary = config.rotary if which == "main" else config.local_rotary
        assert rotary is not None
        positions = np.arange(self.position, self.position + self.width)
        frequencies = rotary.frequencies(config.rotary_dim)
        turned: Floats = rotate(
            heads_THh[None], positions, frequencies, rotary.style, rotary.amplitude
        )[0]
        return turned

    def _heads(self, rows: slice, count: int, y: Floats) -> Floats:
        """Put rows among zeros in their places of a lane's heads: [1, T, heads, h]."""
        whole = np.zeros((self.width, count), np.float32)
        whole[:, rows] = y
        return whole.reshape(1, self.width, -1, self.plan.config.head_dim)

    def _attend_unit(self, phase: Phase, lane: int, kv_head: int, split: int) -> None:
        config, end = self.plan.config, self.position + self.width
        each = config.num_heads // config.cached_heads
        heads = slice(kv_head * each, (kv_head + 1) * each)
        query = self.memory.read(Buffer.QUERY, (lane, slice(self.width)))
        q = query.reshape(self.width, -1, config.cached_width)[:, heads]  # [T, a, h]
        keys = np.arange(end)
        keys = keys[keys // self.plan.device.chunk % self.plan.splits == split]
        k, v = (
            self.memory.read(Buffer.KEY_VALUE, (phase.layer, i, lane, slice(end), kv_head))[keys]
            for i in (0, config.cached_lists - 1)  # a latent is its own value
        )
        seen = _visible(keys, self.position, self.width, config.layers[phase.layer].window)
        scale = config.head_dim**-0.5 if config.query_scale is None else config.query_scale
        partial = _partial_attention(q, k, v, seen, np.float32(scale))
        where = (split, slice(self.width), heads)
        self.memory.write(Buffer.ATTENTION, (lane,), where, partial, self.progress)

    def _merged(self, layer: int, lane: int) -> Floats:
        """Merge the splits of all heads of a lane, and their sinks: [T, H/L*h]."""
        where = (lane, slice(None), slice(self.width))
        partial = self.memory.read(Buffer.ATTENTION, where)  # [S, T, H/L, h + 2]
        sums, peaks, totals = partial[..., :-2], partial[..., -2:-1], partial[..., -1:]
        peak, alone = peaks.max(axis=0), np.zeros((1, 1), np.float32)
        if Role.SINKS in self.run.layers[layer]:
            sinks = self.run.layers[layer][Role.SINKS][lane][:, None]
            peak = np.maximum(peak, sinks)
            alone = np.exp(sinks - peak)
        share = np.exp(peaks - peak)
        merged: Floats = (share * sums).sum(axis=0) / ((share * totals).sum(axis=0) + alone)
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
    PhaseKind.NORM_QK: _Worker.norm_qk,
    PhaseKind.ATTEND: _Worker.attend,
    PhaseKind.OUT: _Worker.out,
    PhaseKind.GATE_UP: _Worker.gate_up,
    PhaseKind.DOWN: _Worker.down,
    PhaseKind.ROUTE: _Worker.route,
    PhaseKind.EXPERT_GATE_UP: _Worker.expert_gate_up,
    PhaseKind.EXPERT_DOWN: _Worker.expert_down,
    PhaseKind.GATHER: _Worker.gather,
    PhaseKind.HEAD: _Worker.head,
    PhaseKind.CHOOSE: _Worker.choose,
    PhaseKind.LATENT: _Worker.latent,
    PhaseKind.EXPAND: _Worker.expand,
    PhaseKind.VALUES: _Worker.values,
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


def _partial_attention(
    q: Floats, k: Floats, v: Floats, seen: npt.NDArray[np.bool_], scale: np.float32
) -> Floats:
    """Attend to some keys: sum of e * v, then the peak of the scores and the total of e.

    q [T, a, h], k and v [S, h], seen [T, S] -> [T, a, h + 2]. Nothing seen: peak -inf, total 0.
    """
    scores = np.einsum("tah,sh->tas", q, k) * scale
    scores = np.where(seen[:, None, :], scores, np.float32(-np.inf))
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    total = e.sum(axis=-1, keepdims=True)
    return np.concatenate([np.einsum("tas,sh->tah", e, v), peak, total], -1, dtype=np.float32)


def _float32(arrays: Mapping[Role, npt.NDArray[Any]], offset: np.float32) -> dict[Role, Floats]:
    """Widen the arrays; scales of norms with their offset."""
    found = {role: np.asarray(array, np.float32) for role, array in arrays.items()}
    return {role: x + offset if role in NORMS else x for role, x in found.items()}

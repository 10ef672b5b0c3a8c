"""A simulated worker of the interpreter: its progress, its memory, and what several phases do."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.model import COMMON_FEATURES, JOINING_NORMS, Kind, Role, Weights, norm_read_by
from monolane.ops import Buffer
from monolane.plan._interpreter_memory import Floats, SharedMemory, Where
from monolane.plan._phase import OUTPUTS, Matrix, Phase, Update
from monolane.plan._plan import Plan
from monolane.plan._split import Scope
from monolane.reference import linear, norm_stream, rotate


class Run:
    """What all workers see: the plan, the weights, the shared memory, and the passes to make."""

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        passes: list[list[int]],
        draws: int,
        states: list[Floats],
    ) -> None:
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
        self.passes, self.states = passes, states
        self.count = len(passes) + draws - 1
        self.memory.tokens = list(passes[0])
        self.logits: list[Floats] = []
        self.drawn: list[int] = []

    def next_tokens(self, pass_index: int, drawn: int) -> list[int]:
        """Return what the pass after ``pass_index`` feeds."""
        following = pass_index + 1
        return list(self.passes[following]) if following < len(self.passes) else [drawn]


class Worker:
    """One worker: its progress, its private memory, and what phases of several kinds do."""

    def __init__(self, run: Run, index: int) -> None:
        self.run, self.plan, self.memory, self.index = run, run.plan, run.memory, index
        groups = run.plan.groups
        self.group = groups.of(index)
        self.lanes = groups.lanes_of(self.group)
        self.team = groups.workers_of(self.group)
        self.progress = 0  # phases finished, over all passes
        self.position = 0  # of the pass's first token
        self.tokens = list(run.passes[0])
        self.x = np.zeros((0,), np.float32)  # [own lanes, T, D]
        self.notes: dict[str, Floats] = {}  # what a phase leaves for the own later ones

    @property
    def phase(self) -> Phase:
        """The next one."""
        return self.plan.phases[self.progress % len(self.plan.phases)]

    @property
    def pass_index(self) -> int:
        """Number of the pass."""
        return self.progress // len(self.plan.phases)

    @property
    def finished(self) -> bool:
        """Whether all passes are over."""
        return self.pass_index == self.run.count

    @property
    def width(self) -> int:
        """Tokens of the pass, T."""
        return len(self.tokens)

    def may_begin(self, workers: "list[Worker]") -> bool:
        """Tell whether the waits of the next phase are over."""
        base = self.pass_index * len(self.plan.phases)
        team = workers[self.team.start : self.team.stop]
        return all(
            worker.progress >= base + wait.count
            for wait in self.phase.waits
            for worker in (workers if wait.scope is Scope.ALL else team)
        )

    def update(self, update: Update) -> None:
        """x_l += reduce(...), summing over lanes in ascending order, as all executors do."""
        config, delay = self.plan.config, update.reduce.delay
        count, width = config.num_lanes, slice(self.width)
        place = OUTPUTS.index(update.module)
        module, (_, role) = config.modules[update.layer][place], JOINING_NORMS[place]
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
            if module.norm_after:
                scale = self.run.layers[update.layer][role]
                own = scale[lane : lane + 1] if len(scale) > 1 else scale
                gain = self._normed(gain[None], own)[0]
            if module.held:
                self.notes[f"held {lane}"] = gain
                continue
            if module.joint_norm:
                joint = self.run.layers[update.layer][Role.JOINT_NORM]
                own = joint[lane : lane + 1] if len(joint) > 1 else joint
                both = self.notes[f"held {lane}"] + gain
                gain = self._normed(both[None], own)[0]
            if module.replaces:
                self.x[i] = 0
            gain = gain * np.float32(module.scale)
            if module.aside:
                self.notes["streams"][1:] += gain
                continue
            self.x[i] += gain
            self.x[i] *= np.float32(module.stream_factor)
            if module.stream_scale:
                self.x[i] *= self.run.layers[update.layer][Role.LAYER_SCALE][0]

    def read_stream(self, phase: Phase) -> Floats:
        """Return what a phase's module reads of the own lanes' streams: [own lanes, T, D]."""
        assert phase.module is not None
        place = OUTPUTS.index(phase.module)
        modules = self.plan.config.modules[phase.layer]
        if not modules[place].norm_before:
            return self.x
        return self.norm(phase.layer, norm_read_by(modules, place))

    def norm(self, layer: int | None, role: Role) -> Floats:
        """Norm the own lanes' streams: [own lanes, T, D]."""
        return self.normed(self.x, layer, role)

    def normed(self, x_LTD: Floats, layer: int | None, role: Role) -> Floats:
        """Norm what is given of the own lanes: [own lanes, T, D]."""
        scale = self._weights(layer)[role]
        lanes = slice(self.lanes[0], self.lanes[-1] + 1)
        own = scale[lanes] if len(scale) > 1 else scale
        return self._normed(x_LTD, own)

    def _normed(self, x_LTD: Floats, scale: Floats) -> Floats:
        config = self.plan.config
        return norm_stream(x_LTD, scale, config.norm_eps, config.norm_centred)

    def own(self, x: Floats, lane: int) -> Floats:
        """Return what an own lane has of something of all own lanes."""
        own: Floats = x[lane - self.lanes[0]]
        return own

    def _weights(self, layer: int | None) -> dict[Role, Floats]:
        return self.run.outer if layer is None else self.run.layers[layer]

    def product(
        self, layer: int | None, matrix: Matrix, lane: int, rows: slice, x_TD: Floats
    ) -> Floats:
        """Multiply some rows of a lane's matrix: [T, rows]."""
        weight = self._weights(layer)[matrix.role][lane, rows]
        product: Floats = linear(x_TD[None], weight[None])[0]
        return product

    def pieces(self, matrix: Matrix) -> Iterator[tuple[int, slice]]:
        """Yield (lane, rows of that lane) of the own share."""
        for lane, rows in self.pieces_of_heads(matrix):
            yield self.lanes[lane], rows

    def pieces_of_heads(self, matrix: Matrix) -> Iterator[tuple[int, slice]]:
        """Yield (head, rows of that head) of the own share of a matrix of each head."""
        yield from cut(*matrix.share.of(self.index), matrix.rows)

    def turned(self, layer: int, heads_THh: Floats) -> Floats:
        """Turn what is given of some heads: all, or where all of a head is, its first numbers."""
        config = self.plan.config
        which = config.layers[layer].rotary
        if which == "none":
            return heads_THh
        rotary = config.rotary if which == "main" else config.local_rotary
        assert rotary is not None
        positions = np.arange(self.position, self.position + self.width)
        part_THr, rest = np.split(heads_THh, [config.rotary_dim(which)], axis=-1)
        frequencies = rotary.frequencies(config.rotary_dim(which))
        turned = rotate(part_THr[None], positions, frequencies, rotary.style, rotary.amplitude)[0]
        return np.concatenate([turned, rest], axis=-1)

    def merged(self, layer: int, lane: int) -> Floats:
        """Merge the splits of all heads of a lane, and their sinks: [T, H/L*h]."""
        where = (lane, slice(None), slice(self.width))
        partial = self.read(Buffer.ATTENTION, where)  # [S, T, H/L, h + 2]
        sums, peaks, totals = partial[..., :-2], partial[..., -2:-1], partial[..., -1:]
        peak, alone = peaks.max(axis=0), np.zeros((1, 1), np.float32)
        if Role.SINKS in self.run.layers[layer]:
            sinks = self.run.layers[layer][Role.SINKS][lane][:, None]
            peak = np.maximum(peak, sinks)
            alone = np.exp(sinks - peak)
        share = np.exp(peaks - peak)
        merged: Floats = (share * sums).sum(axis=0) / ((share * totals).sum(axis=0) + alone)
        return merged.reshape(self.width, -1)

    def read(self, buffer: Buffer, where: Where) -> Floats:
        """Read a part of a buffer as the phase's layer uses it."""
        return self.memory.read(buffer, where, self.phase)

    def write(self, buffer: Buffer, region: Where, part: Where, values: Floats) -> None:
        """Write a part of a region of a buffer, as the phase's layer uses it."""
        self.memory.write(buffer, region, part, values, self.progress, self.phase)

    def store(self, buffer: Buffer, region: Where, rows: slice, y: Floats) -> None:
        """Write some columns of a region for all tokens."""
        self.write(buffer, region, (slice(self.width), rows), y)


def cut(begin: int, end: int, rows: int) -> Iterator[tuple[int, slice]]:
    """Cut a range of group rows where one lane ends: (lane, rows of it)."""
    while begin < end:
        lane, row = divmod(begin, rows)
        stop = min(end, (lane + 1) * rows)
        yield lane, slice(row, row + stop - begin)
        begin = stop


def _float32(arrays: Mapping[Role, npt.NDArray[Any]], offset: np.float32) -> dict[Role, Floats]:
    """Widen the arrays; scales of norms with their offset."""
    found = {role: np.asarray(array, np.float32) for role, array in arrays.items()}
    return {role: x + offset if role.kind is Kind.NORM else x for role, x in found.items()}

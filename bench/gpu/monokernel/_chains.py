"""How long a warp of the compiled kernel is busy between two products, with nothing to wait for.

A *chain* leads from the last matrix instruction of one phase to the first of the next: its *tail*
ends with the store that publishes, its *front* begins when the awaited word is there. The way from
the one to the other between blocks is not part of it: the simulator has a constant for that.

The way through the code is the one of the fewest stall cycles that passes certain instructions in
their order (``Mark``): so no wait is repeated, no watchdog looked at and no request has special
wishes. Along it a warp's time follows from the control codes, but for instructions whose time
varies, which take what ``latencies.toml`` says. So a chain is a lower bound in what it passes. The
upper one adds an issue slot for each instruction: of the second warp that shares the scheduler.

Not in it: misses of the instruction cache, conflicts beyond the latencies' bounds, and a poll that
comes just too early.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from bench.gpu.monokernel._machine_code import NONE, Instruction, function_at, line_of
from monolane.cuda._layout import Layout
from monolane.cuda._program import Step
from monolane.sim import LEVELS, Constant, Level

Way = list[int]  # numbers of instructions, in the order in which a warp executes them


@dataclass(frozen=True, slots=True)
class Mark:
    """An instruction that a way must pass, of a function of the kernel or of what that calls.

    A loop's trips are as many marks, one behind the other.
    """

    function: str
    opcode: str  # its beginning


@dataclass(frozen=True, slots=True)
class Segment:
    """One half of a chain, within a step of the program."""

    step: str
    start: Mark
    marks: tuple[Mark, ...]
    at_once: bool = False  # what the first instruction loads is there at once: it was awaited


@dataclass(slots=True)
class Chain:
    """What lies between two products; cycles by level."""

    instructions: int = 0
    stalls: int = 0  # cycles: what the control codes alone make of it
    cycles: dict[Level, int] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0))
    waits: Counter[str] = field(default_factory=Counter)  # cycles of `value` spent on each latency

    def add(self, other: Chain) -> None:
        """Go on with another."""
        self.instructions += other.instructions
        self.stalls += other.stalls
        self.waits.update(other.waits)
        for level in LEVELS:
            self.cycles[level] += other.cycles[level]


# ---- which instructions belong to which step -----------------------------------------------------
def listed_steps(layout: Layout) -> tuple[Step, ...]:
    """Return the steps in the order of the kernel's PROGRAM: those of a layer once."""
    steps, layer = layout.program.steps, layout.program.layer_steps
    first = steps.index(layer[0])
    rest = first + len(layer) * layout.program.plan.config.num_layers
    return (*steps[:first], *layer, *steps[rest:])


def step_of(instruction: Instruction, layer_steps: int) -> int | None:
    """Return the step that an instruction was inlined into; see run_steps.

    -1: it is of no step; None: the compiler names the innermost function alone.
    """
    source = "monokernel.cu"
    bases = {
        line_of(source, "run_ops<0>(b, 0);"): 0,
        line_of(source, "run_steps<FIRST_STEP, FIRST_STEP + LAYER_STEPS>(b, layer);"): 1,
        line_of(source, "run_steps<FIRST_STEP + LAYER_STEPS, STEPS>(b, LAYERS);"): 1 + layer_steps,
    }
    again = line_of(source, "run_steps<FROM + 1, TO, NUMBER + 1>(b, layer);")
    for place in instruction.places:
        if place in bases:
            return bases[place] + instruction.places.count(again)
    return -1 if instruction.places and instruction.places[-1].file == source else None


def name_steps(instructions: Sequence[Instruction], layout: Layout) -> list[str]:
    """Return the name of each instruction's step, "" outside all.

    Two things the compiler's table leaves open. Where it names the innermost function alone, an
    instruction is of the step of the one before. And the head has the calls of a layer's last step:
    it begins where that step would norm, which it does not.
    """
    names = [step.kind.name for step in listed_steps(layout)]
    each = len(layout.program.layer_steps)
    found: list[str] = []
    beyond = False  # the layers
    for x in instructions:
        number = step_of(x, each)
        if number is None:
            found.append(found[-1] if found else "")
            continue
        name = names[number] if number >= 0 else ""
        if name == names[each]:
            beyond = beyond or any(function_at(p) == "normalise_stream" for p in x.places)
            name = names[each + beyond]
        found.append(name)
    return found


class Code:
    """A kernel's instructions, where they may be followed by which, and what steps they are of."""

    def __init__(self, instructions: Sequence[Instruction], layout: Layout) -> None:
        self.instructions = instructions
        self.layout = layout
        self.steps = name_steps(instructions, layout)
        self.functions = [frozenset(map(function_at, x.places)) for x in instructions]
        self._index = {x.address: i for i, x in enumerate(instructions)}
        self.next = [list(self._followers(i)) for i in range(len(instructions))]

    def _followers(self, i: int) -> Iterator[int]:
        x = self.instructions[i]
        kind = x.opcode.partition(".")[0]
        behind = i + 1 if i + 1 < len(self.instructions) else None
        jump = self._index.get(x.target) if x.target is not None else None
        sure = not x.predicate
        if kind == "BSYNC":
            jump = self._reconvergence(i)
        if kind in ("BRA", "JMP", "BSYNC") and x.opcode != "BRA.DIV" and jump is not None:
            yield jump
            sure = sure and (kind == "BSYNC" or x.operands.startswith("`("))
        else:
            sure = sure and kind in ("EXIT", "RET", "CALL", "BRX", "BPT")
        if not sure and behind is not None:
            yield behind

    def _reconvergence(self, i: int) -> int | None:
        """Return where threads go on that have met: what the last such BSSY before named."""
        barrier = self.instructions[i].operands.split(",")[0]
        for before in reversed(self.instructions[:i]):
            if before.opcode.startswith("BSSY") and before.operands.split(",")[0] == barrier:
                return self._index.get(before.target) if before.target is not None else None
        return None

    def matches(self, step: str, mark: Mark) -> Callable[[int], bool]:
        """Return whether an instruction is the one that a mark means, in a step."""
        return lambda i: (
            self.steps[i] == step
            and mark.function in self.functions[i]
            and self.instructions[i].opcode.startswith(mark.opcode)
        )

    def cost(self, i: int) -> int:
        """Return the cycles from an instruction's issue to the next."""
        return max(1, self.instructions[i].control.stall)

    # ---- ways ------------------------------------------------------------------------------------
    def way(self, segment: Segment) -> Way:
        """Return the way of the fewest stall cycles that a segment describes."""
        marks = [self.matches(segment.step, mark) for mark in segment.marks]
        is_start = self.matches(segment.step, segment.start)
        starts = list(filter(is_start, range(len(self.instructions))))
        heap: list[tuple[int, int, int]] = []
        before: dict[tuple[int, int], tuple[int, int] | None] = {}
        least: dict[tuple[int, int], int] = {}
        furthest = 0
        for i in starts:
            least[i, 0], before[i, 0] = 0, None
            heappush(heap, (0, i, 0))
        while heap:
            spent, i, done = heappop(heap)
            if least[i, done] < spent:
                continue
            furthest = max(furthest, done)
            if done == len(marks):
                return _traced(before, (i, done))
            for j in self.next[i]:
                state = (j, done + marks[done](j))
                longer = spent + self.cost(i)
                if longer < least.get(state, 1 << 60):
                    least[state], before[state] = longer, (i, done)
                    heappush(heap, (longer, *state))
        raise LookupError(
            f"{segment.step}: expected {segment.marks[furthest]} behind {segment.start} and "
            f"{furthest} marks, found none ({len(starts)} beginnings): has the kernel changed?"
        )

    # ---- time ------------------------------------------------------------------------------------
    def time(self, way: Way, latencies: Mapping[str, Constant], segment: Segment) -> Chain:
        """Return how long a warp takes for the way of a segment."""
        chain = Chain(len(way), sum(map(self.cost, way)))
        for level in LEVELS:
            cycles, waits = self._walk(way, latencies, level, segment)
            if level == "value":
                chain.waits = waits
            chain.cycles[level] = cycles + (len(way) if level == "high" else 0)
        return chain

    def _walk(
        self, way: Way, latencies: Mapping[str, Constant], level: Level, segment: Segment
    ) -> tuple[int, Counter[str]]:
        now, waits = 0, Counter[str]()
        pending: dict[int, list[tuple[int, str]]] = {}  # by barrier: when it is free, and why then
        is_awaited = self.matches(segment.step, segment.start)
        at_once = segment.at_once  # until the first of what was awaited is used
        for i in way:
            x = self.instructions[i]
            for barrier, left in _awaited(x):
                marks = sorted(pending.pop(barrier, []))
                over = max(0, len(marks) - left)
                for when, kind in marks[:over]:
                    at_once = at_once and kind != _AWAITED
                    if when > now:
                        waits[kind] += when - now
                        now = when
                pending[barrier] = marks[over:]
            if x.opcode.startswith("BAR.SYNC"):
                waits["barrier"] += round(latencies["barrier"].at(level))
                now += round(latencies["barrier"].at(level))
            for barrier, kind in self._frees(i, at_once and is_awaited(i)):
                takes = 0 if kind == _AWAITED else round(latencies[kind].at(level))
                pending.setdefault(barrier, []).append((now + takes, kind))
            now += self.cost(i)
        return now, waits

    def _frees(self, i: int, is_there: bool) -> Iterator[tuple[int, str]]:
        """Yield the barriers that an instruction frees, and what that takes.

        Keys and values count as there: the simulator has their reading apart.
        """
        x = self.instructions[i]
        if x.control.read != NONE:
            yield x.control.read, "operands"
        if x.control.written != NONE:
            is_there |= "attend_tile" in self.functions[i] and x.opcode.startswith("LDG")
            yield x.control.written, _AWAITED if is_there else self._latency(i)

    def _latency(self, i: int) -> str:
        """Return the name of what an instruction's result takes."""
        kind = self.instructions[i].opcode.partition(".")[0]
        if kind in ("LDG", "LD", "ATOMG", "LDGSTS"):
            return "l2"
        return _LATENCY.get(kind, "other")


_AWAITED = "awaited"
_LATENCY = {
    "LDS": "shared", "STS": "shared", "ATOMS": "shared", "LDSM": "shared", "SYNCS": "shared",
    "MUFU": "special", "SHFL": "shuffle", "HMMA": "matrix",
    "LDC": "constant", "LDCU": "constant", "ULDC": "constant",
}  # fmt: skip


def _awaited(x: Instruction) -> list[tuple[int, int]]:
    """Return the barriers that an instruction waits for, and how many may be left on each."""
    found = [(barrier, 0) for barrier in x.control.awaited]
    if x.opcode.startswith("DEPBAR") and (said := re.match(r"SB(\d), (0x[0-9a-f]+)", x.operands)):
        found.append((int(said[1]), int(said[2], 16)))
    return found


def _traced(before: Mapping[tuple[int, int], tuple[int, int] | None], last: tuple[int, int]) -> Way:
    states = [last]
    while (state := before[states[-1]]) is not None:
        states.append(state)
    return [i for i, _ in reversed(states)]


# ---- the kernel's chains -------------------------------------------------------------------------
def segments(layout: Layout, context: int) -> dict[str, tuple[Segment, ...]]:
    """Return what each phase's chain is made of, with trip counts from the plan.

    A narrow kernel's, in a layer that hears other lanes, of one greedy request that is ``context``
    tokens long. The choice of the token holds the next pass' layout and its embedding.
    """
    c, threads = layout.plan.config, layout.warps * 32
    group, h = c.num_heads // c.num_kv_heads, c.head_dim

    def trips(count: int, each: int, mark: Mark) -> tuple[Mark, ...]:
        return (mark,) * -(-count // each)

    late = any(layer.attention.delay > 0 for layer in layout.layers)
    stored = (Mark("keep_sums", "STS"), Mark("multiply", "BAR.SYNC"), Mark("row_total", "LDS"))

    def norm(step: str) -> Segment:
        marks = (
            Mark("await_norm", "SHFL"),
            Mark("await_norm", "MUFU.RSQ"),
            Mark("await_norm", "MUFU.RCP"),
            Mark("await_norm", "STS"),
            Mark("normalise_stream", "BAR.SYNC"),
            Mark("await_pairs", "LDG.E.128"),
            *trips(c.hidden_size // 2, threads, Mark("put_activations", "STS")),
            Mark("multiply", "BAR.SYNC"),
            Mark("multiply_tile", "HMMA"),
        )
        return Segment(step, Mark("await_norm", "LDG"), marks, at_once=True)

    def fetched(step: str, function: str, pairs: int, *marks: Mark) -> Segment:
        behind = (
            *marks,
            *trips(pairs, threads, Mark("put_activations", "STS")),
            Mark("multiply", "BAR.SYNC"),
            Mark("multiply_tile", "HMMA"),
        )
        return Segment(step, Mark(function, "LDG.E.128"), behind, at_once=True)

    def product(step: str, *marks: Mark) -> Segment:
        return Segment(step, Mark("multiply_tile", "HMMA"), (*stored, *marks))

    def update(step: str) -> Segment:
        marks = (
            *((Mark("add_lanes", "LDG"),) if late else ()),
            Mark("update_stream", "STG"),
            Mark("publish_squares", "BAR.SYNC"),
            *trips(layout.own_rows, 32, Mark("publish_squares", "LDS")),
            Mark("warp_total", "SHFL"),
            Mark("publish_squares", "STG"),
        )
        return product(step, *marks)

    # Sums are not fused: FFMA is a power of two, or a quotient.
    keys = -(-context // layout.plan.splits)
    width = layout.kv_row_bytes // 2
    tile = (
        *trips(2 * width, 16, Mark("attend_tile", "HMMA")),  # two halves of the keys
        Mark("attend_tile", "FFMA"),
        *trips(width, 8, Mark("attend_tile", "HMMA")),
    )
    partial = (
        *(tile * -(-keys // (16 * layout.warps)))[1:],  # less the one that it begins with
        Mark("attend_queries", "SHFL"),
        Mark("publish_partial", "STS"),
        Mark("publish_partial", "BAR.SYNC"),
        Mark("publish_partial", "FFMA"),
        *trips(group * (h + 2), threads, Mark("publish_partial", "STG")),
    )
    unit = (
        Mark("fetch_unit", "STS"), Mark("attend", "BAR.SYNC"), Mark("attend_tile", "LDG")
    )  # fmt: skip
    merged = (
        *trips(layout.plan.splits, 1, Mark("merge_splits", "FFMA")),
        Mark("merge_splits", "MUFU.RCP"),
    )
    hidden = (
        Mark("publish_hidden", "FFMA"),
        Mark("publish_hidden", "MUFU.RCP"),
        Mark("publish_hidden", "STG"),
    )
    return {
        "QKV": (update("DOWN"), norm("QKV")),
        "ATTEND": (
            product("QKV", Mark("publish_qkv", "STG")),
            Segment("ATTEND", Mark("fetch_unit", "LDG.E.128"), unit, at_once=True),
        ),
        "OUT": (
            Segment("ATTEND", Mark("attend_tile", "HMMA"), partial),
            fetched("OUT", "merge_splits", c.num_heads // c.num_lanes * h // 2, *merged),
        ),
        "GATE_UP": (update("OUT"), norm("GATE_UP")),
        "DOWN": (
            product("GATE_UP", *hidden),
            fetched("DOWN", "fetch_hidden", c.intermediate_size // c.num_lanes // 2),
        ),
        "HEAD": (update("DOWN"), norm("HEAD")),
    }


def chains(code: Code, latencies: Mapping[str, Constant], context: int) -> dict[str, Chain]:
    """Return the chain before the product of each phase."""
    found = {}
    for kind, halves in segments(code.layout, context).items():
        chain = Chain()
        for half in halves:
            chain.add(code.time(code.way(half), latencies, half))
        found[kind] = chain
    return found


def totals(code: Code) -> dict[str, tuple[int, int]]:
    """Return each step's instructions and the cycles of their stalls, slow paths included."""
    found: dict[str, tuple[int, int]] = {}
    for i, step in enumerate(code.steps):
        instructions, stalls = found.get(step, (0, 0))
        found[step] = (instructions + 1, stalls + code.cost(i))
    return found

"""Proving the program of a pass sound, before it is compiled.

Blocks exchange stamped words. A reader needs no leave: it polls until the stamp is the one that it
awaits. A writer does: it must know that everybody has read what it is about to overwrite, and
nobody counts readers. So three passes are walked touch by touch, and it is written down what each
block knows of each other one: how far its threads have come at least. An awaited word brings what
its publisher knew. Every overwriting must follow from that.

Two ledgers, since a thread runs ahead of its block between two barriers. ``sure``: what all threads
of a block know, and of all threads of the other. ``element``: what a thread knows of the thread
that has the same element of the stream in another lane's block; raw outputs go from one to the
other. Three lanes stand for more, which are alike.

Lanes may lie on several devices. A word that another device's block awaits must then be posted to
that device; nothing else changes, for what a block knows it has from words that it has itself seen
arrive, over whatever links they came, and stores to one word arrive in their order.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from monolane.cuda._program import (
    Exchange,
    Op,
    Program,
    Step,
    Touch,
    Verb,
    When,
    share_layers,
    shares_of,
)
from monolane.model import QkNorm, Role
from monolane.plan import Buffer, PhaseKind, Plan, PlanError, Share, validate

Clock = npt.NDArray[np.int32]  # [W, W]: of each block (row), how far it knows each other to be
Mask = npt.NDArray[np.bool_]

_PASSES = 3  # what takes turns by the pass has two copies: the third overwrites the first
_LANES = 3
_ATTENTION, _MLP = 0, 1
_NORMED = (PhaseKind.QKV, PhaseKind.GATE_UP, PhaseKind.HEAD)  # multiply the normalised stream
# Exchanges whose words go from a thread to the one with the same element.
_ELEMENTWISE = (Exchange.STREAM, Exchange.LANES)
# The words in which a reader of a plan's buffer awaits it. Own outputs come with the stream, to
# which the row's owner has added them; cached keys are the block's own.
_WORDS = {
    Buffer.UNNORMED: Exchange.QKV,
    Buffer.ATTENTION: Exchange.PARTIAL,
    Buffer.HIDDEN: Exchange.HIDDEN,
    Buffer.STREAM: Exchange.JOINED,
    Buffer.LOGITS: Exchange.CANDIDATES,
}


def prove(program: Program) -> None:
    """Raise PlanError with every fault of a program and of its plan, if there are any."""
    validate(program.plan)
    if found := list(faults(program)):
        raise PlanError("the kernel's program is unsound:\n  " + "\n  ".join(found))


def faults(program: Program) -> Iterator[str]:
    """Yield what is wrong with a program, each with the step in which it shows."""
    wrong = [*_order(program), *_writers(program), *_coverage(program)]
    yield from wrong
    if wrong:
        return
    seen = set()
    for guards in (  # what requests ask for, pass by pass
        [()] * _PASSES,
        [(When.GUIDED,)] * _PASSES,
        [(When.GUIDED,), (), (When.GUIDED,)],
        [(When.LIMITED,)] * _PASSES,
        [(When.LIMITED,), (), (When.LIMITED,)],
    ):
        for blocks in _dealt(program):
            for fault in _Walk(program, blocks).run(guards):
                if fault not in seen:
                    seen.add(fault)
                    yield fault


def _order(program: Program) -> Iterator[str]:
    """Check that the steps are the plan's phases, each once, in the plan's order."""
    lowered = [phase for step in program.steps for phase in step.phases]
    if lowered != list(program.plan.phases):
        names = [phase.name for phase in lowered]
        wanted = [phase.name for phase in program.plan.phases]
        at = next((i for i, (a, b) in enumerate(zip(names, wanted, strict=False)) if a != b), -1)
        where = f"{names[at]} where the plan has {wanted[at]}" if at >= 0 else "other phases"
        yield f"expected the plan's phases in its order, got {where}"


def _coverage(program: Program) -> Iterator[str]:
    """Check that whatever the plan lets a phase read of other blocks is awaited by its step.

    Stated anew from the plan's reads and updates: what is awaited, and in which step. And that what
    a block awaits of another device's is posted there.
    """
    touches = (x for step in program.steps for op in step.ops for x in program.touches(op))
    exchanged = {x.what for x in touches if x.what is not None}
    for blocks in _dealt(program):
        for word, mask in (x for i in blocks.ways for x in blocks.sources(i).items()):
            if word in exchanged - program.posted and (mask & blocks.apart).any():
                yield f"{word.name} is awaited by blocks of other devices, and not posted"
    awaited: dict[tuple[str, Exchange], set[When]] = {}
    published = set()
    for step in program.steps:
        for op in step.ops:
            for touch in program.touches(op):
                if touch.verb is Verb.AWAIT and touch.what is not None:
                    awaited.setdefault((step.name, touch.what), set()).add(touch.when)
                elif touch.what is not None:
                    published.add(touch.what)
    for lost in sorted(published - {what for _, what in awaited}):
        yield f"{lost.name} is published, and nobody awaits it"
    makers = {
        (write.buffer, write.layer): step
        for step in program.steps
        for phase in step.phases
        for write in phase.writes
    }
    for step in program.steps:
        for phase in step.phases:
            for read in phase.reads:
                what = _WORDS.get(read.buffer)
                if what is Exchange.HIDDEN and program.wide:
                    what = Exchange.LANE
                if what is not None and (step.name, what) not in awaited:
                    yield f"{step.name}: reads {read}, but awaits no {what.name}"
            heads = program.plan.config.qk_norm is QkNorm.ALL and phase.kind is PhaseKind.ATTEND
            if heads and (step.name, Exchange.HEAD_SQUARES) not in awaited:
                yield f"{step.name}: norms all heads, but awaits no squares of them"
            if phase.kind in _NORMED and step.phases[0].kind is not PhaseKind.GATHER:
                normed = program.plan.config.norm_before or phase.kind is PhaseKind.HEAD
                told = normed and not program.local_squares
                for words in (Exchange.STREAM, *((Exchange.SQUARES,) if told else ())):
                    if (step.name, words) not in awaited:
                        yield f"{step.name}: reads the stream, but awaits no {words.name}"
            for update in phase.updates:
                maker = makers.get((update.module, update.layer))
                delay = -1 if update.reduce.delay is None else update.reduce.delay
                if maker is None or maker.rule is None or maker.rule.delay != delay:
                    yield f"{step.name}: expected a delay of {delay} in the step that updates it"
                    continue
                if program.plan.config.norm_after and (maker.name, Exchange.GAINED) not in awaited:
                    yield f"{maker.name}: norms what the stream gains, but awaits no squares of it"
                when = When.NOW if delay == 0 else When.LATE
                if delay >= 0 and when not in awaited.get((maker.name, Exchange.LANES), ()):
                    yield f"{maker.name}: awaits no outputs of the other lanes"
                source = makers.get((update.module, update.layer - delay))
                if delay >= 0 and (source is None or source.rule is None or not source.rule.read):
                    yield f"{step.name}: nobody publishes what its update adds"


def _dealt(program: Program) -> Iterator["_Blocks"]:
    """Yield the ways in which three lanes lie on devices as the program's lanes do."""
    if program.devices == 1:
        yield _Blocks(program.plan, program.merge)
        return
    yield _Blocks(program.plan, program.merge, 1)
    if program.plan.config.num_lanes > program.devices:  # two neighbours, and a third elsewhere
        yield _Blocks(program.plan, program.merge, 2)


# ---- who reads what of whom ----------------------------------------------------------------------
def _writers(program: Program) -> Iterator[str]:
    """Check that a word always has the same writer: two would be ordered by nothing that PTX
    promises."""
    plan, turns = program.plan, program.slots.layers
    for layer in range(turns, plan.config.num_layers):
        if shares_of(plan, layer) != shares_of(plan, layer - turns):
            yield f"layer {layer}: expected rows shared out as {turns} layers before"
            return


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The blocks of up to three lanes, and whose words each of them awaits."""

    plan: Plan
    merge: Share | None = None  # see Program
    device_lanes: int = _LANES  # lanes of a device

    @property
    def lanes(self) -> int:
        return min(self.plan.config.num_lanes, _LANES)

    @property
    def each(self) -> int:
        return self.plan.groups.workers_each

    @property
    def count(self) -> int:
        return self.lanes * self.each

    @property
    def apart(self) -> Mask:
        """Whether two blocks are on different devices."""
        device = np.arange(self.count) // (self.each * self.device_lanes)
        found: Mask = device[:, None] != device[None, :]
        return found

    def describe(self, worker: int) -> str:
        return f"block {worker % self.each} of lane {worker // self.each}"

    @property
    def ways(self) -> range:
        """Layers that share rows out in ways of their own, by turns."""
        return range(share_layers(self.plan))

    def sources(self, layer: int) -> dict[Exchange, Mask]:
        """Return, of each exchange, whether block [row] awaits words of block [column]."""
        shares = shares_of(self.plan, layer)
        lane = np.arange(self.count) // self.each
        member = np.arange(self.count) % self.each
        same = lane[:, None] == lane[None, :]
        everybody = np.ones_like(same)
        stream = self._owners(shares[Role.O])[member]
        hidden = self._owners(shares[Role.GATE])[member]
        units = self.plan.find(PhaseKind.ATTEND, 0).units
        assert units is not None
        attends = np.broadcast_to(self._owners(units)[member], same.shape)
        merges = np.zeros(self.count, np.bool_)
        if self.merge is not None:
            attends = self._merged(units, self.merge)[np.ix_(member, member)]
            merges = self._owners(self.merge)[member]
        first = np.arange(self.count) == 0
        leads = np.arange(self.count) % (self.each * self.device_lanes) == 0  # its device
        several = bool(self.apart.any())
        return {
            Exchange.STREAM: same & stream,
            Exchange.SQUARES: same & stream,
            Exchange.GAINED: same & stream,
            Exchange.HEAD_SQUARES: same,
            Exchange.QKV: same & self._heads(units, shares)[np.ix_(member, member)],
            Exchange.PARTIAL: same & attends,
            Exchange.MERGED: same & merges,
            Exchange.HIDDEN: same & hidden,
            Exchange.LANES: ~same & (member[:, None] == member[None, :]) & stream,
            Exchange.JOINED: everybody & stream,
            # On several devices a device's first block alone reads its candidates.
            Exchange.CANDIDATES: ~self.apart & leads[:, None] if several else everybody,
            Exchange.BEST: everybody & leads,
            Exchange.CONTROL: everybody & first,
            Exchange.GUIDE: everybody & first,
            Exchange.LOGITS: everybody,
            # Any block may choose for a row, and all chosen rows are awaited.
            Exchange.DECISION: everybody,
            Exchange.LANE: same,
            Exchange.ACTIVATIONS: same,
        }

    def _owners(self, share: Share) -> Mask:
        """Return which blocks of a lane have a share at all."""
        return np.array([begin < end for begin, end in map(share.of, range(self.each))])

    def _merged(self, units: Share, merge: Share) -> Mask:
        """Return whose partial attention a block needs for the pairs that it merges: [B, B]."""
        c, needs = self.plan.config, np.zeros((self.each, self.each), np.bool_)
        pairs = c.num_heads // c.num_kv_heads * c.head_dim // 2  # of a KV head's queries
        for reader in range(self.each):
            begin, end = merge.of(reader)
            for writer in range(self.each):
                heads = {unit // self.plan.splits for unit in range(*units.of(writer))}
                needs[reader, writer] = any(
                    begin < (x + 1) * pairs and x * pairs < end for x in heads
                )
        return needs

    def _heads(self, units: Share, shares: dict[Role, Share]) -> Mask:
        """Return whose rows of Q, K and V a block's units of attention need: [B, B]."""
        c, needs = self.plan.config, np.zeros((self.each, self.each), np.bool_)
        group = c.num_heads // c.num_kv_heads
        for role, heads in ((Role.Q, group), (Role.K, 1), (Role.V, 1)):
            rows = heads * c.head_dim  # of a KV head
            share = shares[role]
            for reader in range(self.each):
                for unit in range(*units.of(reader)):
                    begin = unit // self.plan.splits * rows
                    for writer in range(self.each):
                        low, high = share.of(writer)
                        needs[reader, writer] |= max(low, begin) < min(high, begin + rows)
        return needs


# ---- walking the passes --------------------------------------------------------------------------
@dataclass(slots=True)
class _Content:
    """What lies in a copy of a buffer: when it was published and read, and what came with it."""

    stamp: int
    published: int
    sure: Clock
    element: Clock
    reads: list[int] = field(default_factory=list)


class _Walk:
    """Three passes, touch by touch; ``now`` numbers the touches of all of them."""

    def __init__(self, program: Program, blocks: "_Blocks") -> None:
        self.program, self.blocks = program, blocks
        self._sources = [self.blocks.sources(i) for i in self.blocks.ways]
        self._alike = [
            {x: np.unique(mask, axis=0, return_inverse=True) for x, mask in sources.items()}
            for sources in self._sources
        ]
        self.layer = 0  # of the step that is walked
        shape = self.blocks.count, self.blocks.count
        self.sure = np.full(shape, -1, np.int32)  # of all threads, since the last barrier
        self.pending = self.sure.copy()  # awaited since by some thread: sure at the next barrier
        self.mine = self.sure.copy()  # `sure`, and what the element's own thread has awaited since
        self.element = self.sure.copy()
        self.content: dict[tuple[Exchange, int], _Content] = {}
        self.now = 0
        self.barrier = -1  # the last one: all threads have passed what came before
        self.syncs = 0
        self.place = ""

    def run(self, guards: Iterable[tuple[When, ...]]) -> Iterator[str]:
        """Yield faults."""
        for number, asked in enumerate(guards):
            for step in self.program.steps:
                self.place, self.layer = step.name, max(step.layer, 0)
                for op in step.ops:
                    for touch in self.program.touches(op):
                        if self._happens(touch, step, asked):
                            yield from self._touch(touch, op, step, number)
                            self.now += 1

    def _happens(self, touch: Touch, step: Step, asked: tuple[When, ...]) -> bool:
        if touch.when in (When.GUIDED, When.LIMITED):
            return touch.when in asked
        if touch.when is When.ALWAYS:
            return True
        if self.blocks.lanes == 1 or step.rule is None:
            return False
        delay = step.rule.delay
        late, now = touch.when is When.LATE, touch.when is When.NOW
        return (late and delay > 0) or (now and delay == 0) or (
            touch.when is When.READ and step.rule.read
        )  # fmt: skip

    def _touch(self, touch: Touch, op: Op, step: Step, number: int) -> Iterator[str]:
        what = touch.what
        if touch.verb is Verb.BARRIER or what is None:
            np.maximum(self.sure, self.pending, out=self.sure)
            np.maximum(self.element, self.sure, out=self.element)
            self.mine[...] = self.sure
            self.barrier = self.now
            return
        publishes = touch.verb is Verb.PUBLISH
        if what is Exchange.LANE and publishes:
            self.syncs += 1
        made = op in (
            Op.UPDATE, Op.PUBLISH_QKV, Op.ATTEND, Op.MERGE, Op.MERGE_OWN, Op.FETCH_MERGED,
            Op.PUBLISH_HIDDEN,
        )  # fmt: skip
        event = step.event + (made or what is Exchange.HIDDEN)
        layer = step.layer
        if what is Exchange.LANES and not publishes and touch.when is When.LATE:
            assert step.rule is not None
            layer, event = layer - step.rule.delay, event - 2 * step.rule.delay
        module = _ATTENTION if step.kind is PhaseKind.OUT else _MLP
        slot = self.program.slot(what, event=event, number=number, layer=layer, module=module)
        stamp = number * (2 * self.program.plan.config.num_layers + 2) + event
        if what is Exchange.LANE:
            stamp = self.syncs  # counted up
        elif what is Exchange.ACTIVATIONS:
            slot = (self.syncs - (not publishes)) % self.program.slots.activations
            stamp = self.syncs + publishes
        if publishes:
            yield from self._publish(what, slot, stamp)
        else:
            yield from self._await(what, slot, stamp)

    def _publish(self, what: Exchange, slot: int, stamp: int) -> Iterator[str]:
        here, before = self.mine if what in _ELEMENTWISE else self.sure, self.content.get
        old = before((what, slot))
        # NOW and LATE in one step publish once; a wide step may fill its activations in parts.
        if old is not None and old.stamp >= stamp and what is not Exchange.ACTIVATIONS:
            yield f"{self.place}: {what.name}[{slot}] gets a stamp that it has had"
        if old is not None and what is not Exchange.LANE and old.stamp != stamp:
            yield from self._overwrite(what, slot, old, here)
        sure, element = here.copy(), self.element.copy()
        np.fill_diagonal(sure, self.barrier)
        np.fill_diagonal(element, self.now)
        self.content[what, slot] = _Content(stamp, self.now, sure, element)

    def _overwrite(self, what: Exchange, slot: int, old: _Content, here: Clock) -> Iterator[str]:
        """Check that every reader of what is overwritten is known to have read it."""
        elementwise = what is Exchange.LANES
        known = (self.element if elementwise else here).copy()
        np.fill_diagonal(known, self.now if elementwise else self.barrier)
        readers = self._sources[self.layer % len(self._sources)][what].T  # [writer, reader]
        for read in old.reads:
            if (late := readers & (known < read)).any():
                writer, reader = (int(i) for i in np.argwhere(late)[0])
                name = self.blocks.describe
                yield (
                    f"{self.place}: {what.name}[{slot}] is overwritten by {name(writer)}, which "
                    f"cannot know that {name(reader)} has read it"
                )
                return

    def _await(self, what: Exchange, slot: int, stamp: int) -> Iterator[str]:
        held = self.content.get((what, slot))
        if held is None or held.stamp != stamp:
            yield f"{self.place}: awaits {what.name}[{slot}], which nobody publishes before it"
            return
        held.reads.append(self.now)
        if what is Exchange.ACTIVATIONS:  # ordinary memory: it does not say that it is there
            known = self.sure.copy()
            np.fill_diagonal(known, self.barrier)
            sources = self._sources[self.layer % len(self._sources)]
            if (sources[what] & (known < held.published)).any():
                yield f"{self.place}: reads {what.name}[{slot}] before they are known to be there"
            return
        # In a wide pass a block reads the tokens that it prepares, of which there may be none.
        if self.program.wide and what in (
            Exchange.STREAM, Exchange.SQUARES, Exchange.PARTIAL, Exchange.JOINED,
        ):  # fmt: skip
            return
        if what is Exchange.LOGITS:  # one block reads them; what it learns goes with its decision
            return
        elementwise = what is Exchange.LANES
        told = self._told(what, held.sure)
        np.maximum(self.pending, told, out=self.pending)
        if elementwise:
            np.maximum(self.mine, told, out=self.mine)
            told = np.maximum(told, self._told(what, held.element))
            np.maximum(self.element, told, out=self.element)

    def _told(self, what: Exchange, clock: Clock) -> Clock:
        """Return the furthest that each block hears from those whose words it awaits."""
        rows, which = self._alike[self.layer % len(self._alike)][what]
        # Row by row: all at once would be [W, W, W] where each block awaits others.
        told: Clock = np.array([clock[row].max(axis=0, initial=-1) for row in rows])
        return told[which.reshape(-1)]

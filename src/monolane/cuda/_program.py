"""The program of a pass: the plan's phases as steps of operations, and what each one exchanges.

The plan lets every worker keep a copy of its lanes' streams and add the modules' outputs itself.
Here a row of the stream belongs to one block, which adds the outputs at the end of the phase that
computes them and publishes the sum: so a phase's ``update`` moves from the phase that needs it to
the one that makes it. Counts of finished phases become stamped words, which say by themselves that
they are there. ``specialisation.h`` is printed from the program, so the kernel runs this sequence;
``_race_check.py`` shows that it keeps the plan's promises.
"""

from dataclasses import dataclass
from enum import IntEnum

from monolane.errors import ConfigError
from monolane.model import Head, QkNorm, Role
from monolane.plan import PERIOD, Buffer, Phase, PhaseKind, Plan, Share


class Exchange(IntEnum):
    """What a block awaits from blocks; the number in a fault says which wait starved."""

    WEIGHTS = 1  # its own, from memory
    STREAM = 2
    SQUARES = 3
    QKV = 4
    PARTIAL = 5
    HIDDEN = 6
    LANES = 7  # raw outputs of other lanes
    JOINED = 8
    CANDIDATES = 9
    CONTROL = 10
    LOGITS = 11
    DECISION = 12
    LANE = 13  # the counter of a lane's blocks
    GUIDE = 14
    ACTIVATIONS = 15  # rows in memory of a wide pass: not awaited, LANE says when they are there
    BEST = 16  # of each device's candidates, where there are several devices
    MERGED = 17  # attention, merged from the splits by whom a part of it was given to
    GAINED = 18  # sums of squares of what a stream gains, where that is normed
    HEAD_SQUARES = 19  # and of queries and keys, where a norm goes over all heads


# What leaves its lane. Where lanes lie on several devices these words are posted: written into the
# memory of each device whose blocks await them. All others stay on their device.
POSTED = frozenset(
    {
        Exchange.LANES, Exchange.JOINED, Exchange.CONTROL, Exchange.LOGITS, Exchange.DECISION,
        Exchange.GUIDE, Exchange.BEST,
    }
)  # fmt: skip


class Op(IntEnum):
    """What a step is made of: a function of the kernel each."""

    EMBED = 0
    NORMALISE = 1
    MULTIPLY = 2
    PUBLISH_QKV = 3
    ATTEND = 4
    MERGE = 5
    UPDATE = 6
    PUBLISH_HIDDEN = 7
    FETCH_HIDDEN = 8
    JOIN = 9
    SETTLE_GUIDES = 10
    OFFER = 11
    CHOOSE = 12
    NEXT_PASS = 13
    MERGE_OWN = 14
    FETCH_MERGED = 15
    FETCH_STREAM = 16  # in the place of NORMALISE, where a module reads the stream as it is


class Verb(IntEnum):
    """What a block does with an exchange; a barrier is its own threads' affair."""

    BARRIER = 1
    AWAIT = 2
    PUBLISH = 3


class When(IntEnum):
    """Whether a touch happens: always, or as the layer's reduce rule or the requests have it."""

    ALWAYS = 0
    LATE = 1  # the rule adds other lanes' outputs of an earlier layer
    READ = 2  # some lane reads these outputs
    NOW = 3  # the rule adds other lanes' outputs of this layer
    GUIDED = 4  # a constraint's mask is awaited
    LIMITED = 5  # top-k, top-p or min-p


@dataclass(frozen=True, slots=True)
class Touch:
    """One step of an operation towards other blocks, or a block barrier."""

    verb: Verb
    what: Exchange | None = None
    when: When = When.ALWAYS


_BARRIER = Touch(Verb.BARRIER)


def _await(what: Exchange, when: When = When.ALWAYS) -> Touch:
    return Touch(Verb.AWAIT, what, when)


def _publish(what: Exchange, when: When = When.ALWAYS) -> Touch:
    return Touch(Verb.PUBLISH, what, when)


def touches(
    op: Op,
    wide: bool,
    head: Head,
    devices: int = 1,
    squares: bool = True,
    joined: bool = True,
    gained: bool = False,
    heads: bool = False,
) -> tuple[Touch, ...]:
    """Return what an operation exchanges, in its order; the kernel states the same beside it.

    On several devices a choice takes two hops: a device's first block reads the candidates of its
    own device's blocks and posts the best of them, and all blocks read those of all devices.

    ``squares``: of the blocks' rows, are exchanged for norms; without them who normalises sums them
    for himself, and only a head of ``joined`` lanes, which does not read the stream, awaits them.
    ``gained``: so are those of what modules add to the stream, which is normed; ``heads``: those of
    queries and keys, which are normed over all heads.

    ATTEND takes its units one after the other; what is stated is the last of them, whose partial
    sums others await behind those of the first.
    """
    x = Exchange
    # A wide pass leaves activations in memory, for the lane.
    kept = (_publish(x.ACTIVATIONS),) if wide else ()
    told = (_BARRIER, _publish(x.SQUARES)) if squares or joined else ()
    match op:
        case Op.EMBED:
            return (_publish(x.STREAM), *told)
        case Op.NORMALISE if not squares:
            return (_await(x.STREAM), _BARRIER, *kept)
        case Op.NORMALISE:
            return (_await(x.SQUARES), _BARRIER, _await(x.STREAM), *kept)
        case Op.FETCH_STREAM:
            return (_await(x.STREAM), *kept)
        case Op.MULTIPLY if wide:
            sync = (_BARRIER, _publish(x.LANE), _await(x.LANE), _BARRIER)
            return (*sync, _await(x.ACTIVATIONS), _BARRIER)
        case Op.MULTIPLY:
            return (_BARRIER, _BARRIER)
        case Op.PUBLISH_QKV:
            return (_publish(x.QKV), *((_publish(x.HEAD_SQUARES),) if heads else ()))
        case Op.ATTEND:
            squared = (_await(x.HEAD_SQUARES), _BARRIER) if heads else ()
            return (*squared, _await(x.QKV), _BARRIER, _publish(x.PARTIAL), _BARRIER)
        case Op.MERGE:
            return (_await(x.PARTIAL), *kept)
        case Op.MERGE_OWN:
            return (_await(x.PARTIAL), _BARRIER, _publish(x.MERGED))
        case Op.FETCH_MERGED:
            return (_await(x.MERGED),)
        case Op.UPDATE:
            normed = (_BARRIER, _publish(x.GAINED), _await(x.GAINED), _BARRIER)
            return (
                _await(x.LANES, When.LATE),
                _publish(x.LANES, When.READ),
                _await(x.LANES, When.NOW),
                *(normed if gained else ()),
                _publish(x.STREAM),
                *told,
            )
        case Op.PUBLISH_HIDDEN:
            return kept or (_publish(x.HIDDEN),)
        case Op.FETCH_HIDDEN:
            return () if wide else (_await(x.HIDDEN),)
        case Op.JOIN:
            norms = () if head is Head.SUM else (_await(x.SQUARES), _BARRIER)
            return (*norms, _publish(x.JOINED), _await(x.JOINED), *kept)
        case Op.SETTLE_GUIDES:
            guided = _publish(x.GUIDE, When.GUIDED), _await(x.GUIDE, When.GUIDED)
            return (*guided, Touch(Verb.BARRIER, None, When.GUIDED))
        case Op.OFFER:
            return (_publish(x.LOGITS, When.LIMITED), _BARRIER, _publish(x.CANDIDATES))
        case Op.CHOOSE:
            hop = (_BARRIER, _publish(x.BEST), _BARRIER, _await(x.BEST)) if devices > 1 else ()
            return (
                _publish(x.CONTROL),
                _BARRIER,
                _await(x.CANDIDATES),
                *hop,
                _BARRIER,
                _await(x.CONTROL),
                _await(x.LOGITS, When.LIMITED),
                Touch(Verb.BARRIER, None, When.LIMITED),
                _publish(x.DECISION, When.LIMITED),
                _await(x.DECISION, When.LIMITED),
                _BARRIER,
            )
        case Op.NEXT_PASS:
            return (_BARRIER,)


@dataclass(frozen=True, slots=True)
class Rule:
    """How other lanes' outputs join a stream at the end of a phase."""

    delay: int  # 0: now, -1: never
    read: bool  # whether any lane ever reads these outputs


@dataclass(frozen=True, slots=True)
class Step:
    """What a block does between two notes of its trace: a phase, with what belongs to it."""

    phases: tuple[Phase, ...]  # GATHER is part of HEAD's step
    ops: tuple[Op, ...]
    event: int  # state of the stream at its beginning, counted within the pass
    rule: Rule | None = None  # of its UPDATE

    @property
    def kind(self) -> PhaseKind:
        """Whose name it goes by."""
        return self.phases[-1].kind

    @property
    def layer(self) -> int:
        """The layer, or -1."""
        return self.phases[-1].layer

    @property
    def name(self) -> str:
        """Kind and layer."""
        return self.phases[-1].name


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Copies of each buffer that takes turns; the others have one."""

    stream: int = 2  # by the event, with the squares
    choice: int = 2  # by the pass: candidates, the devices' best, control, decision
    activations: int = 2  # by the sync of the lane
    attention: int  # raw outputs, by the layer
    mlp: int
    layers: int = 1  # of what QKV and GATE_UP make, by the layer: ways of sharing rows out
    kept: int = 0  # for diagnosis: each event of so many passes has a copy of its own; 0: as above


_TURNS_BY_PASS = (Exchange.CANDIDATES, Exchange.BEST, Exchange.CONTROL, Exchange.DECISION)
_LAYERED = (
    Exchange.QKV, Exchange.HEAD_SQUARES, Exchange.PARTIAL, Exchange.MERGED, Exchange.HIDDEN,
)  # fmt: skip
_DEALT = (Exchange.QKV, Exchange.HIDDEN)  # whose writer may change from layer to layer
_NEVER_KEPT = (Exchange.LANE, Exchange.ACTIVATIONS)  # counted and unstamped: of a wide pass


@dataclass(frozen=True, slots=True)
class Program:
    """A pass of the kernel that is compiled for a plan."""

    plan: Plan
    wide: bool
    slots: Slots
    steps: tuple[Step, ...]
    devices: int = 1  # that the lanes are dealt out to, in their order
    posted: frozenset[Exchange] = frozenset()  # what blocks of other devices get, too
    local_squares: bool = False  # who normalises sums the squares for himself
    merge: Share | None = None  # who merges which pairs of attention's numbers; None: all do all

    def touches(self, op: Op) -> tuple[Touch, ...]:
        """Return what an operation exchanges."""
        config = self.plan.config
        joined = self.plan.shared_head and config.head is not Head.SUM
        squares = not self.local_squares
        after, heads = config.norm_after, config.qk_norm is QkNorm.ALL
        return touches(op, self.wide, config.head, self.devices, squares, joined, after, heads)

    @property
    def layer_steps(self) -> tuple[Step, ...]:
        """The steps of one layer, the same for all; ConfigError if they are not."""
        layers = range(self.plan.config.num_layers)
        found = [tuple(s for s in self.steps if s.layer == layer) for layer in layers]
        shapes = {tuple((s.kind, s.ops, s.event - 2 * s.layer) for s in steps) for steps in found}
        if len(shapes) != 1:
            raise ConfigError("cuda: expected the same phases in every layer")
        return found[0]

    def events(self, what: Exchange) -> int:
        """Return how often in a pass a buffer is written: copies, where each is to be kept."""
        layers = self.plan.config.num_layers
        if what in (Exchange.STREAM, Exchange.SQUARES):
            return 2 * layers + 1
        if what in (Exchange.LANES, Exchange.GAINED):
            return 2 * layers
        return layers if what in _LAYERED else 1

    def copies(self, what: Exchange) -> int:
        """Return the copies of a buffer."""
        slots = self.slots
        if slots.kept and what not in _NEVER_KEPT:
            return slots.kept * self.events(what)
        if what in (Exchange.STREAM, Exchange.SQUARES):
            return slots.stream
        if what in _TURNS_BY_PASS:
            return slots.choice
        if what in _DEALT:
            return slots.layers
        return slots.attention + slots.mlp if what is Exchange.LANES else 1

    def slot(self, what: Exchange, *, event: int, number: int, layer: int, module: int) -> int:
        """Return the copy of a buffer that a touch means, in pass ``number``."""
        if self.slots.kept and what not in _NEVER_KEPT:
            first = number % self.slots.kept * self.events(what)
            if what in (Exchange.STREAM, Exchange.SQUARES):
                return first + event
            if what in (Exchange.LANES, Exchange.GAINED):
                return first + 2 * layer + module
            return first + layer if what in _LAYERED else first
        if what in (Exchange.STREAM, Exchange.SQUARES):
            return event % self.slots.stream
        if what in _TURNS_BY_PASS:
            return number % self.slots.choice
        if what is Exchange.LANES:
            attention = self.slots.attention
            return layer % attention if module == 0 else attention + layer % self.slots.mlp
        return layer % self.slots.layers if what in _DEALT else 0


# What a phase's reads and writes of shared buffers become.
_READS = {
    Buffer.UNNORMED: Op.ATTEND,
    Buffer.ATTENTION: Op.MERGE,
    Buffer.HIDDEN: Op.FETCH_HIDDEN,
    Buffer.LOGITS: Op.CHOOSE,
}
_WRITES = {
    Buffer.UNNORMED: (Op.PUBLISH_QKV,),
    Buffer.FIRST_OUTPUT: (Op.UPDATE,),
    Buffer.HIDDEN: (Op.PUBLISH_HIDDEN,),
    Buffer.SECOND_OUTPUT: (Op.UPDATE,),
    Buffer.STREAM: (Op.JOIN,),
    Buffer.LOGITS: (Op.SETTLE_GUIDES, Op.OFFER),
}
_NORMED = (PhaseKind.QKV, PhaseKind.GATE_UP, PhaseKind.HEAD)


def share_layers(plan: Plan) -> int:
    """Return in how many ways layers share rows out, by turns: one, or ``PERIOD``."""
    one, other = (shares_of(plan, i) for i in (0, min(1, plan.config.num_layers - 1)))
    return 1 if one == other else PERIOD


def shares_of(plan: Plan, layer: int) -> dict[Role, Share]:
    """Return who has which rows of a layer's matrices."""
    phases = (phase for phase in plan.phases if phase.layer == layer)
    return {matrix.role: matrix.share for phase in phases for matrix in phase.matrices}


def rules_of(plan: Plan) -> dict[tuple[Buffer, int], Rule]:
    """Return, by module and layer, how outputs join the streams: what the plan's updates say."""
    updates = {(u.module, u.layer): u for phase in plan.phases for u in phase.updates}
    delays = {key: u.reduce.delay for key, u in updates.items()}
    read = {(module, layer - d) for (module, layer), d in delays.items() if d is not None}
    return {key: Rule(-1 if d is None else d, key in read) for key, d in delays.items()}


def lower(
    plan: Plan,
    wide: bool,
    slots: Slots,
    devices: int = 1,
    *,
    local_squares: bool = False,
    merge: Share | None = None,
) -> Program:
    """Return the program of a plan, in the plan's order."""
    rules = rules_of(plan)
    steps: list[Step] = []
    held: tuple[Phase, ...] = ()
    event = 0
    for phase in plan.phases:
        held = (*held, phase)
        if phase.kind is PhaseKind.GATHER:
            continue
        ops = tuple(op for part in held for op in _ops(part, plan, merge is not None))
        rule = next((rules.get((write.buffer, phase.layer)) for write in phase.writes), None)
        steps.append(Step(held, ops, event, rule))
        event += Op.UPDATE in ops
        held = ()
    posted = POSTED if devices > 1 else frozenset()
    return Program(plan, wide, slots, tuple(steps), devices, posted, local_squares, merge)


def _ops(phase: Phase, plan: Plan, merge_apart: bool) -> list[Op]:
    ops = [Op.EMBED] if phase.kind is PhaseKind.EMBED else []
    if phase.kind in _NORMED and not (phase.kind is PhaseKind.HEAD and plan.shared_head):
        normed = plan.config.norm_before or phase.kind is PhaseKind.HEAD
        ops.append(Op.NORMALISE if normed else Op.FETCH_STREAM)
    for access in phase.reads:
        if access.buffer is Buffer.ATTENTION and merge_apart:
            ops += [Op.MERGE_OWN, Op.FETCH_MERGED]
        elif access.buffer in _READS:
            ops.append(_READS[access.buffer])
    ops += [Op.MULTIPLY] if phase.matrices else []
    ops += [op for access in phase.writes for op in _WRITES.get(access.buffer, ())]
    return [*ops, Op.NEXT_PASS] if phase.kind is PhaseKind.CHOOSE else ops

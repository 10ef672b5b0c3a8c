"""Proving a plan sound, without running it.

This states the rules anew instead of calling what built the plan: two hands that share a mistake
would agree. It looks at every pair of accesses of a slot in two consecutive passes, which is slow
(a moment for a model of any size) and obvious.
"""

from collections.abc import Iterable, Iterator
from enum import Enum

from monolane.model import Kind, Role, find_format, lane_shape
from monolane.ops import Buffer
from monolane.plan._kinds import LAST, first_parts, kinds, parts_before, parts_of
from monolane.plan._phase import OUTPUTS, Access, Matrix, Phase, Update
from monolane.plan._plan import Plan, PlanError
from monolane.plan._split import Scope, Share

# Filled before the first pass: by the host, and by whatever came before in the sequence.
_GIVEN = (Buffer.TOKENS, Buffer.KEY_VALUE, Buffer.STATE)


def validate(plan: Plan) -> None:
    """Raise PlanError with every fault of the plan, if it has any."""
    if found := list(faults(plan)):
        raise PlanError("the plan is unsound:\n  " + "\n  ".join(found))


def faults(plan: Plan) -> Iterator[str]:
    """Yield what is wrong with a plan, each with the phase in which it shows."""
    wrong_order = list(_order(plan))
    yield from wrong_order
    if wrong_order:  # what follows would only repeat it
        return
    for phase in plan.phases:
        for fault in (*_weights(plan, phase), *_units(plan, phase), *_touches(plan, phase)):
            yield f"{phase.name}: {fault}"
    yield from _updates(plan)
    yield from _waits(plan)
    yield from _data(plan)
    yield from _hazards(plan)


def _order(plan: Plan) -> Iterator[str]:
    config = plan.config
    expected = [(kind, -1) for part in first_parts() for kind in part.order(plan, -1)]
    for i in range(config.num_layers):
        for place, module in enumerate(config.modules[i]):
            parts = (*parts_before(place), *parts_of(module.operation))
            expected += [(kind, i) for part in parts for kind in part.order(plan, i)]
    expected += [(kind, -1) for part in LAST for kind in part.order(plan, -1)]
    found = [(phase.kind, phase.layer) for phase in plan.phases]
    if found != expected:
        at = next(
            (i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]),
            None,
        )
        where = f"they differ from phase {at} on" if at is not None else "the count differs"
        yield f"expected {len(expected)} phases, got {len(found)}: {where}"
    for i, phase in enumerate(plan.phases):
        if phase.index != i:
            yield f"{phase.name}: expected index {i}, got {phase.index}"


def _weights(plan: Plan, phase: Phase) -> Iterator[str]:
    expected = kinds()[phase.kind].roles(plan.config, phase.layer)
    found = tuple(matrix.role for matrix in phase.matrices)
    if found != expected:
        yield f"expected the weights {_names(expected)}, got {_names(found)}"
        return
    layer = None if phase.layer < 0 else phase.layer
    for matrix in phase.matrices:
        yield from (f"{matrix.role}: {fault}" for fault in _matrix(plan, matrix, layer))
    yield from kinds()[phase.kind].faults(plan, phase)


def _matrix(plan: Plan, matrix: Matrix, layer: int | None) -> Iterator[str]:
    shape = lane_shape(plan.config, matrix.role, layer=layer)
    found = (matrix.lanes, matrix.rows, matrix.columns)
    if found != shape:
        yield f"expected shape {list(shape)}, got {list(found)}"
    usual = plan.config.dtype if matrix.role.kind is Kind.KEPT else plan.dtype
    stored = find_format(dict(plan.formats).get((matrix.role, layer), usual))
    mixture = plan.config.experts
    each = 1 if mixture is None or not matrix.role.startswith("expert") else mixture.count
    if matrix.experts != each:
        yield f"expected {each} experts, got {matrix.experts}"
    if matrix.row_bytes != stored.row_bytes(shape[2]):
        yield f"expected {stored.row_bytes(shape[2])} bytes a row, got {matrix.row_bytes}"
    once = matrix.role is Role.HEAD and plan.shared_head
    lanes = 1 if once else shape[0] // plan.groups.count
    yield from _share(plan, matrix.share, lanes * shape[1], Scope.ALL if once else Scope.GROUP)


def _share(plan: Plan, share: Share, total: int, scope: Scope) -> Iterator[str]:
    """Check that each row is streamed by exactly one worker."""
    workers = plan.groups.workers if scope is Scope.ALL else plan.groups.workers_each
    if share.scope is not scope or len(share.bounds) != workers + 1:
        yield (
            f"expected shares of {workers} workers ({scope.name}), got {len(share.bounds) - 1} "
            f"({share.scope.name})"
        )
        return
    done = 0
    for worker in range(workers):
        begin, end = share.of(worker)
        if begin != done or end < begin:
            yield f"rows {begin}..{end} of worker {worker} do not follow upon row {done}"
        done = max(done, end)
    if done != total:
        yield f"expected {total} rows to be shared out, got {done}"


def _units(plan: Plan, phase: Phase) -> Iterator[str]:
    count = kinds()[phase.kind].units
    if (phase.units is None) != (count is None):
        with_units = (name for name, kind in kinds().items() if kind.units is not None)
        yield f"expected units in {_names(with_units)} only"
    elif phase.units is not None and count is not None:
        yield from _share(plan, phase.units, count(plan, phase.layer), Scope.GROUP)


def _touches(plan: Plan, phase: Phase) -> Iterator[str]:
    """Check that a phase declares what its kind cannot do without."""
    touches = kinds()[phase.kind].touches(plan, phase.layer)
    reads, writes = touches.reads, touches.writes
    for update in phase.updates:
        reads += (update.module,) * len(_update_reads(update))
    for verb, expected, accesses in (("read", reads, phase.reads), ("write", writes, phase.writes)):
        found = tuple(access.buffer for access in accesses)
        if sorted(found) != sorted(expected):
            yield f"expected to {verb} {_names(expected)}, got {_names(found)}"
    for access in (*phase.reads, *phase.writes):
        if access.lanes is not _lanes(plan, phase, access):
            yield f"{access}: the wrong lanes"
        if not 0 <= access.slot < _slots(plan, access.buffer):
            yield f"{access}: there are {_slots(plan, access.buffer)} slots"
    for write in phase.writes:
        if write.layer != phase.layer:
            yield f"{write}: expected to write data of layer {phase.layer}"


def _lanes(plan: Plan, phase: Phase, access: Access) -> Scope:
    """Return whose part of a buffer a phase touches."""
    if access.buffer in OUTPUTS:
        update = next((x for x in phase.updates if x.module is access.buffer), None)
        if update is None or update.reduce.delay is None or access in phase.writes:
            return Scope.GROUP
        return Scope.ALL if access.layer == update.layer - update.reduce.delay else Scope.GROUP
    wide = kinds()[phase.kind].touches(plan, phase.layer).wide
    return Scope.ALL if access.buffer in wide else Scope.GROUP


def _slots(plan: Plan, buffer: Buffer) -> int:
    slots = {
        Buffer.KEY_VALUE: plan.config.num_layers,
        Buffer.STATE: plan.config.num_layers,
        **dict(zip(OUTPUTS, plan.output_slots, strict=True)),
    }
    return slots.get(buffer, 1)


def _updates(plan: Plan) -> Iterator[str]:
    """Check that each module's outputs join the residual streams once, in order, by their rule."""
    for phase in plan.phases:
        found = tuple((x.module, x.layer) for x in phase.updates)
        if found != kinds()[phase.kind].updates(plan, phase.layer):
            yield f"{phase.name}: the wrong updates of the residual streams: {found}"
            continue
        for update in phase.updates:
            rule = plan.config.modules[update.layer][OUTPUTS.index(update.module)].reduce
            if update.reduce != rule:
                yield f"{phase.name}: expected to reduce {rule}, got {update.reduce}"
            elif missing := _update_reads(update) - set(phase.reads):
                yield f"{phase.name}: its update reads {missing.pop()}, but it does not say so"


def _update_reads(update: Update) -> set[Access]:
    delay, module = update.reduce.delay, update.module
    own = Access(module, update.own_slot, update.layer, Scope.GROUP)
    if delay is None:
        return {own}
    others = Access(module, update.other_slot, update.layer - delay, Scope.ALL)
    return {others} if delay == 0 and update.own_slot == update.other_slot else {own, others}


def _waits(plan: Plan) -> Iterator[str]:
    """Check that waits point backwards, hence that no worker can wait for ever.

    The worker that has finished the fewest phases waits for counts that all others have reached.
    """
    sizes = {Scope.GROUP: plan.groups.workers_each, Scope.ALL: plan.groups.workers}
    for phase in plan.phases:
        for wait in phase.waits:
            if not -len(plan.phases) < wait.count <= phase.index:
                yield f"{phase.name}: waits for {wait.count} phases, which is not behind it"
            if sizes[wait.scope] == 1:
                yield f"{phase.name}: waits in {wait.scope.name}, where there is nobody else"
        if len({wait.scope for wait in phase.waits}) < len(phase.waits):
            yield f"{phase.name}: waits twice in one scope"


def _data(plan: Plan) -> Iterator[str]:
    """Check, in program order, that each read finds the data of the layer that it names."""
    held: dict[tuple[Buffer, int], int] = {}
    for phase in plan.phases:
        for read in phase.reads:
            given = read.buffer in _GIVEN
            layer = held.get((read.buffer, read.slot), read.layer if given else None)
            if layer is None:
                yield f"{phase.name}: reads {read}, which no phase before it writes"
            elif layer != read.layer:
                yield f"{phase.name}: reads {read}, but the slot holds layer {layer}"
        for write in phase.writes:
            held[write.buffer, write.slot] = write.layer


def _hazards(plan: Plan) -> Iterator[str]:
    """Check that conflicting accesses by different workers are ordered by waits."""
    count = len(plan.phases)
    uses: dict[tuple[Buffer, int], list[tuple[int, bool, Access]]] = {}
    for n in (-1, 0):  # the previous pass and this one
        for phase in plan.phases:
            for write, accesses in ((False, phase.reads), (True, phase.writes)):
                for access in accesses:
                    key = access.buffer, access.slot
                    uses.setdefault(key, []).append((phase.index + n * count, write, access))
    known = _knowledge(plan)
    for listed in uses.values():
        for late, late_write, later in listed:
            for early, early_write, earlier in listed:
                if late < 0 or early >= late or not (late_write or early_write):
                    continue
                scope = Scope.ALL if Scope.ALL in (later.lanes, earlier.lanes) else Scope.GROUP
                if known[scope][late] <= early:
                    yield _race(plan, (late, late_write, later), (early, early_write), scope)


def _knowledge(plan: Plan) -> dict[Scope, list[int]]:
    """Return, per scope and phase, how many phases its workers are known to have finished.

    What a worker was once told stays true, and nobody knows more: all run the same phases, so the
    others' knowledge when they finished a phase is no more than its own now.
    """
    groups, count = plan.groups, len(plan.phases)
    group, everybody = -2 * count, -2 * count
    known: dict[Scope, list[int]] = {Scope.GROUP: [], Scope.ALL: []}
    for n in (-1, 0):
        for phase in plan.phases:
            for wait in phase.waits:
                if wait.scope is Scope.ALL:
                    everybody = max(everybody, wait.count + n * count)
                group = max(group, wait.count + n * count)
            own = phase.index + n * count
            known[Scope.GROUP].append(own if groups.workers_each == 1 else group)
            alone = groups.workers == 1
            known[Scope.ALL].append(own if alone else group if groups.count == 1 else everybody)
    return {scope: counts[count:] for scope, counts in known.items()}


def _race(plan: Plan, late: tuple[int, bool, Access], early: tuple[int, bool], scope: Scope) -> str:
    verbs = {True: "written", False: "read"}
    index, write, access = late
    before = plan.phases[early[0]].name + (" of the previous pass" if early[0] < 0 else "")
    who = "every worker" if scope is Scope.ALL else "every worker of the group"
    return (
        f"{plan.phases[index].name}: {access} is {verbs[write]} without a wait for {who} to have "
        f"finished {before}, where it is {verbs[early[1]]}"
    )


def _names(values: Iterable[Enum]) -> str:
    return ", ".join(value.name for value in values) or "nothing"

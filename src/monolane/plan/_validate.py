"""Proving a plan sound, without running it.

This states the rules anew instead of calling what built the plan: two hands that share a mistake
would agree. It looks at every pair of accesses of a slot in two consecutive passes, which is slow
(a moment for a model of any size) and obvious.
"""

from collections.abc import Iterable, Iterator
from enum import Enum

from monolane.model import QkNorm, Role, find_format, lane_shape
from monolane.plan._device import Choice
from monolane.plan._phase import Access, Buffer, Matrix, Phase, PhaseKind, Update
from monolane.plan._plan import Plan
from monolane.plan._split import Scope, Share

_LAYER = (PhaseKind.QKV, PhaseKind.ATTEND, PhaseKind.OUT, PhaseKind.GATE_UP, PhaseKind.DOWN)
_LATENT = (
    PhaseKind.LATENT,
    PhaseKind.EXPAND,
    PhaseKind.ATTEND,
    PhaseKind.VALUES,
    PhaseKind.OUT,
)
_MIXTURE = (PhaseKind.ROUTE, PhaseKind.EXPERT_GATE_UP, PhaseKind.EXPERT_DOWN)
_ROLES = {
    PhaseKind.QKV: (Role.Q, Role.K, Role.V),
    PhaseKind.OUT: (Role.O,),
    PhaseKind.GATE_UP: (Role.GATE, Role.UP),
    PhaseKind.DOWN: (Role.DOWN,),
    PhaseKind.ROUTE: (Role.ROUTER,),
    PhaseKind.EXPERT_GATE_UP: (Role.EXPERT_GATE, Role.EXPERT_UP),
    PhaseKind.EXPERT_DOWN: (Role.EXPERT_DOWN,),
    PhaseKind.HEAD: (Role.HEAD,),
    PhaseKind.LATENT: (Role.Q_DOWN, Role.KV_DOWN),
    PhaseKind.EXPAND: (Role.Q, Role.K_UP),
    PhaseKind.VALUES: (Role.V_UP,),
}
_SHARED = {
    PhaseKind.EXPERT_GATE_UP: (Role.SHARED_GATE, Role.SHARED_UP),
    PhaseKind.EXPERT_DOWN: (Role.SHARED_DOWN,),
}
# What a phase reads, besides what its update does, and what it writes.
_TOUCHES: dict[PhaseKind, tuple[tuple[Buffer, ...], tuple[Buffer, ...]]] = {
    PhaseKind.EMBED: ((), ()),
    PhaseKind.QKV: ((), (Buffer.QUERY, Buffer.KEY_VALUE)),
    PhaseKind.NORM_QK: ((Buffer.UNNORMED,), (Buffer.QUERY, Buffer.KEY_VALUE)),
    PhaseKind.ATTEND: ((Buffer.QUERY, Buffer.KEY_VALUE), (Buffer.ATTENTION,)),
    PhaseKind.OUT: ((Buffer.ATTENTION,), (Buffer.ATTENTION_OUTPUT,)),
    PhaseKind.GATE_UP: ((), (Buffer.HIDDEN,)),
    PhaseKind.DOWN: ((Buffer.HIDDEN,), (Buffer.MLP_OUTPUT,)),
    PhaseKind.ROUTE: ((), (Buffer.ROUTED,)),
    PhaseKind.EXPERT_GATE_UP: ((Buffer.ROUTED,), (Buffer.HIDDEN,)),
    PhaseKind.EXPERT_DOWN: ((Buffer.HIDDEN,), (Buffer.MLP_OUTPUT,)),
    PhaseKind.GATHER: ((), (Buffer.STREAM,)),
    PhaseKind.HEAD: ((), (Buffer.LOGITS,)),
    PhaseKind.CHOOSE: ((Buffer.LOGITS,), ()),
    PhaseKind.LATENT: ((), (Buffer.LATENTS,)),
    PhaseKind.EXPAND: ((Buffer.LATENTS,), (Buffer.QUERY, Buffer.KEY_VALUE)),
    PhaseKind.VALUES: ((Buffer.ATTENTION,), (Buffer.HEADS,)),
}
# Filled before the first pass: by the host, and by whatever came before in the sequence.
_GIVEN = (Buffer.TOKENS, Buffer.KEY_VALUE)


class PlanError(AssertionError):
    """A plan breaks one of its own rules. Only ``build`` makes plans, so this is a bug of ours."""


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
    late = (PhaseKind.NORM_QK,) if plan.config.qk_norm is QkNorm.ALL else ()
    expected = [(PhaseKind.EMBED, -1)]
    outer = (*_LAYER[:1], *late, *_LAYER[1:3]) if plan.config.latent is None else _LATENT
    for i, rules in enumerate(plan.config.layers):
        kinds = (*outer, *(_MIXTURE if rules.experts else _LAYER[3:]))
        expected += [(kind, i) for kind in kinds]
    expected += [(PhaseKind.GATHER, -1)] if plan.shared_head else []
    expected += [(PhaseKind.HEAD, -1), (PhaseKind.CHOOSE, -1)]
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
    expected = _roles(plan, phase.kind)
    found = tuple(matrix.role for matrix in phase.matrices)
    if found != expected:
        yield f"expected the weights {_names(expected)}, got {_names(found)}"
        return
    layer = None if phase.layer < 0 else phase.layer
    for matrix in phase.matrices:
        yield from (f"{matrix.role}: {fault}" for fault in _matrix(plan, matrix, layer))
    if phase.kind in (PhaseKind.GATE_UP, PhaseKind.EXPERT_GATE_UP):
        for gate, up in zip(phase.matrices[::2], phase.matrices[1::2], strict=True):
            if gate.share != up.share:
                yield (
                    "expected gate and up to be shared out alike: each row of up is multiplied by "
                    "gate's"
                )
    if phase.kind is PhaseKind.EXPERT_DOWN and len({x.share for x in phase.matrices}) > 1:
        yield "expected all that is added up of a mixture to be shared out alike"
    if phase.kind is PhaseKind.EXPAND and plan.config.latent is not None:
        sizes = (plan.config.latent.head, plan.config.latent.rank)
        heads = [
            [divmod(bound, size) for bound in matrix.share.bounds]
            for matrix, size in zip(phase.matrices, sizes, strict=True)
        ]
        if heads[0] != heads[1] or any(rest for each in heads for _, rest in each):
            yield "expected queries and their second product to be shared out by the same heads"


def _roles(plan: Plan, kind: PhaseKind) -> tuple[Role, ...]:
    """Return the weights that a phase reads."""
    latent, mixture = plan.config.latent, plan.config.experts
    roles = _ROLES.get(kind, ())
    if latent is not None and latent.query_rank is None:
        roles = tuple(role for role in roles if role is not Role.Q_DOWN)
    return roles + (_SHARED.get(kind, ()) if mixture is not None and mixture.shared else ())


def _matrix(plan: Plan, matrix: Matrix, layer: int | None) -> Iterator[str]:
    shape = lane_shape(plan.config, matrix.role)
    found = (matrix.lanes, matrix.rows, matrix.columns)
    if found != shape:
        yield f"expected shape {list(shape)}, got {list(found)}"
    usual = plan.config.dtype if matrix.role is Role.ROUTER else plan.dtype
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
    late = plan.config.qk_norm is QkNorm.ALL or plan.config.latent is not None
    if matrix.role in (Role.Q, Role.K) and not late:
        interleaved, bounds = plan.config.rotary.style == "interleaved", matrix.share.bounds
        pair = 2 if interleaved else plan.config.head_dim
        if cut := [bound for bound in bounds if bound % pair]:
            yield f"a rotary pair is cut at row {cut[0]}"
        heads = plan.config.head_dim if plan.config.qk_norm is QkNorm.HEAD else 1
        if cut := [bound for bound in bounds if bound % heads]:
            yield f"a head that is normed is cut at row {cut[0]}"


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
    lanes, config = plan.groups.lanes_each, plan.config
    totals = {
        PhaseKind.ATTEND: lanes * config.cached_heads // config.num_lanes * plan.splits,
        PhaseKind.GATHER: lanes * config.hidden_size,
        PhaseKind.NORM_QK: (config.num_heads + config.num_kv_heads) // plan.groups.count,
    }
    if (phase.units is not None) != (phase.kind in totals):
        yield f"expected units in {_names(totals)} only"
    elif phase.units is not None:
        yield from _share(plan, phase.units, totals[phase.kind], Scope.GROUP)


def _touches(plan: Plan, phase: Phase) -> Iterator[str]:
    """Check that a phase declares what its kind cannot do without."""
    reads, writes = _TOUCHES[phase.kind]
    if phase.kind is PhaseKind.HEAD and plan.shared_head:
        reads = (Buffer.STREAM,)
    if phase.kind is PhaseKind.OUT and plan.config.latent is not None:
        reads = (Buffer.HEADS,)
    if phase.kind is PhaseKind.QKV and plan.config.qk_norm is QkNorm.ALL:
        writes = (Buffer.UNNORMED, Buffer.KEY_VALUE)  # values alone; keys follow when normed
    if plan.device.choice is Choice.LEADER:
        reads += (Buffer.TOKENS,) if phase.kind is PhaseKind.EMBED else ()
        writes += (Buffer.TOKENS,) if phase.kind is PhaseKind.CHOOSE else ()
    if phase.update is not None:
        reads += (phase.update.module,) * len(_update_reads(phase.update))
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
    if access.buffer in (Buffer.ATTENTION_OUTPUT, Buffer.MLP_OUTPUT):
        update = phase.update
        if update is None or update.reduce.delay is None or access in phase.writes:
            return Scope.GROUP
        return Scope.ALL if access.layer == update.layer - update.reduce.delay else Scope.GROUP
    if access.buffer is Buffer.LOGITS and phase.kind is PhaseKind.HEAD:
        return Scope.ALL if plan.shared_head else Scope.GROUP
    if access.buffer is Buffer.STREAM and phase.kind is PhaseKind.GATHER:
        return Scope.GROUP
    if access.buffer is Buffer.UNNORMED:
        return Scope.ALL if phase.kind is PhaseKind.NORM_QK else Scope.GROUP
    wide = (Buffer.TOKENS, Buffer.STREAM, Buffer.LOGITS)
    return Scope.ALL if access.buffer in wide else Scope.GROUP


def _slots(plan: Plan, buffer: Buffer) -> int:
    slots = {
        Buffer.KEY_VALUE: plan.config.num_layers,
        Buffer.ATTENTION_OUTPUT: plan.attention_slots,
        Buffer.MLP_OUTPUT: plan.mlp_slots,
    }
    return slots.get(buffer, 1)


def _updates(plan: Plan) -> Iterator[str]:
    """Check that each module's outputs join the residual streams once, in order, by their rule."""
    layers = plan.config.layers
    expected: dict[int, tuple[Buffer, int]] = {}
    for phase in plan.phases:
        last = phase.kind is (PhaseKind.GATHER if plan.shared_head else PhaseKind.HEAD)
        if phase.kind in (PhaseKind.GATE_UP, PhaseKind.ROUTE):
            expected[phase.index] = Buffer.ATTENTION_OUTPUT, phase.layer
        elif last or (phase.kind in (PhaseKind.QKV, PhaseKind.LATENT) and phase.layer > 0):
            expected[phase.index] = Buffer.MLP_OUTPUT, (len(layers) if last else phase.layer) - 1
    for phase in plan.phases:
        update = phase.update
        found = None if update is None else (update.module, update.layer)
        if found != expected.get(phase.index):
            yield f"{phase.name}: the wrong update of the residual streams: {update}"
        elif update is not None:
            rules = layers[update.layer]
            attention = update.module is Buffer.ATTENTION_OUTPUT
            rule = rules.attention_reduce if attention else rules.mlp_reduce
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

"""What the phases of a plan are built with: slots, shares, updates, formats of matrices."""

from collections.abc import Mapping
from itertools import pairwise

from monolane.errors import ConfigError
from monolane.model import (
    ALTUP_STEPS,
    EXPERT_ROLES,
    Head,
    Kind,
    ModelConfig,
    Reduce,
    Role,
    find_format,
    lane_shape,
)
from monolane.ops import Buffer, Room
from monolane.plan._device import Choice, DeviceDescription
from monolane.plan._groups import Groups
from monolane.plan._phase import OUTPUTS, Access, Matrix, Phase, PhaseKind, Update
from monolane.plan._plan import Place
from monolane.plan._split import PERIOD, Scope, Share, choose_align, level, split

_JOINS = (Role.O, Role.DOWN)  # whose outputs join the residual streams


class Builder:
    """What the phases of one plan have in common."""

    def __init__(
        self,
        config: ModelConfig,
        device: DeviceDescription,
        dtype: str,
        ring_slots: int | None,
        formats: Mapping[Place, str],
        keys: str | None,
        levelled: bool = False,
    ) -> None:
        self.config = config
        self.device = device
        self.format = find_format(dtype)
        self.keys = self.format.key_format if keys is None else find_format(keys)
        for attention in config.attentions.values():
            if self.keys.coded and attention.cached_width % self.keys.group:
                raise ConfigError(
                    f"cache: expected heads whose width is a multiple of {self.keys.group}, which "
                    f"share a scale, got {attention.cached_width}; use bfloat16 for keys and values"
                )
        self.formats = {place: find_format(name) for place, name in formats.items()}
        self.groups = groups = Groups(config.num_lanes, device.total_workers)
        # Of no pass and no sequence yet.
        self.room = Room(
            groups.lanes, config.hidden_size, 0, 0, groups.workers_each, groups.lanes_each,
            device.tile_rows > 0,
        )  # fmt: skip
        self.slots = {
            output: _ring([x[place].reduce for x in config.modules if place < len(x)], ring_slots)
            for place, output in enumerate(OUTPUTS)
        }
        self.shared_head = config.head is not Head.VOCAB_PARALLEL and config.num_lanes > 1
        self.shares: dict[Place, Share] = {}  # of each matrix, before phases are built
        # Where shares are whole tiles, dealt so that all workers stream as much: the bytes of each
        # in PERIOD layers, and what was dealt.
        self._loads: list[int] = []
        self._dealt: dict[tuple[Role | None, int], tuple[int, ...]] = {}
        if levelled:
            bounds = split(config.hidden_size, groups.workers_each, device.tile_rows)
            row_bytes = sum(self._row_bytes(role, 0) for role in _JOINS)
            self._dealt[None, 0] = bounds
            self._loads = [PERIOD * row_bytes * (end - begin) for begin, end in pairwise(bounds)]

    def phase(
        self,
        kind: PhaseKind,
        layer: int = -1,
        *roles: Role,
        units: Share | None = None,
        updates: tuple[Update, ...] = (),
        reads: tuple[Access, ...] = (),
        writes: tuple[Access, ...] = (),
    ) -> Phase:
        """Return a phase, to be numbered later, with the reads of its updates before its own."""
        return Phase(
            index=0,
            kind=kind,
            layer=layer,
            matrices=self._matrices(layer, *roles),
            units=units,
            updates=updates,
            reads=(*(x for update in updates for x in self._update_reads(update)), *reads),
            writes=writes,
        )

    def led_tokens(self) -> tuple[Access, ...]:
        """Return the access to what a leader lays out, if there is one."""
        return (shared(Buffer.TOKENS),) if self.device.choice is Choice.LEADER else ()

    def output(self, place: int, layer: int) -> Access:
        """Return the write of a layer's module, by its place there, into its ring."""
        return own(OUTPUTS[place], layer, layer % self.slots[OUTPUTS[place]])

    def update(self, module: Buffer, layer: int) -> Update:
        """Return how the outputs of a layer's module join the residual streams."""
        reduce = self.config.modules[layer][OUTPUTS.index(module)].reduce
        slots = self.slots[module]
        other = (layer - (reduce.delay or 0)) % slots
        return Update(module, layer, reduce, layer % slots, other)

    def updates_before(self, layer: int, place: int) -> tuple[Update, ...]:
        """Return how the modules before join the streams, for the one that reads them next.

        None where a step of AltUp is between them: then it is that which they join in.
        """
        if self.config.altup is not None and place in ALTUP_STEPS:
            return ()
        if place == 0:
            return self.last_updates(layer - 1) if layer > 0 else ()
        return () if self.config.modules[layer][place].beside else self.updates_of(layer, place - 1)

    def last_updates(self, layer: int) -> tuple[Update, ...]:
        """Return how a layer's last modules join the streams."""
        return self.updates_of(layer, len(self.config.modules[layer]) - 1)

    def updates_of(self, layer: int, place: int) -> tuple[Update, ...]:
        """Return how a module, and those beside which it reads, join the streams."""
        beside = self.config.modules[layer][place].beside
        before = self.updates_of(layer, place - 1) if beside else ()
        return (*before, self.update(OUTPUTS[place], layer))

    def share(self, role: Role, layer: int = -1, beside: int = 1) -> Share:
        """Share out the rows of a matrix, or those of so many that are shared out alike."""
        return self._share(role, layer, 1, 0, beside)[0]

    def share_in_turn(self, layer: int, least: Mapping[Role, int]) -> dict[Role, Share]:
        """Share out matrices; what is left over goes to other workers from one to the next.

        ``least`` has the rows of each that must stay together.
        """
        first, shares = 0, {}
        for role, minimum in least.items():
            shares[role], first = self._share(role, layer, minimum, first)
        return shares

    def _share(
        self, role: Role, layer: int, minimum: int, first: int, beside: int = 1
    ) -> tuple[Share, int]:
        """Return a share, and the worker at which the next one's left-over blocks begin."""
        lanes, rows, _ = lane_shape(self.config, role, layer=layer)
        once = role is Role.HEAD and self.shared_head
        scope = Scope.ALL if once else Scope.GROUP
        workers = self.groups.workers if once else self.groups.workers_each
        total = rows if once else rows * lanes // self.groups.count
        if self._loads:
            return Share(scope, self._levelled(role, layer, total, beside)), 0
        align = choose_align(total, workers, minimum)
        bounds = split(total, workers, align, first)
        return Share(scope, bounds), (first + -(-total // align)) % workers

    def _levelled(self, role: Role, layer: int, total: int, beside: int) -> tuple[int, ...]:
        """Return bounds of whole tiles: even if that comes out, else more to whom has less so far.

        Layers take turns with ``PERIOD`` ways, so that what a worker writes in one layer, the same
        worker writes again. Who owns a row of the residual stream owns it in all of them.
        """
        place = (None, 0) if role in _JOINS else (role, layer % PERIOD)
        if place not in self._dealt:
            workers, unit = len(self._loads), self.device.tile_rows // beside
            units = -(-total // unit)
            if role is Role.HEAD or units % workers == 0:
                self._dealt[place] = split(total, workers, unit)
            else:
                load = beside * unit * self._row_bytes(role, layer)
                self._dealt[place] = level(self._loads, units, load, unit, total)
                ends = pairwise(self._dealt[place])
                counts = [-(-(end - begin) // unit) for begin, end in ends]
                self._loads = [x + n * load for x, n in zip(self._loads, counts, strict=True)]
        return self._dealt[place]

    def _row_bytes(self, role: Role, layer: int) -> int:
        return self.format.row_bytes(lane_shape(self.config, role, layer=layer)[2])

    @staticmethod
    def _update_reads(update: Update) -> tuple[Access, ...]:
        """Return what an update reads: the own lanes' outputs, and the others' if the rule asks."""
        delay, module = update.reduce.delay, update.module
        own = Access(module, update.own_slot, update.layer, Scope.GROUP)
        if delay is None:
            return (own,)
        others = Access(module, update.other_slot, update.layer - delay, Scope.ALL)
        return (own, others) if delay else (others,)

    def _matrices(self, layer: int, *roles: Role) -> tuple[Matrix, ...]:
        place = None if layer < 0 else layer
        found = []
        for role in roles:
            lanes, rows, columns = lane_shape(self.config, role, layer=layer)
            stored = self.formats.get((role, place), self.format)
            if role.kind is Kind.KEPT and (role, place) not in self.formats:
                stored = find_format(self.config.dtype)  # whatever matrices are converted to
            row_bytes = stored.row_bytes(columns)
            experts = 1
            if role in EXPERT_ROLES and self.config.experts is not None:
                experts = self.config.experts.count
            found.append(
                Matrix(role, lanes, rows, columns, row_bytes, self.shares[role, place], experts)
            )
        return tuple(found)


def _ring(rules: list[Reduce], wish: int | None) -> int:
    """Return the number of ring slots for the outputs of a module with these rules, by layer."""
    if not rules:
        return 0
    longest = max(rule.delay or 0 for rule in rules)
    # At 2 * delay + 1 slots, a lane that writes has already waited, for the data it needed itself,
    # for phases that come after the last read of the slot: see docs/plan.md.
    slots = 2 * longest + 1 if wish is None else wish
    if type(slots) is not int or slots < min(longest + 1, len(rules)):
        raise ConfigError(
            f"ring_slots: expected at least {longest + 1}, a delay of {longest} layers and the "
            f"layer itself, got {wish!r}"
        )
    return min(slots, len(rules))


def own(buffer: Buffer, layer: int, slot: int = 0) -> Access:
    """Return the access to what the own lanes have of a layer."""
    return Access(buffer, slot, layer, Scope.GROUP)


def shared(buffer: Buffer) -> Access:
    """Return the access to what all lanes have of no layer."""
    return Access(buffer, 0, -1, Scope.ALL)

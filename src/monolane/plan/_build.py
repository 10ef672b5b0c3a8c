"""From a model config and a device description to the plan."""

from collections.abc import Mapping
from dataclasses import replace

from monolane.errors import ConfigError
from monolane.model import (
    EXPERT_ROLES,
    Head,
    ModelConfig,
    QkNorm,
    Reduce,
    Role,
    find_format,
    lane_shape,
)
from monolane.plan._device import Choice, DeviceDescription
from monolane.plan._groups import Groups
from monolane.plan._phase import Access, Buffer, Matrix, Phase, PhaseKind, Update
from monolane.plan._plan import MAX_WIDTH, Place, Plan
from monolane.plan._split import Scope, Share, choose_align, split
from monolane.plan._waits import with_waits


def build(
    config: ModelConfig,
    device: DeviceDescription,
    dtype: str,
    *,
    max_width: int = MAX_WIDTH,
    context: int | None = None,
    ring_slots: int | None = None,
    keys: str | None = None,
    formats: Mapping[Place, str] | None = None,
) -> Plan:
    """Return the plan of a model on a device; ConfigError says which wish cannot be met.

    context      tokens that a sequence may hold; None: as many as the model was trained on
    ring_slots   slots for the module outputs that lanes exchange, at least delay + 1; by default
                 2 * delay + 1, from which on reusing a slot needs no wait of its own
    keys         format of cached keys and values; None: as goes with the weights'
    formats      those of matrices that are not stored in ``dtype``, by role and layer
    """
    if type(max_width) is not int or not 1 <= max_width <= MAX_WIDTH:
        raise ConfigError(f"max_width: expected 1 to {MAX_WIDTH}, got {max_width!r}")
    length = config.max_positions if context is None else context
    if type(length) is not int or not 1 <= length <= config.max_positions:
        raise ConfigError(
            f"context: expected None or 1 to {config.max_positions} tokens, on which the model "
            f"was trained, got {context!r}"
        )
    builder = _Builder(config, device, dtype, ring_slots, formats or {}, keys)
    return builder.plan(max_width, length)


class _Builder:
    """What the phases of one plan have in common."""

    def __init__(
        self,
        config: ModelConfig,
        device: DeviceDescription,
        dtype: str,
        ring_slots: int | None,
        formats: Mapping[Place, str],
        keys: str | None,
    ) -> None:
        self.config = config
        self.device = device
        self.format = find_format(dtype)
        self.keys = self.format.key_format if keys is None else find_format(keys)
        if self.keys.coded and config.cached_width % self.keys.group:
            raise ConfigError(
                f"cache: expected heads whose width is a multiple of {self.keys.group}, which "
                f"share a scale, got {config.cached_width}; use bfloat16 for keys and values"
            )
        self.formats = {place: find_format(name) for place, name in formats.items()}
        self.groups = Groups(config.num_lanes, device.total_workers)
        self.slots = {
            Buffer.ATTENTION_OUTPUT: _ring([x.attention_reduce for x in config.layers], ring_slots),
            Buffer.MLP_OUTPUT: _ring([x.mlp_reduce for x in config.layers], ring_slots),
        }
        units = self.groups.lanes_each * (config.cached_heads // config.num_lanes)
        self.splits = -(-self.groups.workers_each // units)
        self.shared_head = config.head is not Head.VOCAB_PARALLEL and config.num_lanes > 1
        self.shares = self._shares()

    def plan(self, max_width: int, context: int) -> Plan:
        phases = [
            self._embed(),
            *(phase for layer in range(self.config.num_layers) for phase in self._layer(layer)),
            *([self._gather()] if self.shared_head else []),
            self._head(),
            self._choose(),
        ]
        numbered = [replace(phase, index=i) for i, phase in enumerate(phases)]
        return Plan(
            config=self.config,
            device=self.device,
            dtype=self.format.name,
            max_width=max_width,
            context=context,
            attention_slots=self.slots[Buffer.ATTENTION_OUTPUT],
            mlp_slots=self.slots[Buffer.MLP_OUTPUT],
            splits=self.splits,
            keys=self.keys.name,
            phases=with_waits(numbered, self.groups),
            formats=tuple((place, row.name) for place, row in self.formats.items()),
        )

    def _embed(self) -> Phase:
        # Where everyone chooses, everyone knows the tokens.
        return self._phase(PhaseKind.EMBED, reads=self._led_tokens())

    def _layer(self, layer: int) -> tuple[Phase, ...]:
        hidden = _own(Buffer.HIDDEN, layer)
        attention, mlp = (
            _own(module, layer, layer % self.slots[module])
            for module in (Buffer.ATTENTION_OUTPUT, Buffer.MLP_OUTPUT)
        )
        before = self._update(Buffer.MLP_OUTPUT, layer - 1) if layer else None
        between = self._update(Buffer.ATTENTION_OUTPUT, layer)
        outer = self._attention if self.config.latent is None else self._latent
        inner = self._mixture if self.config.layers[layer].experts else self._mlp
        return (*outer(layer, before, attention), *inner(layer, between, hidden, mlp))

    def _attention(self, layer: int, before: Update | None, output: Access) -> tuple[Phase, ...]:
        query, keys = _own(Buffer.QUERY, layer), _own(Buffer.KEY_VALUE, layer, layer)
        unnormed, partial = _own(Buffer.UNNORMED, layer), _own(Buffer.ATTENTION, layer)
        qkv, late = (Role.Q, Role.K, Role.V), self.config.qk_norm is QkNorm.ALL
        first = unnormed if late else query
        return (
            self._phase(PhaseKind.QKV, layer, *qkv, update=before, writes=(first, keys)),
            *([self._norm_qk(layer, unnormed, query, keys)] if late else []),
            self._attend(layer, query, keys, partial),
            self._phase(PhaseKind.OUT, layer, Role.O, reads=(partial,), writes=(output,)),
        )

    def _latent(self, layer: int, before: Update | None, output: Access) -> tuple[Phase, ...]:
        """Share out latents by rows, then queries by heads, and the heads' values by rows."""
        query, keys = _own(Buffer.QUERY, layer), _own(Buffer.KEY_VALUE, layer, layer)
        latents, partial = _own(Buffer.LATENTS, layer), _own(Buffer.ATTENTION, layer)
        heads, roles = _own(Buffer.HEADS, layer), latent_roles(self.config)
        return (
            self._phase(PhaseKind.LATENT, layer, *roles, update=before, writes=(latents,)),
            self._phase(
                PhaseKind.EXPAND,
                layer,
                *(Role.Q, Role.K_UP),
                reads=(latents,),
                writes=(query, keys),
            ),
            self._attend(layer, query, keys, partial),
            self._phase(PhaseKind.VALUES, layer, Role.V_UP, reads=(partial,), writes=(heads,)),
            self._phase(PhaseKind.OUT, layer, Role.O, reads=(heads,), writes=(output,)),
        )

    def _attend(self, layer: int, query: Access, keys: Access, partial: Access) -> Phase:
        reads, units = (query, keys), self._units()
        return self._phase(PhaseKind.ATTEND, layer, units=units, reads=reads, writes=(partial,))

    def _mlp(self, layer: int, between: Update, hidden: Access, mlp: Access) -> tuple[Phase, ...]:
        return (
            self._phase(
                PhaseKind.GATE_UP, layer, Role.GATE, Role.UP, update=between, writes=(hidden,)
            ),
            self._phase(PhaseKind.DOWN, layer, Role.DOWN, reads=(hidden,), writes=(mlp,)),
        )

    def _mixture(
        self, layer: int, between: Update, hidden: Access, mlp: Access
    ) -> tuple[Phase, ...]:
        """Share out the router, then each expert: every worker makes the same choice for itself."""
        routed = _own(Buffer.ROUTED, layer)
        ups, downs = [Role.EXPERT_GATE, Role.EXPERT_UP], [Role.EXPERT_DOWN]
        if self.config.experts is not None and self.config.experts.shared:
            ups, downs = [*ups, Role.SHARED_GATE, Role.SHARED_UP], [*downs, Role.SHARED_DOWN]
        return (
            self._phase(PhaseKind.ROUTE, layer, Role.ROUTER, update=between, writes=(routed,)),
            self._phase(PhaseKind.EXPERT_GATE_UP, layer, *ups, reads=(routed,), writes=(hidden,)),
            self._phase(PhaseKind.EXPERT_DOWN, layer, *downs, reads=(hidden,), writes=(mlp,)),
        )

    def _norm_qk(self, layer: int, unnormed: Access, *writes: Access) -> Phase:
        """Share out heads, of Q and then of K; every worker sums the squares of all lanes."""
        heads = (self.config.num_heads + self.config.num_kv_heads) // self.groups.count
        units = Share(Scope.GROUP, split(heads, self.groups.workers_each))
        read = replace(unnormed, lanes=Scope.ALL)
        return self._phase(PhaseKind.NORM_QK, layer, units=units, reads=(read,), writes=writes)

    def _gather(self) -> Phase:
        elements = self.groups.lanes_each * self.config.hidden_size
        workers = self.groups.workers_each
        bounds = split(elements, workers, choose_align(elements, workers))
        return self._phase(
            PhaseKind.GATHER,
            units=Share(Scope.GROUP, bounds),
            update=self._last_update(),
            writes=(_own(Buffer.STREAM, -1),),
        )

    def _head(self) -> Phase:
        if self.shared_head:
            reads, writes = (_shared(Buffer.STREAM),), (_shared(Buffer.LOGITS),)
            return self._phase(PhaseKind.HEAD, -1, Role.HEAD, reads=reads, writes=writes)
        update, writes = self._last_update(), (_own(Buffer.LOGITS, -1),)
        return self._phase(PhaseKind.HEAD, -1, Role.HEAD, update=update, writes=writes)

    def _choose(self) -> Phase:
        reads = (_shared(Buffer.LOGITS),)
        return self._phase(PhaseKind.CHOOSE, reads=reads, writes=self._led_tokens())

    def _phase(
        self,
        kind: PhaseKind,
        layer: int = -1,
        *roles: Role,
        units: Share | None = None,
        update: Update | None = None,
        reads: tuple[Access, ...] = (),
        writes: tuple[Access, ...] = (),
    ) -> Phase:
        """Return a phase, to be numbered later, with the reads of its update before its own."""
        return Phase(
            index=0,
            kind=kind,
            layer=layer,
            matrices=self._matrices(layer, *roles),
            units=units,
            update=update,
            reads=(*self._update_reads(update), *reads),
            writes=writes,
        )

    def _led_tokens(self) -> tuple[Access, ...]:
        return (_shared(Buffer.TOKENS),) if self.device.choice is Choice.LEADER else ()

    def _last_update(self) -> Update:
        return self._update(Buffer.MLP_OUTPUT, self.config.num_layers - 1)

    def _update(self, module: Buffer, layer: int) -> Update:
        rules = self.config.layers[layer]
        attention = module is Buffer.ATTENTION_OUTPUT
        reduce = rules.attention_reduce if attention else rules.mlp_reduce
        slots = self.slots[module]
        other = (layer - (reduce.delay or 0)) % slots
        return Update(module, layer, reduce, layer % slots, other)

    @staticmethod
    def _update_reads(update: Update | None) -> tuple[Access, ...]:
        """Return what an update reads: the own lanes' outputs, and the others' if the rule asks."""
        if update is None:
            return ()
        delay, module = update.reduce.delay, update.module
        own = Access(module, update.own_slot, update.layer, Scope.GROUP)
        if delay is None:
            return (own,)
        others = Access(module, update.other_slot, update.layer - delay, Scope.ALL)
        return (own, others) if delay else (others,)

    def _matrices(self, layer: int, *roles: Role) -> tuple[Matrix, ...]:
        found = []
        for role in roles:
            lanes, rows, columns = lane_shape(self.config, role)
            stored = self.formats.get((role, None if layer < 0 else layer), self.format)
            if role is Role.ROUTER and (role, layer) not in self.formats:
                stored = find_format(self.config.dtype)  # whatever matrices are converted to
            row_bytes = stored.row_bytes(columns)
            experts = 1
            if role in EXPERT_ROLES and self.config.experts is not None:
                experts = self.config.experts.count
            found.append(Matrix(role, lanes, rows, columns, row_bytes, self.shares[role], experts))
        return tuple(found)

    def _units(self) -> Share:
        """Share out (lane of the group, KV head, split): all query heads of a KV head together."""
        kv_heads = self.config.cached_heads // self.config.num_lanes
        units = self.groups.lanes_each * kv_heads * self.splits
        return Share(Scope.GROUP, split(units, self.groups.workers_each))

    def _shares(self) -> dict[Role, Share]:
        """Share out each matrix; what is left over goes to other workers from one to the next."""
        together = _rows_together(self.config)
        # Who has a group of keys or values makes its codes.
        least = {
            Role.Q: together,
            Role.K: max(together, self.keys.group),
            Role.V: max(1, self.keys.group),
        }
        shares: dict[Role, Share] = {}
        outer: tuple[tuple[Role, ...], ...] = ((Role.Q, Role.K, Role.V),)
        if (latent := self.config.latent) is not None:
            outer = (latent_roles(self.config), (Role.V_UP,))
            # By the same heads: who makes a query has all of it for its second product.
            heads = split(self.config.num_heads, self.groups.workers_each)
            for role, rows in ((Role.Q, latent.head), (Role.K_UP, latent.rank)):
                shares[role] = Share(Scope.GROUP, tuple(rows * head for head in heads))
        for roles in (*outer, (Role.O,), (Role.GATE,), (Role.DOWN,)):
            first = 0
            for role in roles:
                shares[role], first = self._share(role, least.get(role, 1), first)
        shares[Role.UP] = shares[Role.GATE]  # activation(gate) * up needs both of a row
        shares[Role.HEAD], _ = self._share(Role.HEAD, 1, 0)
        if self.config.experts is not None:
            for role in (Role.ROUTER, Role.EXPERT_GATE, Role.EXPERT_DOWN):
                shares[role], _ = self._share(role, 1, 0)
            shares[Role.EXPERT_UP] = shares[Role.EXPERT_GATE]
            shares[Role.SHARED_GATE], _ = self._share(Role.SHARED_GATE, 1, 0)
            shares[Role.SHARED_UP] = shares[Role.SHARED_GATE]
            shares[Role.SHARED_DOWN] = shares[Role.EXPERT_DOWN]  # which are added up
        return shares

    def _share(self, role: Role, minimum: int, first: int) -> tuple[Share, int]:
        """Return a share, and the worker at which the next one's left-over blocks begin."""
        lanes, rows, _ = lane_shape(self.config, role)
        once = role is Role.HEAD and self.shared_head
        scope = Scope.ALL if once else Scope.GROUP
        workers = self.groups.workers if once else self.groups.workers_each
        total = rows if once else rows * lanes // self.groups.count
        align = choose_align(total, workers, minimum)
        bounds = split(total, workers, align, first)
        return Share(scope, bounds), (first + -(-total // align)) % workers


def latent_roles(config: ModelConfig) -> tuple[Role, ...]:
    """Return the matrices that make latents: the queries' own too, where they have one."""
    queries = config.latent is not None and config.latent.query_rank is not None
    return (Role.Q_DOWN, Role.KV_DOWN) if queries else (Role.KV_DOWN,)


def _rows_together(config: ModelConfig) -> int:
    """Return how many rows of Q and K one worker must have from their product to their end."""
    if config.qk_norm is QkNorm.ALL:  # NORM_QK shares them out anew
        return 1
    whole = config.qk_norm is QkNorm.HEAD or config.rotary.style == "half"
    return config.head_dim if whole else 2


def _ring(rules: list[Reduce], wish: int | None) -> int:
    """Return the number of ring slots for the outputs of a module with these rules, by layer."""
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


def _own(buffer: Buffer, layer: int, slot: int = 0) -> Access:
    return Access(buffer, slot, layer, Scope.GROUP)


def _shared(buffer: Buffer) -> Access:
    return Access(buffer, 0, -1, Scope.ALL)

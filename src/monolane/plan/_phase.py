"""One phase of a pass, the same for every worker, and what it touches and waits for.

Plain values: what they mean together is checked in _validate.py and told in docs/plan.md.
"""

from dataclasses import dataclass
from enum import IntEnum

from monolane.model import Reduce
from monolane.ops import Buffer, Role
from monolane.plan._split import Scope, Share


class PhaseKind(IntEnum):
    """What a phase does. "Update" is what its ``updates`` say, if it has any."""

    EMBED = 0  # x = embedding of the tokens, in every lane
    QKV = 1  # update, norm, three products, norm of heads, rotary; append to the KV cache
    ATTEND = 2  # partial attention of the own units
    OUT = 3  # merge the partials, product
    GATE_UP = 4  # update, norm, two products, activation(gate) * up
    DOWN = 5  # product
    GATHER = 6  # update (and norm): offer the lanes' streams to a head that reads them all
    HEAD = 7  # update, norm, product: logits
    CHOOSE = 8  # the next token
    NORM_QK = 9  # where a norm goes over all heads of Q and of K: it, and what QKV does behind it
    # In place of GATE_UP and DOWN where the MLP is a mixture of experts:
    ROUTE = 10  # update, norm, product: the router's logits
    EXPERT_GATE_UP = 11  # the choice; of the chosen experts two products, activation(gate) * up
    EXPERT_DOWN = 12  # product of the chosen experts, weighted and added up in their order
    # Where attention is latent the first two are in place of QKV, and the last is before OUT:
    LATENT = 13  # update, norm, products: what queries, keys and values are made of
    EXPAND = 14  # norms, rotary, append; queries: product, rotary, each head's product with K_UP
    VALUES = 15  # merge the partials, each head's product with V_UP
    # Where a layer has a gated delta rule, in place of all from QKV to OUT:
    DELTA_IN = 16  # update, norm, three products
    DELTA = 17  # of own key heads: sums over tokens, the steps of their states, norm, gate
    DELTA_OUT = 18  # product
    # Where a layer has a short convolution:
    CONV_IN = 19  # update, norm, product
    CONV = 20  # of own channels: gate, sum over tokens, gate
    CONV_OUT = 21  # product
    # Where layers have per-layer embeddings; the first once a pass, behind EMBED:
    PER_LAYER_INPUTS = 22  # product of what is embedded, norm of each layer's; the table's rows
    PER_LAYER_GATE = 23  # update, product, activation(gate) * input
    PER_LAYER_OUT = 24  # product
    # Where a layer has Kimi's delta rule, in place of all from QKV to OUT:
    KDA_IN = 25  # update, norm, six products
    KDA_UP = 26  # two products, of what two of these are
    KDA = 27  # of own heads: sums over tokens, the steps of their states, norm, gate
    KDA_OUT = 28  # product
    # Where a layer has Mamba-2:
    MAMBA_IN = 29  # update, norm, product
    MAMBA = 30  # of own heads: sums over tokens, the steps of their states, gate
    MAMBA_OUT = 31  # norm, product
    # Where a layer predicts further ahead, before it:
    AHEAD = 32  # norms of what is embedded and of a state, product
    # Where a layer has a learned residual:
    LAUREL_LEFT = 33  # update, norm, product
    LAUREL_RIGHT = 34  # product
    LAUREL_NORM = 35  # of own columns: norm of the products, and what was read is added
    # In place of GATE_UP and DOWN where a gate lets few numbers through:
    SPARSE_GATE_UP = 36  # update, norm, two products
    SPARSE_DOWN = 37  # mean and deviation of the gate, activation(what is far above) * up, product
    # Where there are several streams, of which layers work on the first (AltUp). The first comes
    # once a pass, before the layers, the last two behind them:
    ALTUP_IN = 38  # products of what is embedded
    ALTUP_PREDICT = 39  # before a layer: update of the others, all streams of what they were
    ALTUP_CORRECT = 40  # behind its MLP: update of the first, which the others follow
    ALTUP_OUT = 41  # update of the others, product of each
    ALTUP_MEAN = 42  # of the first and of these products


# Where modules put their outputs, in the order in which a layer has them; each is a ring.
OUTPUTS = (
    Buffer.FIRST_OUTPUT,
    Buffer.SECOND_OUTPUT,
    Buffer.THIRD_OUTPUT,
    Buffer.FOURTH_OUTPUT,
)
# Those whose shape is a layer's.
OF_LAYERS = frozenset(Buffer) - {
    *(Buffer.TOKENS, Buffer.STREAM, Buffer.LOGITS, Buffer.ALTUP),
    *OUTPUTS,
}


@dataclass(frozen=True, slots=True)
class Access:
    """A read or a write of one slot of a shared buffer.

    ``layer`` is the layer whose data it is, so that a slot mistaken for another is seen. ``lanes``
    says whose: those of the own group, or all.
    """

    buffer: Buffer
    slot: int
    layer: int
    lanes: Scope

    def __str__(self) -> str:
        whose = "own" if self.lanes is Scope.GROUP else "all"
        return f"{self.buffer.name}[{self.slot}] of layer {self.layer}, {whose} lanes"


@dataclass(frozen=True, slots=True)
class Wait:
    """Begin only when all workers in ``scope`` have finished ``count`` phases of this pass.

    A count of zero or less reaches back: all of the previous pass, or all but its last -count.
    """

    scope: Scope
    count: int


@dataclass(frozen=True, slots=True)
class Update:
    """x_l += reduce(outputs of one module), applied by each worker to its own copy of its lanes.

    Where the model norms what a stream gains, each worker norms it before it adds.
    """

    module: Buffer  # one of OUTPUTS
    layer: int  # whose module
    reduce: Reduce
    own_slot: int  # ring slot of this layer's outputs
    other_slot: int  # ring slot of those of layer - delay; own_slot if the rule is NEVER


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight of a phase and who streams which of its rows, numbered lane after lane.

    Of experts' matrices, one: each expert's rows are shared out alike, so that no worker waits for
    another whatever the choice.
    """

    role: Role
    lanes: int  # L, or 1 for a head that the lanes share; H for a matrix of each head
    rows: int  # per lane
    columns: int
    row_bytes: int  # scales included
    share: Share
    experts: int = 1  # E where a layer has one for each expert; a pass reads those chosen

    @property
    def bytes(self) -> int:
        """Bytes of all lanes and experts."""
        return self.experts * self.lanes * self.rows * self.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One step that each worker takes on its own share."""

    index: int
    kind: PhaseKind
    layer: int  # -1 outside the layers
    module: Buffer | None = None  # where the module of which it is a phase puts its outputs
    matrices: tuple[Matrix, ...] = ()
    units: Share | None = None  # work that is not rows: attention units, heads, elements to gather
    # In their order; several where modules before read the same as each other.
    updates: tuple[Update, ...] = ()
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    waits: tuple[Wait, ...] = ()

    @property
    def name(self) -> str:
        """Kind, and the layer if it is of one."""
        return self.kind.name if self.layer < 0 else f"{self.kind.name} {self.layer}"

    def wait(self, scope: Scope) -> int | None:
        """Return the count that workers in ``scope`` must have reached, if there is one."""
        return next((wait.count for wait in self.waits if wait.scope is scope), None)

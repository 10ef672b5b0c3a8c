"""A mixture of experts: of a layer's many MLPs each token goes through a few, its router's choice.

Where the router's logits are l_e, p = softmax(l) over all experts, both in float32. The ``chosen``
experts with the largest logits serve the token; of equal ones the lowest index wins. They are
weighted by p, or where ``normalised`` by p over the sum of the chosen p. Their outputs are added up
in ascending order of the experts, whatever the order of their weights: so no bit depends on which
other tokens a pass carries.

What some families have besides, each by itself:

biases      each product of router and experts has one, added to it at once
scores      "sigmoid": p_e = sigmoid(l_e); "sqrtsoftplus": p_e = sqrt(ln(1 + exp(l_e)))
corrected   chosen by p_e + c_e, of which c is a weight of the router; the weights are p still
groups      experts are so many groups of consecutive ones. ``chosen_groups`` of them, with the
            largest sums of their ``group_best`` largest p + c, are all that is chosen from; of
            equal groups, too, the first wins
scale       the weights are multiplied by it at last
shared      inner width of one more MLP, of all tokens, whose output is added behind the experts'
router_norm the router reads the stream by a norm of its own, whose scales are also divided by the
            square root of their number; the experts read by that of their module
weigh_inputs
            what a chosen expert reads is multiplied by its weight, and what it says is not
each_scaled a chosen expert's weight is multiplied by a number of its own at last
limit       gates are cut off above it, and what they multiply above it and below its negative
table       the chosen experts of a token are those that a table says of its id, of so many ids
shared_expert_gate
            its output is multiplied by sigmoid(g . x) first, x what the router reads and g a row
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from monolane._structs import Field, Struct
from monolane.errors import ConfigError
from monolane.ops._names import Buffer, Role, Shapes
from monolane.ops._spec import (
    ACTIVATIONS,
    MAX_SIZE,
    Activation,
    Buffers,
    Operation,
    Room,
    is_gated,
)

# More than any published model has; bounds what a hostile config.json can make us allocate.
MAX_EXPERTS = 4096

Scores = Literal["softmax", "sigmoid", "sqrtsoftplus"]
_SCORES: tuple[Scores, ...] = get_args(Scores)

_STRUCT = Struct(
    "PlanExperts",
    (
        Field("count", "i32", "E"),
        Field("chosen", "i32", "k: experts of a token"),
        Field("inner", "i32", "X: inner width of an expert"),
        Field("shared", "i32", "Xs: inner width of what all tokens share; 0: nothing"),
        Field("activation", "GateActivation", "of the gate"),
        Field("scores", "ExpertScores", "what experts are chosen and weighted by"),
        Field("normalised", "i32", "1: the weights of the chosen add up to 1"),
        Field("groups", "i32", "of consecutive experts"),
        Field("chosen_groups", "i32", "of which alone a token's experts are chosen"),
        Field("group_best", "i32", "experts whose scores, added up, count for their group"),
        Field("scale", "f32", "of the weights of the chosen"),
        Field("router_norm", "i32", "1: the router reads by a norm of its own"),
        Field("weigh_inputs", "i32", "1: weights are of what experts read, not of what they say"),
    ),
)


@dataclass(frozen=True, slots=True)
class Experts(Operation):
    """The sizes of every mixture in a model. ConfigError if they make no sense."""

    structs: ClassVar[Mapping[str, Struct]] = {"experts": _STRUCT}
    enums: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "GateActivation": ACTIVATIONS,
        "ExpertScores": _SCORES,
    }

    count: int  # E, in a layer
    chosen: int  # k, for a token
    inner: int  # X, inner width of one expert's MLP
    normalised: bool  # the weights of the chosen add up to 1
    biases: bool = False  # of the router, and of each expert's gate, up and down
    scores: Scores = "softmax"
    corrected: bool = False
    groups: int = 1
    chosen_groups: int = 1
    group_best: int = 1
    scale: float = 1.0
    shared: int = 0  # 0: there is none
    shared_expert_gate: bool = False
    activation: Activation = "silu"  # of a layer: the model's
    router_norm: bool = False
    each_scaled: bool = False
    weigh_inputs: bool = False
    limit: float | None = None
    table: int = 0  # 0: there is none

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_EXPERTS:
            raise ConfigError(f"experts: expected 1 to {MAX_EXPERTS} in a layer, got {self.count}")
        if not 1 <= self.chosen <= self.count:
            raise ConfigError(
                f"experts: expected 1 to {self.count} chosen for a token, which are all there are, "
                f"got {self.chosen}"
            )
        self._check_groups()
        if self.limit is not None and not 0 < self.limit < 1e30:
            raise ConfigError(f"experts: expected a limit above 0, got {self.limit}")
        if not 0 <= self.table <= MAX_SIZE or (self.table and self.corrected):
            raise ConfigError(
                f"experts: expected a table of 0 to {MAX_SIZE} ids, and none where experts are "
                f"chosen with a correction, got {self.table}"
            )
        if not 0 < self.scale < 1e30:
            raise ConfigError(f"experts: expected a scale above 0, got {self.scale}")
        if not 0 <= self.shared <= MAX_SIZE:
            raise ConfigError(
                f"experts: expected a shared width of 0 to {MAX_SIZE}, got {self.shared}"
            )
        if self.shared_expert_gate and not self.shared:
            raise ConfigError(
                "experts: expected a shared width of 1 and more where what is shared has a gate, "
                "got 0"
            )

    def _check_groups(self) -> None:
        if self.groups < 1 or self.count % self.groups:
            raise ConfigError(
                f"experts: expected a number of groups that divides {self.count}, the experts of "
                f"a layer, got {self.groups}"
            )
        if not 1 <= self.chosen_groups <= self.groups:
            raise ConfigError(
                f"experts: expected 1 to {self.groups} chosen groups, got {self.chosen_groups}"
            )
        each = self.count // self.groups
        if self.chosen > self.chosen_groups * each:
            raise ConfigError(
                f"experts: expected at most {self.chosen_groups * each} chosen for a token, of "
                f"{self.chosen_groups} groups of {each}, got {self.chosen}"
            )
        if not 1 <= self.group_best <= each:
            raise ConfigError(
                f"experts: expected 1 to {each} of a group to count for it, got {self.group_best}"
            )
        if self.scores == "softmax" and self.group_best > 1:
            raise ConfigError(
                "experts: expected scores by sigmoid where they are added up, got softmax, whose "
                "largest are those of the logits"
            )
        if self.weigh_inputs and self.biases:
            raise ConfigError(
                "experts: expected no biases where what experts read is weighted, got both: no "
                "family has them"
            )

    @property
    def gated(self) -> bool:
        """Whether each MLP has a gate."""
        return is_gated(self.activation)

    def tensors(self, hidden: int, lanes: int) -> Shapes:
        """Return the shapes of its weights; see Operation."""
        shapes: Shapes = {Role.ROUTER_NORM: (1, hidden)} if self.router_norm else {}
        shapes[Role.ROUTER] = (1, self.count, hidden)
        if self.each_scaled:
            shapes[Role.EXPERT_SCALES] = (1, self.count)
        if self.biases:
            shapes[Role.ROUTER_BIAS] = (1, self.count)
        if self.corrected:
            shapes[Role.ROUTER_CORRECTION] = (1, self.count)
        if self.table:
            shapes[Role.EXPERT_TABLE] = (1, self.table, self.chosen)
        rows = (1, self.inner, hidden)
        shapes |= {Role.EXPERT_GATE: rows, Role.EXPERT_UP: rows}
        shapes[Role.EXPERT_DOWN] = (1, hidden, self.inner)
        if self.biases:
            biases = (1, self.count, self.inner)
            shapes |= {Role.EXPERT_GATE_BIAS: biases, Role.EXPERT_UP_BIAS: biases}
            shapes[Role.EXPERT_DOWN_BIAS] = (1, self.count, hidden)
        if self.shared:
            rows = (1, self.shared, hidden)
            shapes |= {Role.SHARED_GATE: rows, Role.SHARED_UP: rows}
            shapes[Role.SHARED_DOWN] = (1, hidden, self.shared)
        if not self.gated:
            for role in (Role.EXPERT_GATE, Role.EXPERT_GATE_BIAS, Role.SHARED_GATE):
                shapes.pop(role, None)
        if self.shared_expert_gate:
            shapes[Role.SHARED_EXPERT_GATE] = (1, hidden)
        return shapes

    def buffers(self, room: Room) -> Buffers:
        """Return the shapes of what its phases leave for each other; see Operation."""
        return {
            Buffer.ROUTED: (1, room.width, self.count),
            Buffer.HIDDEN: (1, room.width, self.chosen * self.inner + self.shared),
        }

    @property
    def copies(self) -> int:
        """How many there are of each expert's matrices."""
        return self.count

    def active(self, width: int) -> float:
        """Return how many experts of a layer ``width`` tokens need, if each is as likely.

        One token needs exactly ``chosen``; more tokens share some.
        """
        missed: float = (1 - self.chosen / self.count) ** width
        return self.chosen if width == 1 else self.count * (1 - missed)

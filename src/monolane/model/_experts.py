"""A mixture of experts: of a layer's many MLPs each token goes through a few, its router's choice.

Where the router's logits are l_e, p = softmax(l) over all experts, both in float32. The ``chosen``
experts with the largest logits serve the token; of equal ones the lowest index wins. They are
weighted by p, or where ``normalised`` by p over the sum of the chosen p. Their outputs are added up
in ascending order of the experts, whatever the order of their weights: so no bit depends on which
other tokens a pass carries.

With ``biases`` each product of router and experts has one, added to it at once.
"""

from dataclasses import dataclass

from monolane.errors import ConfigError

# More than any published model has; bounds what a hostile config.json can make us allocate.
MAX_EXPERTS = 4096


@dataclass(frozen=True, slots=True)
class Experts:
    """The sizes of every mixture in a model. ConfigError if they make no sense."""

    count: int  # E, in a layer
    chosen: int  # k, for a token
    inner: int  # X, inner width of one expert's MLP
    normalised: bool  # the weights of the chosen add up to 1
    biases: bool = False  # of the router, and of each expert's gate, up and down

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_EXPERTS:
            raise ConfigError(f"experts: expected 1 to {MAX_EXPERTS} in a layer, got {self.count}")
        if not 1 <= self.chosen <= self.count:
            raise ConfigError(
                f"experts: expected 1 to {self.count} chosen for a token, which are all there are, "
                f"got {self.chosen}"
            )

    def active(self, width: int) -> float:
        """Return how many experts of a layer ``width`` tokens need, if each is as likely.

        One token needs exactly ``chosen``; more tokens share some.
        """
        missed: float = (1 - self.chosen / self.count) ** width
        return self.chosen if width == 1 else self.count * (1 - missed)

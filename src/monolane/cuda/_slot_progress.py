"""A slot within an epoch: what it still has to do when the next launch begins."""

from dataclasses import dataclass, replace

from monolane.executor_api import Advance, Guide


@dataclass(frozen=True, slots=True)
class Running:
    """An advance, and what is left of it."""

    advance: Advance
    tokens: tuple[int, ...]  # to feed; none once it is done
    budget: int  # tokens to draw at most
    all_logits: bool = False  # the logits of every row are wanted, and nothing is drawn
    parked: bool = False  # guided, and it has been seen that the next draw's guide is late

    @property
    def slot(self) -> int:
        """The slot."""
        return self.advance.slot

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not self.tokens

    def after(self, fed: int, drawn: int, last: int) -> "Running":
        """Return what is left after a launch that fed and drew so many tokens, ``last`` at last."""
        budget = self.budget - drawn
        if fed < len(self.tokens):
            tokens = self.tokens[fed:]
        elif self.all_logits or budget == 0 or (drawn and last in self.advance.stop_ids):
            tokens = ()
        else:  # with nothing drawn behind the last token, that was given back
            tokens = (last if drawn else self.tokens[-1],)
        return replace(self, tokens=tokens, budget=budget)

    def force(self, guide: Guide) -> tuple[tuple[int, ...], "Running"]:
        """Return the forced tokens that leave, up to the end if one ends it, and what is left."""
        left: list[int] = []
        for token in guide.forced:
            left.append(token)
            if len(left) == self.budget or token in self.advance.stop_ids:
                return tuple(left), replace(self, tokens=(), budget=self.budget - len(left))
        tokens = () if guide.mask is None else (*self.tokens, *left)
        return tuple(left), replace(self, tokens=tokens, budget=self.budget - len(left))

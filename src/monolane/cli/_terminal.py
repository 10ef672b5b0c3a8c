"""The options that 'generate' and 'chat' share: an engine, and how it draws."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from monolane._draw import Draw
from monolane._loading import Loading
from monolane._options import options_of
from monolane.cli import _options as options
from monolane.cli._groups import After, Drawn

if TYPE_CHECKING:
    from monolane.engine import Engine, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """How tokens are drawn.

    ``check`` what can be checked before a model is loaded.
    """

    drawn: Drawn
    generation_config: options.GenerationConfig = "auto"
    seed: options.Seed = 0
    thinking: options.Thinking = None
    loading: Loading
    speculation: Annotated[options.Speculation, After("prefix_file")] = "auto"

    def check(self, max_tokens: int) -> None:
        """RequestError for what is out of its range, whatever the model."""
        from monolane.engine import SamplingParams

        said = {name: value for name, value in self.drawn.items() if value is not None}
        SamplingParams(max_tokens=max_tokens, **said)

    def load(self, model: str) -> "Engine":
        """Load the model."""
        from monolane._progress import still
        from monolane.engine import Engine

        with still(f"loading {model}"):
            return Engine.open(replace(self.loading, model=model))

    def params(self, engine: "Engine", max_tokens: int, **more: Any) -> "SamplingParams":
        """Return how an answer is drawn: as the options say, and ``more``."""
        from monolane.cli._defaults import terminal_defaults
        from monolane.engine import SamplingParams

        deferred = {name for name, said in options_of(Draw).items() if said.deferred}
        files = {name: self.drawn[name] for name in deferred} | {"max_tokens": max_tokens}
        drawn = terminal_defaults(engine.defaults, self.generation_config, **files)
        given = {name: value for name, value in self.drawn.items() if name not in deferred}
        given |= {"seed": self.seed, "speculation": self.speculation}
        return SamplingParams(**drawn, **given, **more)

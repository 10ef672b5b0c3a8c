"""``monolane verify``: prove on the spot that the engine computes what Transformers computes."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolane._loading import Loading
from monolane.cli import _options as options
from monolane.cli._groups import grouped

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from monolane.engine import Engine
    from monolane.model import ModelConfig

    Logits = npt.NDArray[np.float32]

# Code, prose, other scripts and odd spacing: what tokenizers and models treat differently.
PROMPTS = (
    "def fibonacci(n):\n    ",
    "import os\n\nclass Reader:\n    def __init__(self, path):\n        self.path = path\n",
    "The quick brown fox jumps over the lazy dog.",
    "Größe: 3 µs — Ω(n log n) 中文 🙂",
)


@dataclass(frozen=True)
class Comparison:
    """One prompt through both implementations."""

    prompt: str
    tokens: int
    largest_difference: float
    bound: float
    top1_agreement: float  # share of positions whose most probable token is the same
    largest_logit: float

    @property
    def holds(self) -> bool:
        """Whether the logits agree as closely as float32 arithmetic lets them."""
        return self.largest_difference <= self.bound

    def record(self) -> dict[str, Any]:
        """Return it as JSON can hold it: null for what is no number, as of broken weights."""
        found = asdict(self) | {"holds": self.holds}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in found.items()
        }


@grouped("verify", after={"backend": "draft"})
def verify(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            rich_help_panel=options.LOADING,
            help="'demo', 'smollm2', a model folder, a .gguf file, or a Hub id.",
        ),
    ] = None,
    lossless: Annotated[
        bool,
        typer.Option(
            "--lossless",
            help="Compare answers with speculation, kept prefixes and batches with plain ones "
            "instead, bit by bit; needs no Transformers.",
        ),
    ] = False,
    bits: Annotated[
        Path | None,
        typer.Option(
            "--bits",
            help="Compute an answer that a GPU gave anew on this processor, bit by bit instead: a "
            "file that --record wrote; needs no GPU.",
        ),
    ] = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="With --bits: let the GPU here answer, and write the file."),
    ] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(help="With --lossless: a prompt, or a JSON string, in each line."),
    ] = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Compare with the modeling code in the model's own folder. It runs with your "
            "rights: read it first, and pin a revision.",
        ),
    ] = False,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Also compare on this many random tokens [0: not; default 300]; with --lossless "
            "tokens of each answer [default 100], with --record of the one [default 16].",
            min=0,
        ),
    ] = None,
    loading: Loading,
    as_json: options.Json = False,
) -> None:
    """Compare the engine's logits with those of Transformers.

    In float32, with Transformers' own implementation of a dense model; monolane's for a Laneformer,
    or that in its folder. Of a .gguf file in blocks, both compute with the numbers that the blocks
    mean; the engine does so on the reference backend.

    Exit code 0 if they agree within the rounding error of float32, 1 if they do not; with
    --lossless and --bits, if every bit is the same.
    """
    from monolane._progress import still
    from monolane.engine import Engine
    from monolane.evaluate import transformers_logits
    from monolane.sources import find_model

    if lossless:
        from monolane.cli._lossless import read_prompts, verify_lossless

        if tokens == 0:
            raise typer.BadParameter("--tokens: expected 1 or more with --lossless, got 0")
        if trust_remote_code:
            raise typer.BadParameter(
                "--trust-remote-code: --lossless compares with no other code; leave one out"
            )
        texts = PROMPTS if prompts is None else read_prompts(prompts)
        same = verify_lossless(
            model or "demo", texts, tokens or 100, loading.backend, loading.draft, as_json
        )
        raise typer.Exit(0 if same else 1)
    if bits is not None:
        from monolane.cli._bits import verify_bits

        if model is None or prompts is not None or trust_remote_code:
            raise typer.BadParameter("--bits: expected --model, and no --prompts and no other code")
        same = verify_bits(
            model, bits, record=record, prompt=PROMPTS[0], tokens=tokens, as_json=as_json
        )
        raise typer.Exit(0 if same else 1)
    if record:
        raise typer.BadParameter("--record: expected --bits FILE, which it writes")
    if model is None or prompts is not None or loading.draft is not None:
        raise typer.BadParameter(
            "expected --model, and --prompts and --draft with --lossless alone"
        )
    path = find_model(model, with_code=trust_remote_code)
    with still(f"loading {model}"):
        loaded = Engine.load(path, _float_backend(path, loading.backend), "float32")
        theirs = transformers_logits(path, loaded.config, trust_remote_code)
    with loaded as engine:
        rows = []
        for name, ids in _prompts(engine, 300 if tokens is None else tokens):
            rows.append(compare(name, engine.config, engine.logits(ids), theirs(ids)))
            if not as_json:
                _print_row(rows[-1], first=len(rows) == 1)
    agree = all(row.holds for row in rows)
    if as_json:
        report = {"agree": agree, "prompts": [row.record() for row in rows]}
        sys.stdout.write(json.dumps(report, allow_nan=False) + "\n")
    else:
        worst = max(row.largest_difference for row in rows)
        top1 = sum(row.top1_agreement * row.tokens for row in rows) / sum(r.tokens for r in rows)
        verdict = "the implementations agree" if agree else "THE IMPLEMENTATIONS DIFFER"
        sys.stdout.write(f"largest difference {worst:.2e}, top-1 agreement {top1:.2%}: {verdict}\n")
    raise typer.Exit(0 if agree else 1)


def compare(name: str, config: "ModelConfig", ours_TV: "Logits", theirs_TV: "Logits") -> Comparison:
    """Hold two implementations' logits of one prompt against each other."""
    import numpy as np

    largest = float(np.abs(theirs_TV).max())
    same = np.argmax(ours_TV, -1) == np.argmax(theirs_TV, -1)
    return Comparison(
        prompt=name,
        tokens=len(ours_TV),
        largest_difference=float(np.abs(ours_TV - theirs_TV).max()),
        bound=rounding_bound(config, largest),
        top1_agreement=float(np.mean(same)),
        largest_logit=largest,
    )


def rounding_bound(config: "ModelConfig", largest_logit: float) -> float:
    """Return how far two right float32 implementations may lie apart.

    Each of the 2N+1 matrix products along the depth sums at most max(D, F/L) products in an order
    of its own. Rounding errors of one such sum behave as a random walk of that many steps of half
    an ULP; the errors of the products add up likewise. Factor 8: the logit furthest off among
    all, rather than the typical one.
    """
    steps = max(config.hidden_size, config.intermediate_size // config.num_lanes)
    walk = math.sqrt(steps * (2 * config.num_layers + 1))
    return 8 * 2.0**-24 * walk * max(1.0, largest_logit)


def _prompts(engine: "Engine", tokens: int) -> list[tuple[str, Sequence[int]]]:
    import numpy as np

    found: list[tuple[str, Sequence[int]]] = []
    if engine.tokenizer is not None:
        found += [(repr(text), engine.prompt_ids(text)) for text in PROMPTS]
    count = min(tokens, engine.backend.context)
    if count or not found:
        ids = np.random.default_rng(0).integers(engine.config.vocab_size, size=count or 32)
        found.append((f"{len(ids)} random tokens", ids.tolist()))
    return found


def _float_backend(path: Path, backend: str) -> str:
    """Return a backend that computes in float32; ConfigError for codes that only we can read."""
    from monolane.errors import ConfigError
    from monolane.model import Weights, is_gguf, read_config

    if is_gguf(path):
        return "reference" if backend == "auto" and Weights.open(path).quantized else backend
    if (scheme := read_config(path).quantization) is not None:
        raise ConfigError(
            f"{path}: expected float weights to compare, got {scheme.dtype} codes; verify the "
            "model that was quantised (what quantising costs: docs/quantization.md)"
        )
    return backend


def _print_row(row: Comparison, first: bool) -> None:
    if first:
        sys.stdout.write(
            f"{'prompt':42} {'tokens':>6} {'difference':>10} {'bound':>8} {'top-1':>7}\n"
        )
    name = row.prompt if len(row.prompt) <= 42 else row.prompt[:39] + "..."
    mark = "" if row.holds else "  <- differs"
    sys.stdout.write(
        f"{name:42} {row.tokens:6} {row.largest_difference:10.2e} {row.bound:8.1e} "
        f"{row.top1_agreement:7.1%}{mark}\n"
    )
    sys.stdout.flush()

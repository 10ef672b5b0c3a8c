"""Parity: the same prompts through other implementations and formats of one model.

What is compared are logits after each token of a prompt: their error, whether the most probable
token is the same, and the divergence KL(subject || variant).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from monolane.engine import BACKEND_NAMES, Engine
from monolane.errors import ConfigError, RequestError
from monolane.evaluate._intervals import percent, ratio_interval
from monolane.evaluate._journal import Journal
from monolane.evaluate._logprob_sums import Tally
from monolane.evaluate._perplexity import hash_texts, read_texts
from monolane.evaluate._question import Figure
from monolane.evaluate._target import EngineSubject, Subject
from monolane.evaluate._task import Outcome, Progress, Task
from monolane.evaluate._transformers import Logits, LogitsOf, transformers_logits
from monolane.evaluate._windows import Window, check_window

_PROMPTS = 20


@dataclass(frozen=True, slots=True)
class Variant:
    """What the subject is held against.

    ``hf``, BACKEND[:DTYPE], or a folder or .gguf file[:DTYPE].
    """

    word: str
    model: str | None
    backend: str
    dtype: str

    @staticmethod
    def parse(word: str) -> "Variant":
        """Read one of --against; RequestError says what it may be."""
        first, _, dtype = word.partition(":")
        if first in BACKEND_NAMES or first == "hf":
            return Variant(word, None, first, dtype or "auto")
        if Path(first).exists():
            return Variant(word, first, "auto", dtype or "auto")
        raise RequestError(
            f"--against: expected hf, one of {', '.join(BACKEND_NAMES)} with :DTYPE behind it or "
            f"not, or a model on this disk, got {word!r}"
        )


class ParityTask(Task):
    """Prompts through the subject and each variant, one line of the journal for each prompt."""

    name, title = "parity", "Parity with other implementations and formats"

    def __init__(
        self, against: Sequence[str], files: Sequence[Path], limit: int | None, window: int
    ) -> None:
        if not against:
            raise RequestError("parity: expected --against, such as reference, cpu:int8 or hf")
        self._variants = [Variant.parse(word) for word in against]
        check_window(window)
        self._texts = read_texts(files)[: limit or _PROMPTS]
        self._window = window

    def run(self, subject: Subject, folder: Path, progress: Progress) -> Outcome:
        """Compare what is not compared yet; RequestError for a server, which gives no logits."""
        if not isinstance(subject, EngineSubject):
            raise RequestError("parity: expected --model, an engine in this process")
        window = min(self._window, subject.engine.backend.context)
        settings = {"task": self.name, "prompt_tokens": window}
        check_window(window)
        prompts = self._prompts(subject, window)
        tallies: dict[str, list[Tally]] = {}
        done, total = 0, len(prompts) * len(self._variants)
        with Journal(folder / f"{self.name}.jsonl", {**subject.about, **settings}) as journal:
            progress(self.name, 0, total)
            for variant in self._variants:
                keys = [f"{variant.word} {text}" for text, _ in prompts]
                found = tallies[variant.word] = []
                missing = any(journal.get(key) is None for key in keys)
                with _logits_of(variant, subject, window) if missing else _nothing() as logits:
                    for key, (_, ids) in zip(keys, prompts, strict=True):
                        line = journal.get(key)
                        if line is None:
                            tally = Tally()
                            part = Window(ids, 1)
                            tally.add(part, logits(ids), subject.engine.logits(ids))
                            line = journal.add(key, tally=tally.plain())
                        found.append(Tally(**line["tally"]))
                        done += 1
                        progress(self.name, done, total)
        figures = tuple(figure for word, each in tallies.items() for figure in _figures(word, each))
        data = {"data_sha256": hash_texts(self._texts)}
        return Outcome(self.name, self.title, figures, settings | data)

    def _prompts(self, subject: EngineSubject, window: int) -> Sequence[tuple[str, Sequence[int]]]:
        """Return the prompts with a token to follow another, each with the hash of its text."""
        found = [
            (hash_texts([text])[:16], subject.engine.prompt_ids(text.text)[:window])
            for text in self._texts
        ]
        prompts = [(text, ids) for text, ids in found if len(ids) > 1]
        if not prompts:
            raise RequestError("--text: expected a text of 2 tokens or more, got none; give longer")
        return prompts


def _figures(word: str, tallies: Sequence[Tally]) -> Iterator[Figure]:
    whole = Tally.total(tallies).record(1)
    count = len(tallies)
    tokens = [tally.tokens for tally in tallies]
    same = [tally.same for tally in tallies]
    low, high, how = ratio_interval(same, tokens, share=True).of(percent)
    yield Figure(
        f"{word}: top-1 agreement", 100 * whole["top1_agreement"], low, high, count,
        f"{how}, prompts", "%", None, {"tokens": whole["tokens"]},
    )  # fmt: skip
    low, high, how = ratio_interval([tally.divergence for tally in tallies], tokens)
    yield Figure(f"{word}: KL", whole["kl_nats"], low, high, count, f"{how}, prompts", "nats/token")
    for metric, key in (("RMS", "logit_rms_error"), ("largest", "logit_largest_error")):
        yield Figure(f"{word}: logit error, {metric}", whole[key], None, None, count, "", "")


@contextmanager
def _nothing() -> Iterator[LogitsOf]:
    """Stand for a variant that nothing is asked of any more."""

    def refuse(_: Sequence[int]) -> Logits:
        raise AssertionError("all prompts are in the journal")

    yield refuse


@contextmanager
def _logits_of(variant: Variant, subject: EngineSubject, context: int) -> Iterator[LogitsOf]:
    folder = subject.engine.folder
    if variant.backend == "hf":
        yield transformers_logits(folder, subject.engine.config)
        return
    with Engine.load(
        variant.model or folder, variant.backend, variant.dtype, context=context, prefix_cache="off"
    ) as engine:
        ours, theirs = subject.engine.config.vocab_size, engine.config.vocab_size
        if ours != theirs:
            raise ConfigError(
                f"--against {variant.word}: expected the same vocabulary of {ours}, got {theirs}"
            )
        yield engine.logits

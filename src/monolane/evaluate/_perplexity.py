"""Perplexity: bits per byte of local text, which models of any tokenizer can be compared by."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from monolane.errors import DataError, RequestError
from monolane.evaluate._intervals import bootstrap
from monolane.evaluate._journal import Journal
from monolane.evaluate._logprob_sums import Tally, bits_per_byte
from monolane.evaluate._question import Figure
from monolane.evaluate._target import EngineSubject, Subject
from monolane.evaluate._task import Outcome, Progress, Task
from monolane.evaluate._windows import Text, check_window, cut_text, help_topics


class PerplexityTask(Task):
    """Texts of files, or of Python's help; one line of the journal each."""

    name, title = "perplexity", "Perplexity of local text"

    def __init__(self, files: Sequence[Path], limit: int | None, window: int) -> None:
        check_window(window)
        self._texts = read_texts(files)[:limit]
        self._window, self._own = window, bool(files)

    def run(self, subject: Subject, folder: Path, progress: Progress) -> Outcome:
        """Score what is not scored yet; RequestError for a server, which gives no logits."""
        if not isinstance(subject, EngineSubject):
            raise RequestError("perplexity: expected --model, an engine in this process")
        window = min(self._window, subject.engine.backend.context)
        check_window(window)
        settings = {
            "task": self.name,
            "window": window,
            "stride": window // 2,
            "text": "--text" if self._own else "Python's help topics",
        }
        rows: list[tuple[float, float, float]] = []  # nats, tokens, bytes of a text
        with Journal(folder / f"{self.name}.jsonl", {**subject.about, **settings}) as journal:
            progress(self.name, 0, len(self._texts))
            for done, text in enumerate(self._texts, 1):
                key = f"{text.name} {hash_texts([text])[:16]}"
                line = journal.get(key)
                if line is None:
                    tally = score_text(subject, text, window)
                    size = len(text.text.encode())
                    line = journal.add(key, nats=tally.nats, tokens=tally.tokens, bytes=size)
                if line["tokens"]:  # of a text of one token nothing is scored
                    rows.append((line["nats"], line["tokens"], line["bytes"]))
                progress(self.name, done, len(self._texts))
        if not rows:
            raise RequestError("--text: expected a text of 2 tokens or more, got none; give longer")
        settings["data_sha256"] = hash_texts(self._texts)
        return Outcome(self.name, self.title, _figures(rows), settings)


def _figures(rows: Sequence[tuple[float, float, float]]) -> tuple[Figure, ...]:
    nats, tokens, size = (sum(column) for column in zip(*rows, strict=True))
    low, high, how = bootstrap(rows, lambda mean: bits_per_byte(mean[0], mean[2]))
    per_token = bootstrap(rows, lambda mean: float(mean[0] / mean[1]))[:2]
    count, how = len(rows), f"{how}, texts"
    about = {"tokens": int(tokens), "bytes": int(size)}
    return (
        Figure(
            "bits per byte", bits_per_byte(nats, int(size)), low, high, count, how, "", None, about
        ),
        Figure("nats per token", nats / tokens, *per_token, count, how, "", None, about),
    )


def score_text(subject: EngineSubject, text: Text, window: int) -> Tally:
    """Return how probable one text is; its first token is given."""
    tally = Tally()
    for part in cut_text(subject.engine.prompt_ids(text.text), window):
        tally.score(part, subject.engine.logits(part.ids))
    return tally


def read_texts(files: Sequence[Path]) -> list[Text]:
    """Return the texts of files, or the help topics of this Python where there are none."""
    if not files:
        return [text for text in help_topics() if text.text.strip()]
    texts = []
    for path in files:
        try:
            texts.append(Text(path.name, path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"--text {path}: expected text in UTF-8: {error}") from None
        if not texts[-1].text.strip():
            raise DataError(f"--text {path}: expected text, the file is empty")
    return texts


def hash_texts(texts: Sequence[Text]) -> str:
    """Return the SHA-256 of texts."""
    whole = hashlib.sha256()
    for text in texts:
        whole.update(text.text.encode() + b"\0")
    return whole.hexdigest()

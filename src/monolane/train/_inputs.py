"""What a run reads: its corpus, the mixture, and the validation of what it learnt.

A validation gives held-out bits per byte of each source, and accuracy on small tasks. Every process
calls it and gets the same numbers; they do not depend on how many processes there
are (:mod:`monolane.train._evaluate`).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from monolane.data import Blend, Corpus, Encoded
from monolane.errors import ConfigError
from monolane.train._config import RunConfig
from monolane.train._evaluate import ROWS, Score, score_documents
from monolane.train._tasks import Task, centred_accuracy, load_task, score_tasks

CUT = "\N{REPLACEMENT CHARACTER}"  # what tokens spell that end within a character
_CHARACTER = 4  # tokens at most that spell one


class Validator:
    """Scores a model on held-out documents and tasks, chosen once for the whole run.

    ``rows`` bounds the windows of ``context`` tokens that each source gives (``choose_documents``,
    which may cut a document where there is a ``tokenizer``), ``per_pass`` those in
    one forward pass: its logits take ``per_pass`` x ``context`` x vocabulary floats, twice.
    """

    def __init__(
        self,
        held_out: Mapping[str, Sequence[Encoded]],
        tasks: Sequence[Task] = (),
        tokenizer: Tokenizer | None = None,
        *,
        context: int,
        rows: int = 64,
        per_pass: int = ROWS,
    ) -> None:
        if tasks and tokenizer is None:
            raise ConfigError(
                "validation.tasks: expected a tokenizer for tasks, found none; give the corpus "
                "one, or leave the tasks out"
            )
        self._held_out = {
            name: choose_documents(documents, context, rows, tokenizer)
            for name, documents in held_out.items()
        }
        self._tasks = tuple(tasks)
        self._tokenizer = tokenizer
        self._context = context
        self._per_pass = per_pass

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to score."""
        return not (self._held_out or self._tasks)

    def run(self, model: torch.nn.Module) -> dict[str, float]:
        """Score ``model``: totals, and each source and task after a slash.

        ``bits_per_byte`` is of all sources' documents together, ``centred_accuracy`` the mean of
        the tasks. Weights do not change, nor does the model's training mode.
        """
        return {**self._bits(model), **self._accuracies(model)}

    def _bits(self, model: torch.nn.Module) -> dict[str, float]:
        scores = {
            name: sum(
                score_documents(
                    model,
                    [ids for ids, _ in documents],
                    [size for _, size in documents],
                    self._context,
                    rows=self._per_pass,
                ),
                Score(0.0, 0, 0),
            )
            for name, documents in self._held_out.items()
        }
        if not scores:
            return {}
        total = sum(scores.values(), Score(0.0, 0, 0))
        parts = {f"bits_per_byte/{name}": score.bits_per_byte for name, score in scores.items()}
        return {"bits_per_byte": total.bits_per_byte, **parts}

    def _accuracies(self, model: torch.nn.Module) -> dict[str, float]:
        if not self._tasks:
            return {}
        assert self._tokenizer is not None
        scores = score_tasks(model, self._tasks, self._tokenizer, self._context, self._per_pass)
        parts = {f"centred_accuracy/{name}": score.centred for name, score in scores.items()}
        return {"centred_accuracy": centred_accuracy(scores), **parts}


def open_corpus(config: RunConfig) -> Corpus:
    """Open ``data.corpus``; ConfigError where none is named or its ids do not fit the model."""
    if not config.data.corpus:
        raise ConfigError(
            "data.corpus: expected the folder of a prepared corpus, got none; make one with "
            "'monolane data prepare', and give --set data.corpus=FOLDER"
        )
    corpus = Corpus.open(Path(config.data.corpus).expanduser())
    if corpus.vocabulary_size > config.model.vocab_size:
        raise ConfigError(
            f"model.vocab_size: expected at least the {corpus.vocabulary_size} tokens of the "
            f"corpus, got {config.model.vocab_size}; mend it, or prepare with another tokenizer"
        )
    return corpus


def open_blend(config: RunConfig, corpus: Corpus) -> Blend:
    """Return the mixture that the config names: its weights, or a stage of the corpus."""
    data, stages = config.data, corpus.manifest.stages
    weights: Mapping[str, float] = data.weights
    if data.stage:
        if data.stage not in stages:
            raise ConfigError(
                f"data.stage: expected one of {', '.join(stages) or 'no stage at all'}, as the "
                f"corpus names them, got {data.stage!r}; mend it, or give data.weights"
            )
        weights = stages[data.stage]
    if not weights:
        weights = dict.fromkeys(corpus.sources, 1.0)
    return Blend(corpus, weights, data.sequence_length, config.seed, after=data.after)


def make_validator(config: RunConfig, corpus: Corpus) -> Validator | None:
    """Return the validator of a run, or None where ``validation.every`` is 0.

    Sources without held-out documents are left out unless they are named.
    """
    wanted = config.validation
    if not wanted.every:
        return None
    named = wanted.sources or [name for name in corpus.sources if corpus.held_out(name)]
    return Validator(
        {name: corpus.held_out(name) for name in named},
        [load_task(name) for name in wanted.tasks],
        Tokenizer.from_file(str(corpus.folder / "tokenizer.json")),
        context=config.data.sequence_length,
        rows=wanted.rows,
        per_pass=config.compute.rows_per_pass,
    )


def choose_documents(
    documents: Sequence[Encoded], context: int, rows: int, tokenizer: Tokenizer | None = None
) -> list[Encoded]:
    """Return documents that together make at most ``rows`` windows, and at least one.

    The first that fit, whole; of the first that is too long, what its beginning gives for the
    windows that are left. Without a ``tokenizer`` no document is cut: its bytes would be unknown.
    """
    chosen: list[Encoded] = []
    left, half, long = rows, context // 2, None
    for document in documents:
        ids = document.ids
        windows = math.ceil(max(1, len(ids) - half) / half)
        if len(ids) < 2:
            continue
        if windows > left:
            long = long or document
            continue
        chosen.append(document)
        left -= windows
        if not left:
            break
    if left and long is not None and tokenizer is not None:
        chosen.append(_beginning(long, (left + 1) * half, tokenizer))
    if not chosen:
        raise ConfigError(
            f"validation.rows: expected a held-out document of at most {rows} rows of {context} "
            f"tokens, found none among {len(documents)}; raise rows or hold out more documents"
        )
    return chosen


def _beginning(document: Encoded, tokens: int, tokenizer: Tokenizer) -> Encoded:
    """Return the first ``tokens`` of a longer document, or a few less: no character is cut.

    Of its bytes they stand for the share that they have of the text that the tokens spell, which is
    exact where the tokenizer keeps all of a text.
    """

    def spelled(count: int | None) -> str:
        text: str = tokenizer.decode(document.ids[:count].tolist())
        return text

    whole = max(1, len(spelled(None).encode()))
    uncut = (n for n in range(tokens, max(1, tokens - _CHARACTER), -1) if spelled(n)[-1:] != CUT)
    count = next(uncut, tokens)
    size = document.bytes * len(spelled(count).encode()) / whole
    return Encoded(document.ids[:count], max(1, round(size)))

"""What a run reads: its corpus, the mixture, and what validation scores."""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from monolane.data import Blend, Corpus
from monolane.errors import ConfigError
from monolane.train._config import RunConfig
from monolane.train._tasks import load_task
from monolane.train._validate import Validator


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

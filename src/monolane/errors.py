"""Every error that monolane raises on purpose, in one tree.

A message says what was expected, what was found, and what to do. A fault of the caller or of a file
is one of these; an ``AssertionError`` is a bug of ours.

    MonolaneError
    ├── ConfigError          (ValueError)         config.json, or a config built in code
    ├── CheckpointError      (ValueError)         a weight file: format, names, shapes, sizes
    ├── TextError            (ValueError)         tokenizer files, chat templates, messages
    ├── DataError            (ValueError)         a training corpus, or what it is made from
    ├── ModelNotFoundError   (FileNotFoundError)  neither a folder nor a model that the Hub gives
    ├── RequestError         (ValueError)         options, sampling parameters, ids, prompt length
    ├── EngineClosedError    (RuntimeError)       an engine used after close()
    ├── BackendError         (RuntimeError)       a backend that cannot run here, or failed
    │   └── RankError        (RuntimeError)       a process that shares a request died or stalled
    ├── TrainingError        (RuntimeError)       a run that diverged, or that keeps failing
    └── MissingExtraError    (ImportError)        an optional dependency that is not installed
"""


class MonolaneError(Exception):
    """Base of every error that monolane raises on purpose."""


class ConfigError(MonolaneError, ValueError):
    """A model configuration is incomplete, inconsistent or not supported."""


class CheckpointError(MonolaneError, ValueError):
    """A weight file is malformed, or does not hold the tensors that its config names."""


class TextError(MonolaneError, ValueError):
    """A tokenizer file, a chat template or a list of messages cannot be used."""


class DataError(MonolaneError, ValueError):
    """A prepared corpus is not whole, or a source of text cannot be read or gives nothing."""


class ModelNotFoundError(MonolaneError, FileNotFoundError):
    """The model is neither a folder on this machine nor one that the Hub gives."""


class RequestError(MonolaneError, ValueError):
    """An option or a request asks for something outside its limits; what runs stays usable.

    It is wrong by itself, whatever the model, the files and the machine: ``monolane`` ends with 2
    for it, and with 1 for every other error.
    """


class EngineClosedError(MonolaneError, RuntimeError):
    """The engine was used after it was closed."""


class BackendError(MonolaneError, RuntimeError):
    """A backend cannot run on this machine, or failed while it ran."""


class RankError(BackendError, RuntimeError):
    """One of the processes that decode together died or made no progress; ``rank`` says which."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class TrainingError(MonolaneError, RuntimeError):
    """A training run diverged, or its processes fail again and again."""


class MissingExtraError(MonolaneError, ImportError):
    """An optional dependency is missing; the message holds the command that installs it."""

    def __init__(self, feature: str, extra: str, command: str = "") -> None:
        """``command`` is that of packages which are no extra, and ``extra`` then their name."""
        command = command or f"pip install 'monolane[{extra}]'"
        super().__init__(
            f"{feature} needs packages that are not installed. Install them with: {command}"
        )
        self.extra = extra

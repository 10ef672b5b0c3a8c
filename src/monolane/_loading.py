"""How a model is loaded: each option described once, for all who pass it on or heed it.

``Engine.load``, the command line, the registry of backends, executors, other ranks and the C++ core
have their options from here; docs/loading.md is a table of them. A new option is a field here, and
is heeded where it counts: nobody in between names it.
"""

from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monolane._options import Option, option, options_of
from monolane.errors import BackendError, RequestError

if TYPE_CHECKING:
    from monolane.executor_api import RankAddresses

_ENGINES = ("generate", "chat", "serve")  # commands with an engine of their own
_DRAFTED = (
    "expected backend cpu, for which alone a model or heads draft, got {backend!r}; leave them "
    "out, or name the backend"
)
_EXPERTS = (
    "expected the cpu backend, which alone reads experts from a file; use backend 'cpu', or leave "
    "it out"
)
_RANKED = (
    "expected backend cpu, which alone runs in several processes, got {backend!r} and "
    "{of.rank_count} ranks"
)
_SPREAD = (
    "expected backend cuda in one process, got {backend!r}, ranks of {of.ranks!r} and {value} "
    "devices"
)


@dataclass(frozen=True, slots=True)
class Loading:
    """The options of loading a model; RequestError on construction for a number out of its range.

    ``Engine.load`` takes each as a keyword.
    """

    model: str | Path = option(
        "demo",
        meaning="'demo', 'smollm2' (98 MB, fetched at first use), a folder in Hub layout, a "
        ".gguf file (of several parts the first), a Hub id such as name/model, name/model:Q4_K_M "
        "or name/model@revision, or a name of 'monolane list'",
        told=False,
    )
    backend: str = option(
        "auto",
        help="auto, cuda, cpu or reference; see 'doctor'.",
        commands=(*_ENGINES, "eval", "verify"),
        told=False,
    )
    dtype: str = option(
        "auto",
        help="auto, float32, bfloat16, float16, int8 or int4; float8 on a GPU.",
        commands=(*_ENGINES, "eval", "trace", "doctor"),
        ranks=True,
        page="quantization.md",
    )
    context: int | None = option(
        None,
        help="Tokens a sequence may hold [default: the model's].",
        word=int,
        least=1,
        commands=(*_ENGINES, "eval"),
        ranks=True,
        page="long-context.md",
    )
    max_sequences: int = option(
        1,
        kind="i32",
        meaning="sequences that may be open at once",
        word=int,
        least=1,
        most=64,
        expected="1 to 64",
        ranks=True,
    )
    prefix_cache: str | int = option(
        "auto",
        help="Bytes of earlier sequences to keep, so that what prompts begin with is read "
        "once: auto (a quarter of the free memory, at most 4G or two sequences), off, or a size "
        "such as 512M.",
        commands=_ENGINES,
        told=False,
        page="prefix-cache.md",
    )
    prefix_file: str | Path | None = option(
        None,
        help="Read them from this file, and write them to it at the end.",
        word=Path,
        commands=_ENGINES,
        told=False,
        page="prefix-cache.md",
    )
    _: KW_ONLY
    cache_dtype: str = option(
        "auto",
        after="dtype",
        help="Of keys and values: auto (as goes with the weights), float32, bfloat16, "
        "float16, int8 or int4 (CPU).",
        commands=(*_ENGINES, "eval", "trace"),
        ranks=True,
        refused={
            "cuda": "the cuda backend keeps keys and values in the 16 bits that go with the "
            "weights, got {value!r}; leave it at 'auto', or use backend='cpu'"
        },
        auto="falls",
        error=BackendError,
        page="long-context.md",
    )
    draft: Any = option(  # str, Path or None; executors are given what drafts
        None,
        help="Have a model with the same tokenizer draft tokens (CPU): int4 or int8, this one "
        "in fewer bits; mtp, its own layer that predicts further ahead; another as --model names "
        "it; or a folder of heads, of an EAGLE-3, DFlash or DSpark drafter, or of a Gemma 4 "
        "assistant.",
        commands=(*_ENGINES, "bench", "verify"),
        refused={"cuda": _DRAFTED, "reference": _DRAFTED},
        auto="refuses",
        page="speculation.md",
    )
    lora: Any = option(  # as engine._adapters reads it; executors are given adapters
        None,
        help="Add a LoRA adapter, a folder in PEFT's layout, to the model's matrices (CPU); of "
        "'serve' NAME=FOLDER, for requests whose model is NAME, repeatable.",
        word=Path,
        named=("serve",),
        commands=_ENGINES,
        refused={"cuda": ""},
        alone="each of them has a part of the model's matrices",
        page="adapters.md",
    )
    heads: str | Path | None = option(
        None,
        help="Have heads of 'monolane tune heads' draft tokens (CPU).",
        word=Path,
        commands=_ENGINES,
        told=False,
        refused={"cuda": _DRAFTED, "reference": _DRAFTED},
        auto="refuses",
        page="speculation.md",
    )
    workers: int | None = option(
        None,
        help="Threads that decode (CPU) [default: one per core; see 'doctor'].",
        spelled="threads",
        word=int,
        least=1,
        commands=(*_ENGINES, "bench", "trace"),
        ranks=True,
        refused={
            "cuda": "the plan of a GPU says how many, got {value!r}",
            "reference": "the reference backend has one, got {value!r}",
        },
        auto="opens",
        error=BackendError,
        page="cpu.md",
    )
    expert_memory: str | int | None = option(
        None,
        kind="i64",
        meaning="bytes for experts, of all workers of a rank; 0 where all are in memory",
        help="Bytes for the experts of a mixture that are used most, such as 8G; others are "
        "read from a file (CPU) [default: all are in memory].",
        ranks=True,
        refused={"cuda": _EXPERTS, "reference": _EXPERTS},
        error=BackendError,
        page="cpu.md",
    )
    ranks: "int | RankAddresses" = option(
        1,
        kind="i32",
        meaning="processes that decode together",
        help="Processes that decode together, a share of the model's lanes each (CPU): their "
        "number, or host:port,host:port where 'monolane rank' runs; this process is the first.",
        commands=(*_ENGINES, "bench"),
        ranks=True,
        refused={"cuda": _RANKED, "reference": _RANKED},
        page="ranks.md",
    )
    devices: int = option(
        1,
        help="GPUs that decode together, a share of the model's lanes each (CUDA).",
        word=int,
        least=1,
        expected="a number of GPUs from 1 on",
        commands=_ENGINES,
        refused={"cpu": _SPREAD, "reference": _SPREAD},
        page="monokernel.md",
    )

    def __post_init__(self) -> None:
        for name, described in OPTIONS.items():
            described.check(name, getattr(self, name))

    @property
    def rank_count(self) -> int:
        """How many ranks there are, wherever they run."""
        return self.ranks if isinstance(self.ranks, int) else 1 + len(self.ranks.addresses)

    def given(self) -> dict[str, Any]:
        """Return the options that are not at their defaults."""
        values = {x.name: (getattr(self, x.name), x.default) for x in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    def check_backend(self, backend: str) -> None:
        """Raise what a backend's name alone shows: that it does not honour an option given."""
        for name in self.given():
            if backend not in OPTIONS[name].honoured_by:
                raise OPTIONS[name].refusal(name, backend, self)
            if (why := OPTIONS[name].alone) and self.rank_count > 1:
                raise RequestError(
                    f"{name}: expected 1 rank, got {self.rank_count}: {why}; leave {name} or "
                    "ranks out"
                )

    @staticmethod
    def of(backend: str, dtype: str, context: int, slots: int, more: dict[str, Any]) -> "Loading":
        """Return what ``told`` told an executor; raises what the backend does not honour."""
        found = Loading(dtype=dtype, context=context, max_sequences=slots, **more)
        found.check_backend(backend)
        return found

    def told(self) -> dict[str, Any]:
        """Return what an executor is told, as its keywords: for it, sequences are slots."""
        found = {name: value for name, value in self.given().items() if OPTIONS[name].told}
        found.pop("max_sequences", None)
        return found | {"dtype": self.dtype, "context": self.context, "slots": self.max_sequences}

    def crossing(self) -> dict[str, Any]:
        """Return what other ranks are told: plain values, of which ``Loading`` makes the same."""
        return {name: getattr(self, name) for name, x in OPTIONS.items() if x.ranks}


OPTIONS: dict[str, Option] = options_of(Loading)

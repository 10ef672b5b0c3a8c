"""A native executor for one rank of a model: the plan, its part of the weights, its cores."""

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from monolane import _env
from monolane._core import Executor as NativeExecutor
from monolane._core import kernels
from monolane._processor import read_processor
from monolane.cpu._arithmetic import find_arithmetic
from monolane.cpu._errors import our_errors
from monolane.cpu._weights import block_formats, convert, hand_over, keeps_floats
from monolane.errors import BackendError
from monolane.executor_api import Loading, pack_setup
from monolane.model import ACTIVATIONS, ModelConfig, Role, Weights, in_lanes
from monolane.plan import MAX_WIDTH, Plan, build, cpu, to_arrays

MOST_WORKERS = 1024


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is run on this machine: plain values, the same in every rank."""

    loading: Loading  # with numbers of workers, of all ranks together, and of ranks
    isa: str
    lanes: int = 1  # into which a dense model is cut
    # For measurements: seconds until a rank sees what another published, and whether phases take
    # the times that they are told.
    link_delay: float = 0.0
    timed: bool = False
    apart: bool = False  # ranks share no memory: each may have a host of its own

    @property
    def ranks(self) -> int:
        """How many there are."""
        assert isinstance(self.loading.ranks, int)
        return self.loading.ranks

    @property
    def workers(self) -> int:
        """Threads, of all ranks together."""
        assert self.loading.workers is not None
        return self.loading.workers

    def wish(self) -> dict[str, Any]:
        """Return what another rank is told, as JSON has it."""
        own = {x.name: getattr(self, x.name) for x in fields(self) if x.name != "loading"}
        return own | {"loading": self.loading.crossing()}

    @staticmethod
    def of_wish(wish: dict[str, Any]) -> "Setting":
        """Return what ``wish`` told; TypeError or KeyError if that is none."""
        return Setting(**{**wish, "loading": Loading(**wish["loading"])})

    def cores(self, rank: int) -> list[int]:
        """Return the processors of a rank's workers; none where Linux had better choose them.

        It does where ranks are apart: none knows which others this host has.
        """
        if self.apart:
            return []
        each = self.workers // self.ranks
        return read_processor().place(self.workers)[rank * each : (rank + 1) * each]


def check_workers(workers: object, ranks: int) -> None:
    """BackendError where ranks cannot have so many threads together, as many of them each."""
    if type(workers) is not int or not 1 <= workers <= MOST_WORKERS:
        raise BackendError(f"workers: expected 1 to {MOST_WORKERS}, got {workers!r:.80}")
    if workers % ranks:
        raise BackendError(
            f"workers: expected a multiple of the {ranks} ranks, which have as many threads each, "
            f"got {workers}"
        )


class Native:
    """The core with a model in it, before and after its weights are converted.

    rank      which of the setting's ranks
    segment   file descriptor of what rank 0 shares; -1 in rank 0

    Errors of ours where the core refuses: no memory for what ranks share, no room for experts.
    """

    @our_errors()
    def __init__(
        self, weights: Weights, setting: Setting, rank: int = 0, segment: int = -1
    ) -> None:
        dense, loading = weights.config, setting.loading
        assert loading.context is not None
        config = in_lanes(dense, setting.lanes) if dense.num_lanes == 1 else dense
        blocks = block_formats(weights)
        arithmetic = find_arithmetic(
            loading.dtype, config.stored_dtype, blocks, loading.cache_dtype
        )
        self.dtype = arithmetic.name
        handover = hand_over(weights, config, arithmetic)
        kept = loading.dtype == "float32" or bool(blocks)
        self.plan: Plan = build(
            config,
            cpu(setting.workers),
            config.dtype if kept else self.dtype,
            max_width=_pass_width(config, self.dtype, setting.isa),
            context=loading.context,
            keys=arithmetic.keys.name,
            formats=handover.formats if blocks or keeps_floats(config) else None,
        )
        arrays = to_arrays(self.plan)
        self.identity = hashlib.sha256(arrays.header.tobytes() + arrays.modules.tobytes())
        self.identity.update(arrays.phases.tobytes())
        self.identity.update(arrays.shares.tobytes())
        formats = (self.dtype, arithmetic.activation, arithmetic.keys.name)
        self.identity.update(" ".join((setting.isa, *formats)).encode())
        self._sources: Mapping[tuple[Role, int], list[npt.NDArray[np.generic]]] = handover.sources
        with _expert_file(loading.expert_memory is not None) as file:
            self.core = NativeExecutor(
                header=arrays.header.tobytes(),
                modules=arrays.modules.tobytes(),
                phases=arrays.phases.tobytes(),
                shares=arrays.shares.tobytes(),
                weights=handover.table,
                isa=setting.isa,
                setup=pack_setup(
                    loading,
                    activation=ACTIVATIONS.index(arithmetic.activation),
                    kv_format=arithmetic.keys.code,
                    rank=rank,
                    segment=segment,
                    delay_ns=round(setting.link_delay * 1e9),
                    timed=setting.timed,
                    apart=setting.apart,
                    expert_file=-1 if file is None else file.fileno(),
                ),
                cores=setting.cores(rank),
            )

    @our_errors()
    def convert(self) -> None:
        """Have the workers convert their rows of what is not stored as it is used."""
        convert(self.core, self.plan, self._sources)
        self._sources = {}


def _expert_file(wanted: bool) -> AbstractContextManager[IO[bytes] | None]:
    """Make a file for experts in the cache folder, without a name; none if all are in memory.

    The core keeps it open for itself.
    """
    if not wanted:
        return nullcontext()
    from tempfile import TemporaryFile  # which takes 5 ms to import

    folder = _env.CACHE.get() / "experts"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return TemporaryFile(dir=folder)
    except OSError as error:
        raise BackendError(
            f"expert_memory: expected to make a file in {folder}, got: {error.strerror}; have "
            f"{_env.CACHE.name} name a folder on a disk with room"
        ) from None


def _pass_width(config: ModelConfig, dtype: str, isa: str) -> int:
    """Return how many token positions a pass may have, which costs memory for each."""
    pays = config.experts is not None or (dtype == "bfloat16" and kernels.wide_bf16(isa))
    return Plan.widest(config) if pays else MAX_WIDTH

"""The native executor with a model in it: builds the plan, hands over weights, runs epochs."""

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane import _core, _env
from monolane._core import kernels
from monolane._processor import read_processor
from monolane.cpu._assistant import add_assistant
from monolane.cpu._drafters import add_drafter
from monolane.cpu._errors import our_errors
from monolane.cpu._local_ranks import Ranks
from monolane.cpu._native import Native, Setting, check_workers
from monolane.cpu._rank_messages import STALLED
from monolane.cpu._ranked_kv import RankParts
from monolane.cpu._remote_ranks import JoinedRanks
from monolane.cpu._weights import ROLES, check_config
from monolane.errors import BackendError, RankError, RequestError
from monolane.executor_api import (
    SPAN,
    Advance,
    Executor,
    Guide,
    Kept,
    KeptBytes,
    Loading,
    RankAddresses,
    TokenEvent,
    bytes_of,
    check_adapt,
    pack,
    unpack_tokens,
)
from monolane.model import (
    Adapter,
    Assistant,
    Dflash,
    Eagle,
    Heads,
    ModelConfig,
    Weights,
    digest,
    find_lanes,
)
from monolane.plan import pass_cost

log = logging.getLogger("monolane.cpu")


class CpuExecutor(Executor):
    """A model on this machine's cores: C++ threads, pinned, on a static plan.

    dtype       "auto" (as stored), "float32", "bfloat16", "float16", "int8" or "int4"; "auto" alone
                where matrices are stored as GGUF's blocks
    isa         instruction set; None: what MONOLANE_ISA says, else the best that this machine has
    lanes       into which a dense model is cut; None: one for each rank
    patience    seconds that a wait for another rank may see no progress, until the epoch fails
    link_delay  seconds until a rank sees what another published; to measure what a link would cost
    timed       phases take the times of ``set_times``; to measure what an exchange hides
    draft_dtype as dtype, of the model that drafts
    options     others of ``Loading``; ``draft`` is weights, heads, a drafter or an assistant,
                ``lora`` adapters, ``expert_memory`` bytes

    A rank that dies or stalls ends the epoch with RankError. All slots are empty then, and the next
    epoch starts the ranks again.
    """

    name = "cpu"
    drafts = True
    keeps_prefixes = True
    has_hidden = True

    def __init__(
        self,
        weights: Weights,
        dtype: str = "auto",
        *,
        context: int,
        slots: int,
        isa: str | None = None,
        lanes: int | None = None,
        patience: float = 10.0,
        link_delay: float = 0.0,
        timed: bool = False,
        draft_dtype: str = "auto",
        **options: Any,
    ) -> None:
        check_config(weights.config)
        loading = Loading.of(self.name, dtype, context, slots, options)
        ranks, draft = loading.ranks, loading.draft
        self._addresses = ranks if isinstance(ranks, RankAddresses) else None
        if isinstance(ranks, RankAddresses):
            hosts = 1 if ranks.on_this_host else 1 + len(ranks.addresses)
            ranks = 1 + len(ranks.addresses)
        else:
            hosts = 1
        if draft is not None and ranks > 1:
            raise RequestError(
                f"draft: expected 1 rank, in which alone a draft model or heads run, got {ranks}"
            )
        lanes = find_lanes(weights.config, ranks, lanes, "ranks")
        self._adapters: tuple[Adapter, ...] = loading.lora or ()
        if self._adapters and lanes != weights.config.num_lanes:
            raise BackendError(
                f"lora: expected the {weights.config.num_lanes} lanes that the adapter's model "
                f"has, got {lanes}; leave lanes out"
            )
        _check_ranks(ranks, weights, self._addresses)
        self.workers = _find_workers(loading.workers, ranks, hosts)
        _warn_of_many(loading.workers, hosts)
        self.isa = find_isa(isa)
        self.context, self.slots, self.cache_dtype = context, slots, loading.cache_dtype
        self.keeps_bytes = ranks == 1  # the other ranks' keys stay with them
        if self._addresses is not None and (link_delay or timed):
            raise BackendError("link_delay, timed: expected ranks of this host, got addresses")
        if link_delay and ranks == 1:
            raise RequestError(
                "link_delay: expected 2 or more ranks, got 1: the delay is that of a link between "
                "ranks; give ranks, or leave it out"
            )
        self._setting = Setting(
            replace(loading, workers=self.workers, ranks=ranks, draft=None, lora=None),
            self.isa,
            lanes,
            link_delay,
            timed,
            apart=self._addresses is not None,
        )
        self._patience = patience
        self._weights = weights if ranks > 1 else None  # to start the ranks again
        self._digest = "" if self._addresses is None else digest(weights)
        self._ranks: Ranks | JoinedRanks | None = None
        self._lost = False
        self._open(weights)
        if isinstance(draft, Heads):
            self._add_heads(draft, weights)
        elif isinstance(draft, Eagle | Dflash):
            add_drafter(self._core, draft, weights.config, lanes)
            self.drafter = "heads"
        elif isinstance(draft, Assistant):
            add_assistant(self._core, draft, weights.config, lanes)
            self.drafter = "heads"
        elif draft is not None:
            self._add_draft_model(draft, draft_dtype)

    def _add_draft_model(self, weights: Weights, dtype: str) -> None:
        check_config(weights.config)
        if with_states := weights.config.layers_with_states:
            raise BackendError(
                "draft: expected a model without states of a fixed size, which cannot go back when "
                f"a draft is wrong, got a {weights.config.family} model with {with_states} layers "
                "that have one; leave it out"
            )
        loading = replace(
            self._setting.loading,
            dtype=dtype,
            context=min(self.context, weights.config.longest_context),
            cache_dtype="auto",
            expert_memory=None,
        )
        lanes = weights.config.num_lanes
        native = Native(weights, replace(self._setting, loading=loading, lanes=lanes))
        native.convert()
        with our_errors():
            self._core.set_draft_model(native.core)
        self.cache_bytes += native.core.kv_bytes
        self.drafter = "draft" if weights.config.behind is None else "heads"

    def _add_heads(self, heads: Heads, weights: Weights) -> None:
        heads.check(weights.config, "heads")
        with our_errors():
            self._core.set_heads(
                heads.gate, heads.up, heads.down, heads.head, heads.tokens, heads.norm_eps
            )
        self.drafter = "heads"

    def _open(self, weights: Weights) -> None:
        native = Native(weights, self._setting)
        self.plan, self.dtype, self._core = native.plan, native.dtype, native.core
        self._identity = native.identity
        self.cache_bytes = self._core.kv_bytes * (1 if self._setting.apart else self._setting.ranks)
        self._parts = RankParts(native.core)
        self.tail_positions = self._tail_positions(weights.config)
        for number, adapter in enumerate(self._adapters, 1):
            for (role, layer), part in adapter.parts.items():
                up = np.ascontiguousarray(part.up.swapaxes(1, 2))  # [L, r, R]
                self._core.add_adapter(number, layer, ROLES.index(role), part.down, up)
        ranks = self._start(weights)
        if ranks is None:
            native.convert()
            return
        self._ranks = ranks
        try:
            native.convert()  # while the others load
            self._ranks.wait(self._patience)
        except BaseException:
            self._ranks.close()
            del native  # whoever keeps the error keeps this frame, and would keep the segment
            raise
        self._ranks.watch(self._core, self._patience)

    def _tail_positions(self, config: ModelConfig) -> int:
        """Return how many positions take as many bytes as a tail, at most."""
        windows = [layer.window or 0 for layer in config.layers]
        rings = max(windows) if self._core.has_rings else 0
        position: int = self.plan.position_bytes
        return rings + -(-self._core.state_bytes // max(position, 1))

    def _start(self, weights: Weights) -> Ranks | JoinedRanks | None:
        """Have the ranks 1.. load, if there are any."""
        if self._addresses is not None:
            return JoinedRanks(self._addresses, self._setting, self._digest, self._patience)
        if weights.source is None or self._setting.ranks == 1:
            return None
        return Ranks(weights.source, repr(weights.config), self._setting, self._core.segment)

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of the ranks of this host that this process started, itself first."""
        return (os.getpid(), *(self._ranks.processes if self._ranks is not None else ()))

    @property
    def expert_counts(self) -> tuple[int, int, int]:
        """How often an expert was in memory, was in the file alone, and was brought from there.

        Of all workers together, each of which has its own rows of every expert.
        """
        found: tuple[int, int, int] = self._core.expert_counts
        return found

    @property
    def converted_bytes(self) -> int:
        """Bytes of the workers' own copies of weights; 0 where all are used as they are stored."""
        return self._core.converted_bytes

    def length(self, slot: int) -> int:
        """Return the number of tokens in a slot."""
        with our_errors():
            return self._core.length(slot)

    def is_free(self, slot: int) -> bool:
        """Tell whether no epoch uses a slot; with ranks all is done between epochs."""
        with our_errors():
            return self.keeps_bytes and self._core.is_free(slot)

    def truncate(self, slot: int, length: int) -> None:
        """Take back all tokens of a slot from ``length`` on."""
        with our_errors():
            self._core.truncate(slot, length)

    def adapt(self, slot: int, adapter: int) -> None:
        """Have the sequence of an empty slot be that of an adapter."""
        if not adapter and not self._adapters:  # as it is
            return
        check_adapt(self.length(slot), adapter, len(self._adapters))
        with our_errors():
            self._core.give_adapter(slot, adapter)

    def copy(self, source: int, target: int) -> None:
        """Make a slot hold what another holds."""
        self._need_ranks()
        with our_errors():
            self._core.copy(source, target)
        self._check_lost()

    def save(self, slot: int, begin: int, end: int) -> Kept:
        """Return what a slot holds of positions ``begin`` to ``end - 1``."""
        if self.keeps_bytes:
            with our_errors():
                return KeptBytes(*self._core.save(slot, begin, end))
        self._need_ranks()
        with our_errors():
            kept = self._parts.save(slot, begin, end)
        self._check_lost()
        return kept

    def restore(self, slot: int, kept: Kept, count: int) -> None:
        """Put the first ``count`` positions of what was saved behind those of a slot."""
        if self.keeps_bytes:
            found = bytes_of(kept)
            tail = found.tail if count == found.positions else None
            with our_errors():
                self._core.restore(slot, count, found.rows, tail)
            return
        self._need_ranks()
        with our_errors():
            self._parts.restore(slot, kept, count)
        self._check_lost()

    def identity(self) -> str:
        """Return a hash of plan, formats, instruction set and the core itself."""
        found = self._identity.copy()
        found.update(Path(_core.__file__).read_bytes())  # another build may sum in another order
        return found.hexdigest()

    def logits(
        self,
        slot: int,
        token_ids: Sequence[int],
        states: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Feed tokens; return their logits, float32 [T, V].

        ``states`` [T, D] are for layers that predict further ahead: see ``ReferenceModel``.
        """
        self._need_ranks()
        with our_errors():
            found: npt.NDArray[np.float32] = self._core.logits(slot, list(token_ids), states)
        self._check_lost()
        return found

    def hidden(
        self,
        slot: int,
        token_ids: Sequence[int],
        states: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Feed tokens; return what the head reads of each, normed, float32 [T, D]."""
        self._need_ranks()
        with our_errors():
            found: npt.NDArray[np.float32] = self._core.hidden(slot, list(token_ids), states)
        self._check_lost()
        return found

    def start(self, advances: Sequence[Advance]) -> None:
        """Begin an epoch on the core's own threads."""
        packed = pack(advances)
        self._need_ranks()
        with our_errors():
            self._core.start(*packed.lists())

    def join(self, advances: Sequence[Advance]) -> bool:
        """Have more slots take part in the epoch from its next pass on; return whether they do."""
        packed = pack(advances)
        with our_errors():
            return self._core.join(*packed.lists())

    def leave(self, slot: int) -> bool:
        """Have a slot take no part in the next pass. Returns True."""
        with our_errors():
            self._core.leave(slot)
        return True

    def read(self, seconds: float) -> bool:
        """Wait for tokens, and keep them; return whether the epoch is over."""
        over = self._core.read(int(seconds * 1000))
        if over:
            self._check_lost()
        return over

    def take(self) -> list[TokenEvent]:
        """Return the tokens kept so far, once."""
        return unpack_tokens(self._core.take())

    def guide(self, slot: int, guide: Guide) -> None:
        """Say what may come next in a guided slot."""
        with our_errors():
            self._core.guide(slot, guide.forced, guide.mask)

    def interrupt(self) -> None:
        """Ask the epoch to end within one pass."""
        self._core.interrupt()

    def bytes_per_token(self, length: int) -> int:
        """Bytes that a pass of one token streams behind ``length`` tokens, by the plan."""
        return pass_cost(self.plan, 1, length).bytes

    def script(self, slot: int, drafts: Sequence[int] = (), draws: Sequence[int] = ()) -> None:
        """Say what is drafted in a slot, or drawn, by position in the sequence."""
        with our_errors():
            self._core.script(slot, list(drafts), list(draws))

    def pass_costs(self) -> dict[int, float]:
        """Seconds that a pass of each width has cost, of passes that decode; between epochs."""
        return {width: cost / 1e9 for width, cost in self._core.pass_costs()}

    def set_trace(self, on: bool) -> None:
        """From the next epoch on, note when each worker is in which phase, or do not."""
        with our_errors():
            self._core.set_trace(on)

    def take_spans(self) -> npt.NDArray[np.void]:
        """Return and forget the notes of the traced epochs: SPAN records."""
        with our_errors():
            return self._core.take_spans().view(SPAN.dtype)

    def set_times(
        self, times: npt.NDArray[np.int64], ring_ns: int, *, computes: bool = True
    ) -> None:
        """Say how long phases take from now on: int64 [phases, W, 4], ns.

        As in csrc/ranks/simulated_time.h.

        With ``computes`` a phase computes and then waits until its time is over, so tokens are the
        model's. Without, it reads what others sent and waits: what it sends are zeros.
        """
        with our_errors():
            self._core.set_times(np.ascontiguousarray(times).tobytes(), ring_ns, computes)

    def set_links(self, hops_ns: Sequence[int]) -> None:
        """Say when other ranks see what each phase, and last a pass, wrote: ns, [phases + 1]."""
        with our_errors():
            self._core.set_links(list(hops_ns))

    def close(self) -> None:
        """End the ranks' processes, if there are any."""
        if self._ranks is not None:
            self._core.interrupt()
            self._ranks.close()

    def _check_lost(self) -> None:
        """RankError if a rank was lost: then the ranks are of no use, nor what slots hold."""
        rank = self._core.lost
        if rank < 0 or self._lost or self._ranks is None:
            return
        self._lost = True
        self.losses += 1
        self._parts.end()
        fate = self._ranks.fate(rank)
        if fate.endswith(STALLED):
            fate = f"{fate} for {self._patience:g} s"
        self._ranks.close()
        for slot in range(self.slots):
            self._core.truncate(slot, 0)
        raise RankError(f"rank {rank} {fate}; ask again, which starts the ranks anew", rank)

    def _need_ranks(self) -> None:
        """Start the ranks again if one was lost."""
        if self._lost and self._weights is not None:
            self._open(self._weights)
            self._lost = False


def _find_workers(workers: int | None, ranks: int, hosts: int) -> int:
    """Return the number of threads of all ranks: as many of each, whatever the cores.

    Of other hosts it is taken that they have as many cores as this.
    """
    if workers is None:
        return max(1, read_processor().workers * hosts // ranks) * ranks
    check_workers(workers, ranks)
    return workers


def _warn_of_many(workers: int | None, hosts: int) -> None:
    """Tell who asks for more threads than can run at once: each waits for all in every phase."""
    processor = read_processor()
    share = processor.threads if processor.share is None else math.ceil(processor.share)
    here, most = (workers or 0) // hosts, min(processor.threads, share)
    if here > most:
        log.warning(
            "workers: %d threads on %d that run at once wait for each other and are many times "
            "slower; give %d, or leave it out",
            here,
            most,
            processor.workers,
        )


def _check_ranks(ranks: int, weights: Weights, addresses: RankAddresses | None) -> None:
    if ranks > 1 and weights.source is None and addresses is None:
        raise BackendError(
            "ranks: expected weights that lie in files, which every rank opens for itself; save "
            "the model and load it from there, or use 1"
        )


def find_isa(name: str | None = None) -> str:
    """Return the instruction set of a name; None: what MONOLANE_ISA says, or the best here.

    BackendError says which run on this machine.
    """
    asked, said = (name, "isa") if name is not None else (_env.ISA.get(), _env.ISA.name)
    if name is None and asked == _env.ISA.default:
        return kernels.best()
    known = [*kernels.supported(), *kernels.emulated()]
    if asked not in known:
        raise BackendError(
            f"{said}: expected an instruction set that runs here, one of {', '.join(known)}, got "
            f"{asked!r}; give one, or leave it out"
        )
    return asked

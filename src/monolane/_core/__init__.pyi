"""Native core of monolane."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

from monolane._core import kernels as kernels


def gumbel_noise(seed: int, position: int, first_token: int, count: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C')]:
    """
    Gumbel noise, float32 [count], of the tokens first_token .. first_token + count - 1 at a position under a 64-bit seed. Defined in docs/sampling.md.
    """

def choose(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int, mask: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> int:
    """
    The token that executors draw from logits, float32 [V], as docs/sampling.md defines it. `mask`, uint32 [ceil(V / 32)]: bit t % 32 of word t / 32 says whether token t may come.
    """

def tell_of_file_faults() -> None:
    """
    From now on, have a read behind the end of a mapped file name the file and end the process with 1, unless the process has a handler of its own for SIGBUS.
    """

class WeightTable:
    """Where an executor finds each weight; keeps them alive."""

    def __init__(self, layers: int) -> None: ...

    def set_matrix(self, role: int, layer: int, values: object, scales: object | None, rows: int, columns: int, format: int, wanted: int, column_parts: int = 1, copies: int = 1, block: int = 1, expert: int = 0, factor: float = 1.0) -> None: ...

    def set_vector(self, role: int, layer: int, values: object) -> None: ...

class Executor:
    """Runs a plan on the cores of this machine."""

    def __init__(self, header: bytes, modules: bytes, phases: bytes, shares: bytes, weights: object, isa: str, setup: bytes, cores: Sequence[int]) -> None: ...

    def follow(self) -> None:
        """
        In another rank than 0: take part in all epochs of rank 0, on the workers' threads.
        """

    def watch(self, sockets: Sequence[int], patience_ns: int) -> None:
        """
        In rank 0, before the first epoch: sockets to the ranks 1.., each closed by the end of its rank, and how long a wait for another rank may see no progress.
        """

    def follows(self, milliseconds: int) -> bool:
        """
        Wait until rank 0 has ended what `follow` began, at most so long; return whether it still goes on.
        """

    def connect(self, sockets: Sequence[int], patience_ns: int) -> None:
        """
        Where ranks are apart, before the first epoch: TCP connections to all ranks, -1 for this one, and how long a wait for another rank may see no progress.
        """

    def fault(self, rank: int) -> str:
        """
        What became of a rank that is apart, a verb; empty: it made no progress.
        """

    def set_links(self, hops_ns: Sequence[int]) -> None:
        """
        In rank 0, for measurements: ns until other ranks see what each phase, and a pass, wrote.
        """

    def set_times(self, times: bytes, ring_ns: int, computes: bool) -> None:
        """
        In rank 0, where phases are timed: PhaseTime [phases, workers]; see csrc/ranks/simulated_time.h.
        """

    @property
    def segment(self) -> int:
        """File descriptor of what the ranks share; -1: there is one rank."""

    @property
    def lost(self) -> int:
        """
        The first rank that died or made no progress, which ended the epoch; -1: none.
        """

    @property
    def expert_counts(self) -> tuple[int, int, int]:
        """
        How often an expert was in memory, was read from the file, and was brought to stay, over all workers.
        """

    def convert(self, phase: int, matrix: int) -> None:
        """
        Have the workers make their copies of a phase's matrix, if it is stored in another format than it is multiplied in, or cut into lanes otherwise than by rows; for each matrix, before the first epoch. What set_matrix was given for it is not read again.
        """

    def length(self, slot: int) -> int: ...

    def is_free(self, slot: int) -> bool:
        """
        Whether no epoch uses a slot: then it may be truncated, saved and restored while one runs, by any thread.
        """

    def truncate(self, slot: int, length: int) -> None: ...

    def copy(self, source: int, target: int) -> None: ...

    @property
    def has_rings(self) -> bool: ...

    @property
    def state_bytes(self) -> int:
        """Bytes that states of a fixed size add to a tail; 0: there are none."""

    def save(self, slot: int, begin: int, end: int) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order='C', device='cpu')], Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')] | None]:
        """
        Return what a slot holds of positions begin .. end - 1: rows, uint8 [U, T, r], and the tail, of rings and states, or None where there are neither or they are beyond it.
        """

    def restore(self, slot: int, count: int, rows: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], tail: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None:
        """Put the first positions of what was saved behind those of a slot."""

    def keep(self, name: int, slot: int, begin: int, end: int) -> tuple[int, int]:
        """
        Have every rank keep its part of positions begin .. end - 1; return, of all ranks, the bytes of a position's rows and those of the tail, -1 where there is none.
        """

    def cut(self, name: int, origin: int, begin: int, end: int, tail_origin: int) -> None:
        """
        Keep a copy of a part of what is kept, with the tail of that or of another; -1: none.
        """

    def resume(self, name: int, slot: int, count: int, has_tail: bool) -> None:
        """Put the first positions of what the ranks keep behind those of a slot."""

    def drop(self, name: int) -> None:
        """Keep that no longer."""

    def logits(self, slot: int, tokens: Sequence[int], states: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None = None) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C')]:
        """
        Feed tokens, and states [T, D] where the plan reads them; return logits, float32 [T, V].
        """

    def hidden(self, slot: int, tokens: Sequence[int], states: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None = None) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C')]:
        """
        Feed tokens; return what the head reads of each, normed and of lanes the mean, float32 [T, D].
        """

    def start(self, advances: bytes, tokens: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], stops: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], biases: bytes, history: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], earlier: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Begin an epoch: AdvanceRecord of each slot, and the lists of which they name parts.
        """

    def join(self, advances: bytes, tokens: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], stops: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], biases: bytes, history: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], earlier: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> bool:
        """
        Have more slots take part in the epoch from its next pass on; return whether they do.
        """

    def leave(self, slot: int) -> None:
        """Have a slot take no part in the epoch's next pass."""

    def guide(self, slot: int, forced: Sequence[int], mask: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None:
        """
        Say what comes next in a guided slot: tokens that are given, then a draw under a mask, uint32 [ceil(V / 32)], bit t % 32 of word t / 32 for token t; None: the answer ends.
        """

    def read(self, milliseconds: int) -> bool:
        """Wait for tokens, and keep them; return whether the epoch is over."""

    def take(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]:
        """
        Return and forget the tokens kept so far: the bytes of TokenEvent structs.
        """

    def interrupt(self) -> None:
        """Ask the epoch to end within one pass; read it to its end."""

    def set_draft_model(self, model: object) -> None:
        """
        Have another executor, with as many workers and slots, draft tokens for this one, on this one's threads.
        """

    def set_heads(self, gate: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], down: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], head: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], norm_eps: float) -> None:
        """
        Have heads draft tokens, see csrc/draft/heads_drafter.h; what is given is copied.
        """

    def add_adapter(self, adapter: int, layer: int, role: int, down: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        Have an adapter, counted from 1 on, add B A to a matrix, see csrc/ops/adapters.h; what is given is copied.
        """

    def give_adapter(self, slot: int, adapter: int) -> None:
        """Have an empty slot's sequence be that of an adapter; 0: of none."""

    def set_eagle(self, matrices: Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], int]], vectors: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Sequence[int], layers: Sequence[int], norm_eps: float, amplitude: float, norm_joins: bool) -> None:
        """
        Have an EAGLE-3 drafter draft tokens, see csrc/bind/drafter_weights.h; what is given is copied.
        """

    def set_dflash(self, matrices: Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], int]], vectors: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]], sizes: Sequence[int], windows: Sequence[int], layers: Sequence[int], norm_eps: float, amplitude: float, causal: bool) -> None:
        """
        Have a DFlash drafter draft tokens, see csrc/bind/drafter_weights.h; what is given is copied.
        """

    def set_assistant(self, format: int, layers: object, matrices: object, ordering: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], chosen: int, final_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], norm_eps: float) -> None:
        """
        Have an assistant draft tokens, see csrc/bind/assistant_weights.h; matrices stay where they are.
        """

    def script(self, slot: int, drafts: Sequence[int], draws: Sequence[int]) -> None:
        """
        By position of a slot's sequence, what is drafted, and what is drawn in the model's stead; for tests and measurements.
        """

    def pass_costs(self) -> list[tuple[int, float]]:
        """
        Nanoseconds of a pass of each width that was run, of passes that decode.
        """

    def set_trace(self, on: bool) -> None: ...

    def take_spans(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]:
        """
        Return and forget when each worker was in which phase: the bytes of Span structs.
        """

    @property
    def kv_bytes(self) -> int: ...

    @property
    def converted_bytes(self) -> int: ...

class SuffixDrafter:
    """Guesses the next tokens from what followed the same ones before."""

    def __init__(self, max_tokens: int) -> None:
        """Remember the newest max_tokens tokens, rounded up to a power of two."""

    def append(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """The text goes on with tokens that nobody drew, int32 [T]."""

    def observe(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """The text goes on with tokens that the model drew, int32 [T]: learn."""

    def add_text(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Another text to copy from, int32 [T], before the first append."""

    def draft(self, most: int) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]]:
        """
        Return tokens that may come next, int32 [N], and of each the chance that it is drawn if those before it are, float32 [N].
        """

    def clear(self) -> None:
        """Forget the texts, and keep the chances."""

    @property
    def length(self) -> int:
        """Tokens of the sequence, since clear."""

    @property
    def bytes(self) -> int:
        """Memory of the index."""

    @property
    def steps(self) -> int:
        """Places and tokens looked at, ever."""

class PassCost:
    """What passes take by their rows, as far as it is known."""

    def __init__(self, max_width: int, read: Sequence[float] = []) -> None:
        """
        ``read``: weights that a pass is expected to read by its rows, beside those of one row.
        """

    def add(self, width: int, nanoseconds: int) -> None:
        """A pass of so many rows took that."""

    def of(self, width: int) -> float:
        """Return expected nanoseconds, 0 if nothing is known."""

class SpeculationReplay:
    """
    How many drafts of one sequence are verified, without a model and a clock.
    """

    def __init__(self, max_width: int, context: int, read: Sequence[float] = []) -> None:
        """
        Weights that a pass is expected to read by its rows, beside those of one row.
        """

    def begin(self, tokens: Sequence[int]) -> None:
        """A sequence begins with tokens that were given."""

    def draft(self, most: int, lookup_ns: int) -> tuple[list[int], int] | None:
        """
        Return up to ``most`` drafted tokens, and how many of them the pass verifies; None where nothing is looked for. Looking takes ``lookup_ns``.
        """

    def draft_jointly(self, most: int, block: int, cost_ns: float, stated: float) -> int:
        """
        Return how many tokens are drafted of ``most`` by a drafter that takes ``cost_ns`` for each, or for a block of so many if ``block`` is not 0, and is as sure of all.
        """

    def draw(self, tokens: Sequence[int], pass_ns: int) -> None:
        """The pass drew these tokens: drafted ones that are right, and one more."""

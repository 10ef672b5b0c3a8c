"""What workers did, phase by phase: an executor's own clock read, or a simulated one.

One form for both, so that a run and its forecast can be laid side by side in one viewer.
"""

from dataclasses import dataclass
from typing import Any

from monolane.plan._phase import Phase


@dataclass(frozen=True, slots=True)
class Slice:
    """A worker in a phase: it waits from ``arrived`` to ``begun``, works until ``ended`` (ns)."""

    worker: int
    phase: Phase
    arrived: int
    begun: int
    ended: int
    bytes: int  # streamed by this worker

    @property
    def gb_per_s(self) -> float:
        """Bytes by the time at work."""
        return self.bytes / max(1, self.ended - self.begun)


@dataclass(frozen=True, slots=True)
class Trace:
    """The slices of the passes of one epoch, each of one token."""

    workers: int
    passes: int
    slices: tuple[Slice, ...]

    def chrome(self) -> dict[str, Any]:
        """Return it as Chrome's trace event format, which Perfetto reads: a track per worker."""
        start = min((piece.arrived for piece in self.slices), default=0)
        events = [_track(worker) for worker in sorted({piece.worker for piece in self.slices})]
        for piece in self.slices:
            events += _events(piece, start)
        return {"displayTimeUnit": "ns", "traceEvents": events}


@dataclass(frozen=True, slots=True)
class KindSummary:
    """All phases of one kind, per token; times are means over the workers."""

    kind: str
    busy_us: float
    waiting_us: float
    bytes: float  # of all workers
    gb_per_s: float  # while at work

    @property
    def waiting_share(self) -> float:
        """Part of the time that goes by in waits."""
        return self.waiting_us / max(self.waiting_us + self.busy_us, 1e-9)


def summarise(trace: Trace) -> list[KindSummary]:
    """Return a row per kind of phase, in the order of a pass."""
    rows: dict[str, list[Slice]] = {}
    for piece in sorted(trace.slices, key=lambda piece: piece.phase.index):
        rows.setdefault(piece.phase.kind.name, []).append(piece)
    return [_summarise_kind(kind, pieces, trace) for kind, pieces in rows.items()]


def _summarise_kind(kind: str, pieces: list[Slice], trace: Trace) -> KindSummary:
    shares = trace.workers * trace.passes * 1e3  # from ns of all to us of each per token
    busy = sum(piece.ended - piece.begun for piece in pieces) / shares
    waiting = sum(piece.begun - piece.arrived for piece in pieces) / shares
    moved = sum(piece.bytes for piece in pieces) / trace.passes
    return KindSummary(kind, busy, waiting, moved, moved / max(busy, 1e-9) / 1e3)


def _track(worker: int) -> dict[str, Any]:
    named = {"name": f"worker {worker}"}
    return {"ph": "M", "name": "thread_name", "pid": 0, "tid": worker, "args": named}


def _events(piece: Slice, start: int) -> list[dict[str, Any]]:
    """Return the wait, if there was one, and the work; times in us from the first slice on."""
    phase, moved = piece.phase, {"bytes": piece.bytes, "GB/s": round(piece.gb_per_s, 3)}
    found = [(phase.name, phase.kind.name, piece.begun, piece.ended, moved)]
    if piece.begun != piece.arrived:
        found.insert(0, (f"wait for {phase.name}", "wait", piece.arrived, piece.begun, {}))
    common = {"ph": "X", "pid": 0, "tid": piece.worker}
    return [
        common
        | {"name": name, "cat": kind, "args": more}
        | {"ts": (begin - start) / 1e3, "dur": (end - begin) / 1e3}
        for name, kind, begin, end, more in found
    ]

"""How much each probe does: the full sizes for a GPU, and small ones under which the tests run the
whole flow on the emulated device."""

from __future__ import annotations

from dataclasses import dataclass

KB = 1024


@dataclass(frozen=True)
class Scale:
    """Sizes; bytes unless said otherwise."""

    emulated: bool = False
    read_bytes: int = 8 << 30
    copy_bytes: int = 4 << 30
    granule: int = 64 * KB
    rings: tuple[int, ...] = tuple(k * KB for k in (16, 32, 64, 96, 128, 160, 192, 208))
    copies: tuple[int, ...] = tuple(k * KB for k in (2, 4, 8, 16))
    blocks: tuple[int, ...] = (64, 96, 112, 120, 128, 132)
    plain_shapes: tuple[tuple[int, int], ...] = ((1024, 4), (512, 8), (1024, 8), (256, 8))
    repeats: int = 5
    watchdog_cycles: int = 4_000_000_000  # 2 s at 2 GHz
    lane_blocks: int = 16
    lanes: int = 8
    exchange_words: int = 3072  # 12 KB, the residual stream
    rounds: int = 2000
    stream_slots: int = 16
    stream_copy: int = 8 * KB
    stream_run: int = 32 << 20  # per block: 132 of them are 4 GB
    warm_cycles: int = 60_000  # 30 us for the background stream to fill the memory system
    cluster_sizes: tuple[int, ...] = (2, 4, 8, 16)
    topology_launches: int = 12
    hold_cycles: int = 40_000
    distance_pairs: int = 131
    distance_rounds: int = 400
    phase_shapes: tuple[tuple[int, int], ...] = (
        (48, 3072), (96, 3072), (192, 3072), (250, 3072), (192, 1536),
    )  # fmt: skip
    widths: tuple[int, ...] = (1, 4, 8, 16, 64)
    resident_phases: int = 60
    stream_weights: int = 4 << 30
    most_stream_phases: int = 1000
    wide_x_period: int = 384  # columns of activations kept at the largest widths
    vocabularies: tuple[int, ...] = (32_000, 128_000)
    logit_sets: int = 8
    choose_rounds: int = 1000
    pings: int = 2000
    launches: int = 1000
    matrix_sums: int = 1_250_000  # of each kind and format: 10 million in all
    litmus_rounds: int = 5000  # of each instance, in a launch
    litmus_patience: int = 20_000  # looks of a wait
    litmus_seconds: float = 2.0
    graph_nodes: int = 500
    node_work_cycles: int = 10_000

    def __post_init__(self) -> None:
        if self.stream_slots % 4 or self.stream_run % self.granule:
            raise ValueError(
                "expected slots in multiples of the 4 reading warps, runs of whole granules, got "
                f"{self.stream_slots} slots, runs of {self.stream_run}, granules of {self.granule}"
            )


FULL = Scale()

TINY = Scale(
    emulated=True,
    read_bytes=2 << 20,
    copy_bytes=1 << 20,
    granule=16 * KB,
    rings=(16 * KB, 26 * KB),
    copies=(2 * KB, 4 * KB),
    blocks=(2, 3),
    plain_shapes=((128, 4), (64, 8)),
    repeats=1,
    lane_blocks=2,
    lanes=2,
    exchange_words=48,
    rounds=12,
    stream_slots=8,
    stream_copy=2 * KB,
    stream_run=32 * KB,
    warm_cycles=1000,
    cluster_sizes=(2, 4),
    topology_launches=1,
    hold_cycles=1000,
    distance_pairs=2,
    distance_rounds=12,
    phase_shapes=((48, 3072),),
    resident_phases=2,
    most_stream_phases=2,
    stream_weights=1500 << 10,
    vocabularies=(1000,),
    logit_sets=2,
    choose_rounds=6,
    pings=20,
    launches=5,
    matrix_sums=2048,
    litmus_rounds=20,
    litmus_patience=300,
    litmus_seconds=0.0,
    graph_nodes=4,
    node_work_cycles=100,
)

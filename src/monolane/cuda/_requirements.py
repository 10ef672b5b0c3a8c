"""Whether a GPU can run a model: its format, its architecture, its memory. Nothing is allocated."""

from collections.abc import Sequence
from dataclasses import dataclass

from monolane.cuda._device import GpuInfo
from monolane.cuda._formats import find_dtype
from monolane.cuda._layout import Layout
from monolane.cuda._load import STAGING_BYTES
from monolane.cuda._plan_device import WIDTHS, lay_out_widths
from monolane.errors import BackendError
from monolane.model import ModelConfig

_WORD_BYTES = 8
# Left for the driver, modules and staging: what is asked for besides the model.
_RESERVE_BYTES = (256 << 20) + 2 * STAGING_BYTES


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes of a GPU's memory that a model, or its share of one, and its sequences take."""

    weights: int  # with their scales
    cache: int
    words: dict[str, int]  # of each buffer that blocks share
    tables: int

    @property
    def total(self) -> int:
        """With what is left for the driver and others."""
        rest = sum(self.words.values()) + self.tables + _RESERVE_BYTES
        return self.weights + self.cache + rest


def bytes_of(layouts: Sequence[Layout], slots: int) -> Bytes:
    """Return what kernels of several widths need, which share all that lies there."""
    layout, config = layouts[0], layouts[0].plan.config
    norms = 2 * config.num_layers + 1
    return Bytes(
        weights=layout.device_workers * (layout.run_bytes + 4 * layout.scale_rows),
        cache=slots * layout.kv_bytes,
        words={name: _WORD_BYTES * max(x.words[name] for x in layouts) for name in layout.words},
        tables=2 * config.vocab_size * config.hidden_size
        + 4 * layout.plan.context * config.head_dim
        + 4 * norms * config.num_lanes * config.hidden_size,
    )


def check_bytes(needed: Bytes, gpu: GpuInfo) -> None:
    """Raise BackendError unless a GPU has so much memory free."""
    if needed.total > gpu.free_bytes:
        raise BackendError(
            f"cuda: expected {needed.total / 2**30:.1f} GiB free on {gpu.name} "
            f"({needed.weights / 2**30:.1f} of weights, {needed.cache / 2**30:.1f} of cache), got "
            f"{gpu.free_bytes / 2**30:.1f} of {gpu.total_bytes / 2**30:.1f}; use a smaller context "
            "or fewer sequences, or end other programs on this GPU"
        )


def check_fit(config: ModelConfig, dtype: str, gpu: GpuInfo, *, context: int, slots: int) -> None:
    """Raise BackendError, which says why, unless a GPU can run a model with so many sequences."""
    layouts = lay_out_widths(config, gpu, find_dtype(dtype, config), context, WIDTHS)
    check_bytes(bytes_of(layouts, slots), gpu)

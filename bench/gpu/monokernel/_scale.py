"""How much each part does: the full model on a GPU, and a tiny one under which the same campaign
runs on the emulated device, so that no line of it waits for a GPU to run for the first time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.gpu.tiny import TINY
from monolane.model import ModelConfig, parse_config
from monolane.plan import named_config


def _laneformer_2b() -> ModelConfig:
    # Twice the context of the released model: so that 4,096 tokens leave room for those drawn
    # behind them. Shapes, windows and speed are the same.
    return replace(named_config("laneformer-2b"), max_positions=8192)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of a campaign; tokens unless said otherwise."""

    model: str  # the name in the records
    make_config: Callable[[], ModelConfig]
    emulated: bool = False
    context: int  # of the executors
    contexts: tuple[int, ...]  # behind which decoding is timed
    middle: int  # the one that variants and sampling are timed at
    tokens: int  # of one timed epoch
    rounds: int
    prompts: tuple[int, ...]
    widths: tuple[int, ...]  # that are timed
    checked_widths: tuple[int, ...]  # whose bits are compared; the first is the yardstick
    full_prompt: int  # beyond the sliding window
    full_drawn: int
    compared: int  # the last tokens of the prompt, whose logits are compared
    first_tokens: int  # whose logits are the first that are compared
    goldens: tuple[str, ...]
    golden_dtypes: tuple[str, ...]
    golden_widths: tuple[int, ...]
    peer_tokens: int  # of one timed run of a peer
    peer_rounds: int
    soak_tokens: int
    read_bytes: int
    rings: tuple[tuple[int, int], ...]  # bytes of ring and copy of the bandwidth kernel

    @property
    def config(self) -> ModelConfig:
        """The model's config."""
        return self.make_config()


GOLDENS = (
    "released_shape", "delay1_8lanes", "early_comm", "head_dim_96", "no_comm", "released_names",
    "replicate_head", "shared_norm_scale",
)  # fmt: skip
KB = 1024

FULL = Scale(
    model="synthetic-laneformer-2b",
    make_config=_laneformer_2b,
    context=4608,
    contexts=(128, 1024, 4096),
    middle=1024,
    tokens=192,
    rounds=5,
    prompts=(128, 1024, 4096),
    widths=(1, 4, 8, 16, 64),
    checked_widths=(1, 8, 64),
    full_prompt=2304,
    full_drawn=128,
    compared=64,
    first_tokens=8,
    goldens=GOLDENS,
    golden_dtypes=("bfloat16", "float16", "float8"),
    golden_widths=(1, 8, 64),
    peer_tokens=64,
    peer_rounds=5,
    soak_tokens=100_000,
    read_bytes=8 << 30,
    rings=((192 * KB, 16 * KB), (192 * KB, 8 * KB), (128 * KB, 8 * KB), (208 * KB, 16 * KB)),
)

REHEARSAL = Scale(
    model="rehearsal",
    make_config=lambda: parse_config(TINY | {"torch_dtype": "bfloat16"}),
    emulated=True,
    context=200,
    contexts=(8, 40),
    middle=40,
    tokens=8,
    rounds=2,
    prompts=(8, 40),
    widths=(1, 8),
    checked_widths=(1, 8),
    full_prompt=40,
    full_drawn=12,
    compared=8,
    first_tokens=6,
    goldens=("no_comm",),
    golden_dtypes=("float16", "float8"),
    golden_widths=(1,),
    peer_tokens=4,
    peer_rounds=2,
    soak_tokens=60,
    read_bytes=2 << 20,
    rings=((16 * KB, 4 * KB),),
)

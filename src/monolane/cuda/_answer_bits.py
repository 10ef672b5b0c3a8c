"""What a GPU answered, kept so that anyone can compute it again: tokens, and a sum of all logits.

    {"format": 1, "model": SHA-256 of the weights, "dtype", "lanes", "context",
     "gpu": {"name", "compute", "sms", "shared_bytes", "devices"},
     "cut": how the model was dealt out, "prompt": [...], "answer": [...], "logits": [SHA-256, ...]}

``logits`` has a sum for each token of the prompt and the answer but the last, whose logits drew
nothing. What is dealt out to how many blocks decides the order of sums, so it is kept, too.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monolane.cuda._device import GpuInfo
from monolane.cuda._executor import CudaExecutor
from monolane.cuda._layout import Layout
from monolane.cuda._plan_device import lay_out_widths
from monolane.cuda._replay import Replay
from monolane.errors import ConfigError
from monolane.executor_api import Advance
from monolane.model import Weights, cut_weights, digest

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class AnswerBits:
    """One greedy answer."""

    model: str
    dtype: str
    lanes: int
    context: int
    gpu: dict[str, Any]
    cut: dict[str, Any]
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    logits: tuple[str, ...]

    def write(self, path: Path) -> None:
        """Write the file."""
        path.write_text(json.dumps({"format": _FORMAT} | asdict(self), indent=1) + "\n")

    @staticmethod
    def read(path: Path) -> "AnswerBits":
        """Read a file; ConfigError if it is none."""
        try:
            found = json.loads(path.read_text())
            if found.pop("format") != _FORMAT:
                raise ValueError("another format")
            for name in ("prompt", "answer", "logits"):
                found[name] = tuple(found[name])
            return AnswerBits(**found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path}: expected an answer that 'monolane verify --bits FILE --record' wrote, "
                f"got {error}"
            ) from error


def record(
    executor: CudaExecutor, weights: Weights, prompt: Sequence[int], tokens: int
) -> AnswerBits:
    """Let a GPU answer greedily, then read prompt and answer once more for their logits.

    ``weights``: the executor's, as they were loaded. ConfigError if what it drew is not what these
    logits say: then a launch has other bits than another.
    """
    executor.truncate(0, 0)
    executor.start([Advance(slot=0, token_ids=tuple(prompt), budget=tokens)])
    answer: list[int] = []
    over = False
    while not over:
        over = executor.read(1.0)
        answer += [event.token_id for event in executor.take()]
    executor.truncate(0, 0)
    fed = [*prompt, *answer][:-1]
    logits = executor.logits(0, fed)
    said = logits[len(prompt) - 1 :].argmax(1).tolist()
    if said != answer:
        raise ConfigError(f"cuda: expected the answer {said} by its logits, drew {answer}")
    gpu, layout = executor.gpu, executor.layout
    return AnswerBits(
        model=digest(weights),
        dtype=executor.dtype,
        lanes=layout.plan.config.num_lanes,
        context=executor.context,
        gpu={
            "name": gpu.name,
            "compute": list(gpu.compute),
            "sms": gpu.sms,
            "shared_bytes": gpu.shared_bytes,
            "devices": layout.devices,
        },
        cut=_cut(layout),
        prompt=tuple(prompt),
        answer=tuple(answer),
        logits=tuple(map(_sum, logits)),
    )


def check(answer: AnswerBits, weights: Weights) -> Iterator[bool]:
    """Compute an answer anew; yield of each token whether its logits have the same bits.

    ConfigError if it is another model's, or if this version deals the model out otherwise.
    """
    if answer.model != (own := digest(weights)):
        raise ConfigError(
            f"bits: expected the model with weights of SHA-256 {answer.model[:16]}..., got "
            f"{own[:16]}..."
        )
    weights = cut_weights(weights, answer.lanes)
    gpu = GpuInfo(
        answer.gpu["name"], tuple(answer.gpu["compute"]), answer.gpu["sms"],
        answer.gpu["shared_bytes"], 0, 0,
    )  # fmt: skip
    layout = lay_out_widths(
        weights.config, gpu, answer.dtype, answer.context, CudaExecutor.WIDTHS,
        answer.gpu["devices"],
    )[-1]  # fmt: skip
    if answer.cut != (cut := _cut(layout)):
        raise ConfigError(f"bits: expected a version that cuts as {answer.cut}, this one: {cut}")
    replay = Replay(layout, weights)
    fed = [*answer.prompt, *answer.answer][:-1]
    for token, expected in zip(fed, answer.logits, strict=True):
        yield _sum(replay.feed(token)) == expected


def _cut(layout: Layout) -> dict[str, Any]:
    """Return what decides the order of sums, beside the model."""
    return {
        "blocks": layout.blocks,
        "warps": layout.warps,
        "splits": layout.plan.splits,
        "chunk": layout.plan.device.chunk,
        "parts": [x.parts for x in layout.tilings.values()],
        "depths": [x.depth for x in layout.tilings.values()],
    }


def _sum(row: npt.NDArray[np.float32]) -> str:
    return hashlib.sha256(np.ascontiguousarray(row, np.float32).tobytes()).hexdigest()

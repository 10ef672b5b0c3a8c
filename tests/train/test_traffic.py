"""What the kernels of a step move, against sums by hand and against torch.compile's own count."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from monolane.hf import LaneformerConfig
from monolane.hf.modeling_laneformer import LaneformerLayer, _rotary
from monolane.train._traffic import Kernels, Traffic

N = 64
SQUARE = 4 * N * N  # bytes of a matrix in float32


class Seen(TorchDispatchMode):
    """Shows a Traffic what is done."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic(0.5)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.traffic.note(func, args, kwargs, found)
        return found


def kernels_of(act: Callable[[], object]) -> Kernels:
    with Seen() as seen:
        kept = act()
        found = seen.traffic.kernels()
    del kept
    return found


@pytest.fixture
def square() -> torch.Tensor:
    return torch.ones(N, N)


def test_a_product_is_a_kernel_of_its_own(square: torch.Tensor) -> None:
    found = kernels_of(lambda: square @ torch.t(square))
    assert found == {(2 * N**3, 3 * SQUARE): 1}


def test_what_lies_between_products_reads_once_and_writes_what_outlives_it(
    square: torch.Tensor,
) -> None:
    found = kernels_of(lambda: (square.sin() + 1) * square.cos().sum(-1, keepdim=True))
    assert found == {(0, 2 * SQUARE): 1}


def test_a_result_that_is_kept_is_written(square: torch.Tensor) -> None:
    def act() -> Any:
        kept = square.sin()
        return kept, kept @ square, kept * 2

    assert kernels_of(act) == {(0, 2 * SQUARE): 2, (2 * N**3, 3 * SQUARE): 1}


def test_what_changes_in_place_is_read_and_written(square: torch.Tensor) -> None:
    assert kernels_of(lambda: square.mul_(2)) == {(0, 2 * SQUARE): 1}


def test_views_and_empty_tensors_move_nothing(square: torch.Tensor) -> None:
    def act() -> Any:
        return square[1:].view(-1), torch.empty(N), square.expand(3, N, N).transpose(0, 1)

    assert kernels_of(act) == {}


def test_what_is_spread_out_has_no_more_bytes_than_there_are(square: torch.Tensor) -> None:
    row = torch.ones(N)
    assert kernels_of(lambda: square + row) == {(0, 2 * SQUARE + 4 * N): 1}


@pytest.mark.slow
def test_a_layer_moves_what_torch_compile_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, of eight lanes that hear each other late; attention it leaves out.

    Its own count is of the kernels that it has made. It keeps for the backward pass what is
    cheapest, where autograd keeps what it is given.
    """
    metrics = pytest.importorskip("torch._inductor.metrics")
    compiled_by = pytest.importorskip("torch._inductor.compile_fx")
    config = LaneformerConfig(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=64,
        num_lanes=8,
        broadcast_delay=2,
        max_position_embeddings=256,
    )
    config._attn_implementation = "sdpa"
    layer = LaneformerLayer(config, 3).bfloat16()
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    places = torch.arange(256)

    def stream() -> torch.Tensor:
        return torch.randn(8, 2, 256, 256, dtype=torch.bfloat16, requires_grad=True)

    late, given = (stream(), stream()), [stream().detach() for _ in range(3)]
    rotary = _rotary(config, places[None])

    def run(compute: Any) -> None:
        for weight in layer.parameters():
            weight.grad = None
        torch.autograd.backward(compute(stream(), *late, rotary, None, places), given)

    ours = kernels_of(lambda: run(layer))
    moved = sum(n * size for (_, size), n in ours.items())
    monkeypatch.setattr(compiled_by.inductor_metrics_log, "isEnabledFor", lambda level: True)
    metrics.reset()
    # What comes of a cache is not counted. By torch's own patches: undoing pytest's hides a field.
    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        run(torch.compile(layer, dynamic=False))
    assert moved == pytest.approx(metrics.num_bytes_accessed, rel=0.1)

"""A step among pretended processes: what it holds and sends, against the forecast."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from monolane.errors import ConfigError
from monolane.train import RunConfig, forecast, load_config, rehearse

LAYERS = 15  # of the 2B model; with the rest of it, each is a unit of FSDP
PASSES = 2


@pytest.mark.slow
@pytest.mark.parametrize("reduce", ["step", "pass"])
def test_the_2b_recipe_on_192_gpus_takes_what_is_forecast(reduce: str) -> None:
    """The whole model and a whole batch of a device, of which a step has two here and not four."""
    settings = ["data.rows_per_step=768", f"parallel.reduce={reduce}"]
    config = load_config("laneformer_2b_pretrain", settings)
    made = forecast(config, 192, 0.25)
    found = rehearse(config, 192, rank=7)
    # The formula leaves out masks, rotary angles and softmax's sums.
    assert found.peak_bytes == pytest.approx(made.memory.total, rel=0.05)
    kept = made.memory.weights + made.memory.optimizer
    assert kept <= found.kept_bytes < kept + (1 << 20)
    units, passes = LAYERS + 1, 1 if reduce == "step" else PASSES
    # Twice each: once forward, once backward. Copies add up what their shards have put together;
    # besides, all add up the targets, the losses and the norm.
    assert found.calls == {
        "all_gather": 2 * PASSES * units,
        "reduce_scatter": passes * units,
        "all_reduce": passes * units + 3,
    }
    # 17,000 tokens/s a device were published: more than half of what is possible.
    assert 17_000 < found.tokens / found.seconds("H100") < 34_000
    parameters = made.parameters
    assert found.moved["reduce_scatter"] == passes * 4 * parameters
    assert found.moved["all_gather"] == 2 * PASSES * 2 * parameters
    assert found.moved["all_reduce"] == pytest.approx(passes * 4 * parameters / 8, rel=1e-3)


@pytest.mark.parametrize("settings", [(), ("parallel.shard=2",), ("optimizer.name=muon",)])
def test_every_process_holds_the_same(tiny: RunConfig, settings: tuple[str, ...]) -> None:
    config = load_config("tiny", [f"data.rows_per_step={tiny.data.rows_per_step}", *settings])
    found = [rehearse(config, 4, rank) for rank in (0, 3)]
    assert found[0] == found[1]
    assert 0 < found[0].kept_bytes < found[0].peak_bytes
    assert not dist.is_initialized()


def test_torch_is_left_as_it_was(tiny: RunConfig) -> None:
    resize = torch.UntypedStorage.resize_
    with pytest.raises(ConfigError, match="a multiple of the 3 processes"):
        rehearse(tiny, 3)
    rehearse(tiny, 1)
    assert torch.UntypedStorage.resize_ is resize
    assert torch.zeros(2).tolist() == [0, 0]


def test_it_is_told_in_lines(tiny: RunConfig) -> None:
    text = rehearse(replace(tiny), 2).text(1 << 30, "H100")
    assert "forecast 1.00" in text
    assert "reduce-scatter" in text
    assert "tokens/s of one H100 at most" in text


def test_not_beside_another_group(tiny: RunConfig) -> None:
    from monolane.train._process_group import open_world

    with open_world(tiny), pytest.raises(ConfigError, match="expected no open process group"):
        rehearse(tiny, 2)

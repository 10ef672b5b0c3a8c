"""The dry run: counted where it can be, held against real memory and against what was published."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from monolane.errors import ConfigError, RequestError
from monolane.hf import LaneformerForCausalLM
from monolane.train import forecast, load_config, shipped_configs
from monolane.train._attention import document_masks
from monolane.train._build import empty_model, shard_model
from monolane.train._forecast import (
    BANDWIDTHS,
    PEAKS,
    activation_bytes,
    flops_per_token,
    matrix_weights,
    mean_keys,
    peak_of,
    tensors_of,
)
from monolane.train._process_group import World, make_mesh


def test_the_2b_recipe_against_what_was_published() -> None:
    made = forecast(load_config("laneformer_2b_pretrain"), 192, mfu=0.25)
    assert made.parameters == 2_320_736_256  # 2.320 B
    assert made.config.data.tokens_per_step == 6_291_456
    # 3.9 T tokens at 192 x 17,322 tokens/s.
    assert made.rate == pytest.approx(0.25 * 989e12 / made.flops_per_token)
    assert made.seconds == pytest.approx(620_000 * 6_291_456 / (192 * made.rate))
    text = made.text()
    for part in (
        "2,320,736,256",
        "192 x H100, 24 copies of the weights over 8 each",
        "6,291,456 (1,536 rows of 4,096; 8 a device, 2 at once)",
        "That rate is an MFU of 24.5%.",
        "this phase 13.8 days, and both phases",
        "(930,000 steps, 5.85 T tokens) 20.7 days",
    ):
        assert part in text
    assert "Published" not in forecast(load_config("tiny"), 1, mfu=0.25).text()


@pytest.mark.parametrize("name", shipped_configs())
@pytest.mark.parametrize("head", ["vocab_parallel", "replicate", "lane"])
@pytest.mark.parametrize("tied", ["true", "false"])
def test_parameters_are_those_that_torch_builds(name: str, head: str, tied: str) -> None:
    settings = (f"model.lm_head_type={head}", f"model.tie_word_embeddings={tied}")
    config = load_config(name, settings)
    try:
        built = dict(empty_model(config.model).named_parameters())
    except ConfigError:
        with pytest.raises(ConfigError):
            tensors_of(config.model)
        return
    counted = {tensor.name: tensor.shape for tensor in tensors_of(config.model)}
    assert counted == {name: tuple(parameter.shape) for name, parameter in built.items()}


def test_flops_are_those_of_the_matrices_and_of_the_keys_seen() -> None:
    config = load_config("laneformer_2b_pretrain").model
    # Every weight but the embedding and the norms is in one product with each token.
    norms = 15 * 2 * 8 * 3072 + 8 * 3072
    assert matrix_weights(config) == 2_320_736_256 - 32000 * 3072 - norms
    full, window = (4096 + 1) / 2, mean_keys(4096, 2048)
    assert mean_keys(4096, 4096) == full
    assert window == sum(min(i + 1, 2048) for i in range(4096)) / 4096
    attention = 12 * 3072 * (5 * full + 10 * window)
    assert flops_per_token(config, 4096) == 6 * matrix_weights(config) + attention


def test_memory_is_shared_where_it_is_sharded() -> None:
    config = load_config("laneformer_2b_pretrain")
    one, eight = (
        forecast(
            replace(config, parallel=replace(config.parallel, shard=n, reduce="pass")), 192, 0.25
        ).memory
        for n in (1, 8)
    )
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(one, name) == 8 * getattr(eight, name)
    assert one.weights == 4 * 2_320_736_256
    assert one.optimizer == 2 * one.weights
    assert one.activations == eight.activations


@contextmanager
def _counted_bytes() -> Iterator[list[int]]:
    """Count the storages that autograd keeps for the backward pass, each once."""
    seen: dict[int, torch.Tensor] = {}
    total = [0]

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen[storage.data_ptr()] = tensor  # alive, so that no address comes twice
            total[0] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield total


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_activations_are_what_autograd_keeps(precision: str) -> None:
    # Wide lanes, as in the models that matter, and rows long enough to hide what is per row.
    settings = [f"compute.precision={precision}", "model.num_key_value_heads=4"]
    config = load_config(
        "tiny", [*settings, "model.hidden_size=128", "model.intermediate_size=512"]
    )
    model = LaneformerForCausalLM(empty_model(config.model).config)
    model = model.to(torch.bfloat16 if precision == "bfloat16" else torch.float32).train()
    ids_BT = torch.randint(0, 512, (8, 64))
    masks = document_masks(model.config, torch.zeros_like(ids_BT), flex=False)
    fixed = {p.untyped_storage().data_ptr() for p in model.parameters()}
    with _counted_bytes() as total:
        states = model.model(input_ids=ids_BT, attention_mask=masks, use_cache=False)
        assert states.last_hidden_state.requires_grad
    weights = sum(p.untyped_storage().nbytes() for p in model.parameters())
    assert len(fixed) == len(list(model.parameters()))
    got = (total[0] - weights) / ids_BT.numel()
    # What the formula leaves out: masks, rotary angles, softmax's sums, and the last norm.
    assert got == pytest.approx(activation_bytes(config), rel=0.15)


def test_a_run_that_cannot_be_is_refused() -> None:
    config = load_config("laneformer_2b_pretrain")
    with pytest.raises(ConfigError, match="a multiple of the 7 processes, got 1536"):
        forecast(config, 7, 0.25)
    with pytest.raises(ConfigError, match="a divisor of the 12 processes, got 8"):
        forecast(config, 12, 0.25)
    with pytest.raises(RequestError, match="mfu: expected more than 0 and at most 1, got 25"):
        forecast(config, 192, 25)
    with pytest.raises(RequestError, match="device: expected one of B200, H200, H100 PCIe"):
        forecast(config, 192, 0.25, "abacus")


def test_devices_are_known_by_the_names_that_torch_gives() -> None:
    assert peak_of("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_of("NVIDIA H100 PCIe") == 756e12
    assert peak_of("NVIDIA H200") == 989e12
    assert peak_of("NVIDIA L40S") == 362e12
    assert peak_of("AMD Instinct MI300X OAM") == 1307e12
    assert peak_of("abacus") is None
    assert PEAKS.keys() == BANDWIDTHS.keys()


@pytest.mark.parametrize("shard", [8, 192])
def test_the_2b_recipe_shards_evenly_over_192_processes(shard: int) -> None:
    """Sharded for real, among processes that torch only pretends; nothing has storage."""
    settings = [f"parallel.shard={shard}", "compute.compile=false"]
    config = load_config("laneformer_2b_pretrain", settings)
    dist.init_process_group("fake", store=FakeStore(), rank=7, world_size=192)
    try:
        mesh = make_mesh(torch.device("cpu"), 192, shard)
        world = World(7, 192, torch.device("cpu"), mesh, None)
        model = empty_model(config.model)
        shard_model(model, config, world)
        share = sum(parameter.to_local().numel() for parameter in model.parameters())
    finally:
        dist.destroy_process_group()
    assert share * shard == 2_320_736_256  # no process holds more than another
    assert 4 * share == forecast(config, 192, 0.25).memory.weights

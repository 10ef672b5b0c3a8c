import pytest
import torch

from monolane.hf import LaneformerConfig, LaneformerForCausalLM
from monolane.train import DemoRecipe
from monolane.train._config import Optimizer
from monolane.train._optimiser import Muon, Optimiser, orthogonalise


@pytest.mark.parametrize("shape", [(3, 8, 32), (3, 32, 8), (2, 16, 16)])
def test_singular_values_come_close_to_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    singular = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    # The iteration's fixed band; a square random matrix has some that start too near zero.
    assert singular.max() < 1.3
    assert singular.median() > 0.6


def test_each_lane_is_orthogonalised_by_itself() -> None:
    torch.manual_seed(0)
    stack = torch.randn(3, 8, 32)
    alone = torch.stack([orthogonalise(matrix[None])[0] for matrix in stack])
    torch.testing.assert_close(orthogonalise(stack), alone)


def test_the_size_of_a_gradient_does_not_matter() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(2, 8, 16)
    steps = []
    for size in (1e-3, 1e3):
        weight = torch.nn.Parameter(torch.zeros(2, 8, 16))
        weight.grad = gradient * size
        Muon([weight], lr=0.01, momentum=0.9, weight_decay=0.0).step()
        steps.append(weight.detach())
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-3, atol=1e-6)
    # RMS 0.2 times the rate, as wide as the band of the singular values allows.
    assert 0.2 * 0.01 * 0.6 < steps[0].square().mean().sqrt() < 0.2 * 0.01 * 1.3


def test_weight_decay_shrinks_what_has_no_gradient_direction() -> None:
    weight = torch.nn.Parameter(torch.ones(1, 4, 4))
    weight.grad = torch.zeros(1, 4, 4)
    Muon([weight], lr=0.5, momentum=0.9, weight_decay=0.1).step()
    torch.testing.assert_close(weight.detach(), torch.full((1, 4, 4), 0.95))


def _stepped(name: str, rate: float) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Weights before and after one step of all-zero gradients but for weight decay."""
    torch.manual_seed(0)
    model = LaneformerForCausalLM(LaneformerConfig(**DemoRecipe().config_fields()))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Optimiser(model, Optimizer(name=name, weight_decay=0.1)).step(rate)
    return {n: (before[n], p.detach()) for n, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_everything_decays_but_the_norms(name: str) -> None:
    for parameter, (before, after) in _stepped(name, rate=0.5).items():
        factor = 1.0 if "norm" in parameter else 1 - 0.5 * 0.1
        torch.testing.assert_close(after, before * factor, msg=parameter)


@pytest.mark.parametrize(("name", "lanes_by_muon"), [("adamw", False), ("muon", True)])
def test_who_updates_what(recipe: DemoRecipe, name: str, lanes_by_muon: bool) -> None:
    model = LaneformerForCausalLM(LaneformerConfig(**recipe.config_fields()))
    state = Optimiser(model, Optimizer(name=name)).state()
    slots: dict[str, set[str]] = {}
    for key in state:
        parameter, _, slot = key.rpartition(".")
        slots.setdefault(parameter, set()).add(slot)
    assert slots.keys() == {parameter for parameter, _ in model.named_parameters()}
    for parameter, found in slots.items():
        matrix = "layers" in parameter and "norm" not in parameter
        adam = {"step", "exp_avg", "exp_avg_sq"}
        assert found == ({"momentum"} if matrix and lanes_by_muon else adam)


def test_the_state_that_a_checkpoint_fills_is_the_state_of_the_first_step(
    recipe: DemoRecipe,
) -> None:
    model = LaneformerForCausalLM(LaneformerConfig(**recipe.config_fields()))
    optimiser = Optimiser(model, Optimizer())
    before = optimiser.state()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step(0.1)
    after = optimiser.state()
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)  # live, and not made anew

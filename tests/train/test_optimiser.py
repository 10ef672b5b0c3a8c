import pytest
import torch

from monolane.hf import LaneformerConfig, LaneformerForCausalLM
from monolane.train import DemoRecipe
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


def test_who_updates_what(recipe: DemoRecipe) -> None:
    model = LaneformerForCausalLM(LaneformerConfig(**recipe.config_fields()))
    adam, muon = Optimiser(model, recipe).state()
    matrices = 7 * recipe.num_hidden_layers  # wq wk wv wo w1 w2 w3
    norms = 2 * recipe.num_hidden_layers + 1
    assert len(muon["param_groups"][0]["params"]) == matrices
    tables, scales = adam["param_groups"]
    assert (len(tables["params"]), tables["weight_decay"]) == (2, recipe.weight_decay)
    assert (len(scales["params"]), scales["weight_decay"]) == (norms, 0.0)

"""One step: the same however its rows are cut, and safe where a gradient is not finite."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from monolane.data import IGNORED, Rows
from monolane.train import RunConfig
from monolane.train._inputs import open_blend, open_corpus
from monolane.train._process_group import open_world
from monolane.train._trainer import Outcome, Trainer

EPSILON = 2.0**-23  # float32


@contextmanager
def _trainer(config: RunConfig) -> Iterator[Trainer]:
    with open_world(config) as world:
        yield Trainer(config, world)


def _rows(config: RunConfig, count: int | None = None) -> Rows:
    blend = open_blend(config, open_corpus(config))
    return blend.rows(0, count or config.data.rows_per_step)


def _gradients(trainer: Trainer, rows: Rows) -> tuple[Outcome, dict[str, torch.Tensor]]:
    """Do a step whose update is caught; return its outcome and the gradients before clipping."""
    caught: dict[str, torch.Tensor] = {}

    def catch(rate: float, norm: torch.Tensor, finite: bool) -> None:
        for name, parameter in trainer.model.named_parameters():
            assert parameter.grad is not None
            caught[name] = parameter.grad.full_tensor().clone()
        trainer.optimiser.clear()

    trainer.update = catch  # type: ignore[method-assign]
    return trainer.step(0, rows), caught


def _with_passes(config: RunConfig, rows_per_pass: int) -> RunConfig:
    return replace(config, compute=replace(config.compute, rows_per_pass=rows_per_pass))


def _weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    state = trainer.model.state_dict()
    return {name: value.full_tensor().clone() for name, value in state.items()}


@pytest.mark.parametrize("rows_per_pass", [1, 4])
def test_passes_add_up_to_one_batch(tiny: RunConfig, rows_per_pass: int) -> None:
    rows = _rows(tiny)
    with _trainer(_with_passes(tiny, 8)) as trainer:
        whole, expected = _gradients(trainer, rows)
    with _trainer(_with_passes(tiny, rows_per_pass)) as trainer:
        cut, got = _gradients(trainer, rows)
    # Each number is a float32 sum over up to n = 512 tokens: in another order it differs by about
    # eps * sqrt(n) of its terms' size; 4 for the depth of the chain that it went through.
    tolerance = 4 * EPSILON * 512**0.5
    assert cut.loss == pytest.approx(whole.loss, rel=tolerance)
    assert cut.tokens == whole.tokens == int((rows.targets != IGNORED).sum())
    for name in expected:
        difference = torch.linalg.vector_norm(got[name] - expected[name])
        assert difference <= tolerance * torch.linalg.vector_norm(expected[name]), name


def test_gradients_are_added_up_once_a_step_or_after_each_pass(tiny: RunConfig) -> None:
    rows = _rows(tiny)
    found = []
    for reduce in ("step", "pass"):
        config = _with_passes(replace(tiny, parallel=replace(tiny.parallel, reduce=reduce)), 2)
        with _trainer(config) as trainer:
            found.append(_gradients(trainer, rows))
    (once, expected), (each, got) = found
    assert once == each
    for name in expected:  # of one process: the same sums in the same order
        assert torch.equal(expected[name], got[name]), name


def test_the_gradient_is_that_of_the_mean_over_all_targets(tiny: RunConfig) -> None:
    config = replace(tiny, optimizer=replace(tiny.optimizer, z_loss=0.1))
    rows = _rows(config)
    with _trainer(config) as trainer:
        outcome, got = _gradients(trainer, rows)
        ids, documents = torch.from_numpy(rows.ids), torch.from_numpy(rows.documents)
        logits = trainer.logits(ids, documents)
        targets = torch.from_numpy(rows.targets)
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        drift = logits[targets != IGNORED].logsumexp(-1).square().mean()
        (nats + 0.1 * drift).backward()
        for name, parameter in trainer.model.named_parameters():
            assert parameter.grad is not None
            expected = parameter.grad.full_tensor()
            difference = torch.linalg.vector_norm(got[name] - expected)
            assert difference <= 4 * EPSILON * 512**0.5 * torch.linalg.vector_norm(expected), name
    assert outcome.loss == pytest.approx(nats.item(), rel=1e-5)
    assert outcome.z_loss == pytest.approx(0.1 * drift.item(), rel=1e-5)


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of torch
@pytest.mark.parametrize(
    "field", ["checkpoint_activations", pytest.param("compile", marks=pytest.mark.slow)]
)
def test_how_it_is_computed_changes_little(tiny: RunConfig, field: str) -> None:
    tiny = replace(tiny, model=replace(tiny.model, num_hidden_layers=3))  # one of each kind
    rows = _rows(tiny)
    with _trainer(tiny) as trainer:
        plain, expected = _gradients(trainer, rows)
    from torch._inductor import config as compiler  # a second to import

    changed = replace(tiny, compute=replace(tiny.compute, **{field: True}))
    # A pool of compiling processes, each of which imports torch, takes 6 to 13 s of processor time.
    with compiler.patch(compile_threads=1), _trainer(changed) as trainer:
        other, got = _gradients(trainer, rows)
    tolerance = 4 * EPSILON * 512**0.5  # as above: a compiler reorders sums, no more
    assert other.loss == pytest.approx(plain.loss, rel=tolerance)
    for name in expected:
        difference = torch.linalg.vector_norm(got[name] - expected[name])
        assert difference <= tolerance * torch.linalg.vector_norm(expected[name]), name


def test_rows_are_cut_short_at_first(tiny: RunConfig) -> None:
    short = replace(tiny, schedule=replace(tiny.schedule, short_until=1, short_length=16))
    rows = _rows(short)
    cut = Rows(
        *(part.reshape(-1, 16) for part in (rows.ids, rows.targets, rows.documents)), rows.sources
    )
    with _trainer(short) as trainer:
        first, _ = _gradients(trainer, rows)
    model = replace(tiny.model)
    data = replace(tiny.data, sequence_length=16, rows_per_step=32)
    with _trainer(replace(tiny, model=model, data=data)) as trainer:
        same, _ = _gradients(trainer, cut)
    with _trainer(tiny) as trainer:
        long, _ = _gradients(trainer, rows)
    assert first.loss == pytest.approx(same.loss, rel=1e-5)
    assert first.loss != pytest.approx(long.loss, rel=1e-5)


def test_clipping_bounds_the_update(tiny: RunConfig) -> None:
    rows, moments, norms = _rows(tiny), [], []
    for clip in (1e-3, 1e3):
        config = replace(tiny, optimizer=replace(tiny.optimizer, clip_norm=clip))
        with _trainer(config) as trainer:
            norms.append(trainer.step(0, rows).norm)
            state = trainer.optimiser.state()["model.tok_embeddings.weight.exp_avg"]
            moments.append(torch.linalg.vector_norm(state.full_tensor()).item())
    assert norms[0] == norms[1] > 1e-3  # before clipping
    # AdamW keeps 1 - beta1 of the gradient that it was given.
    assert moments[0] <= 0.1 * 1e-3 * (1 + 1e-5)
    assert moments[1] > 0.01 * norms[1]


def test_a_gradient_that_is_not_finite_updates_nothing(tiny: RunConfig) -> None:
    with _trainer(tiny) as trainer:
        before = _weights(trainer)
        with torch.no_grad():
            head = trainer.model.lm_head.weight.to_local()
            kept = head.clone()
            head[0, 0, 0] = float("inf")
        outcome = trainer.step(0, _rows(tiny))
        assert not np.isfinite(outcome.norm)
        with torch.no_grad():
            head.copy_(kept)
        after = _weights(trainer)
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_the_loss_falls_with_either_optimizer(tiny: RunConfig) -> None:
    for name in ("adamw", "muon"):
        config = replace(tiny, optimizer=replace(tiny.optimizer, name=name, peak_lr=1e-2))
        with _trainer(config) as trainer:
            losses = [trainer.step(index, _rows(tiny)).loss for index in range(12)]
        # A uniform guess is ln 512 = 6.24; the corpus counts up and down.
        assert losses[0] == pytest.approx(6.24, abs=0.1)
        assert losses[-1] < losses[0] - 0.5, name


def test_a_validation_leaves_the_state_alone(tiny: RunConfig) -> None:
    rows = _rows(tiny)
    with _trainer(tiny) as trainer:
        expected = [trainer.step(index, rows).loss for index in range(3)]
    with _trainer(tiny) as trainer:
        got = []
        for index in range(3):
            got.append(trainer.step(index, rows).loss)
            trainer.evaluate(
                lambda _: trainer.logits(
                    torch.from_numpy(rows.ids), torch.from_numpy(rows.documents)
                ).sum()
            )
            assert set(trainer.tensors()) >= {"model.model.norm.scale"}
    assert got == expected

from dataclasses import replace

import numpy as np
import pytest
import torch

from monolane.train import DemoRecipe
from monolane.train._demo import new_model
from monolane.train._loop import Loop
from monolane.train._packing import Packing
from monolane.train._schedule import Schedule


def _loop(recipe: DemoRecipe, document: np.ndarray, long: bool = True) -> Loop:
    schedule = replace(Schedule.of(recipe, 8), long=8 if long else 0)
    packing = Packing([document], recipe.context, recipe.seed)
    return Loop(new_model(recipe), recipe, packing, schedule, "float32")


def _document(length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(5, 500, length).astype(np.uint16)


def _loss(recipe: DemoRecipe, rows_BT: np.ndarray) -> float:
    ids_BT = torch.from_numpy(rows_BT.astype(np.int64))
    with torch.inference_mode():
        return float(new_model(recipe)(input_ids=ids_BT, labels=ids_BT).loss)


def test_the_filling_of_a_row_does_not_count(recipe: DemoRecipe) -> None:
    document = _document(20)  # of a context of 64
    outcome = _loop(recipe, document).step(0)
    assert outcome.loss == pytest.approx(_loss(recipe, document[None]), rel=1e-5)


def test_rows_are_cut_until_the_long_stretch(recipe: DemoRecipe) -> None:
    document = _document(256)  # the four rows of one step
    rows_RC = Packing([document], recipe.context, recipe.seed).batch(0, 4)
    short = _loop(recipe, document, long=False).step(0).loss
    assert short == pytest.approx(_loss(recipe, rows_RC.reshape(8, 32)), rel=1e-5)
    long = _loop(recipe, document).step(0).loss
    assert long == pytest.approx(_loss(recipe, rows_RC), rel=1e-5)
    assert short != pytest.approx(long, rel=1e-5)


def test_the_pieces_of_a_batch_are_one_batch(recipe: DemoRecipe) -> None:
    document = _document(256)
    whole = _loop(replace(recipe, tokens_per_piece=256), document)
    pieces = _loop(replace(recipe, tokens_per_piece=64), document)
    first, second = whole.step(0), pieces.step(0)
    assert second.loss == pytest.approx(first.loss, rel=1e-5)
    assert second.norm == pytest.approx(first.norm, rel=1e-4)


def test_gradients_are_clipped_before_the_step(recipe: DemoRecipe) -> None:
    document = _document(256)
    loops = [_loop(replace(recipe, clip_norm=clip), document) for clip in (1e-3, 1e3)]
    assert loops[0].step(0).norm == pytest.approx(loops[1].step(0).norm)  # before clipping
    momenta = [loop.optimiser.state()[1]["state"][0]["momentum"].norm() for loop in loops]
    assert momenta[0] < momenta[1] / 100

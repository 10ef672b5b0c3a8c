import pytest

from monolane.train import DemoRecipe
from monolane.train import _pace as pace_module
from monolane.train._demo import new_model
from monolane.train._pace import Pace, measure_pace
from monolane.train._packing import Packing
from monolane.train._vocabulary import BOS


def test_steps_fill_the_minutes() -> None:
    recipe = DemoRecipe(long_share=0.25)
    pace = Pace("float32", short=1.0, long=3.0)
    assert pace.mean(recipe) == 1.5
    assert pace.steps(recipe, minutes=2.0) == 80
    assert pace.steps(recipe, minutes=0.001) == 1


def test_a_measurement_leaves_the_model_alone(
    recipe: DemoRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    monkeypatch.setattr(pace_module, "_PROBE_SECONDS", 0.0)
    model = new_model(recipe)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    documents = [np.full(3000, BOS, dtype=np.uint16)]
    pace = measure_pace(model, recipe, Packing(documents, recipe.context, 0), compiled=False)
    assert pace.precision == "float32"
    assert pace.short > 0
    assert pace.long > 0
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())

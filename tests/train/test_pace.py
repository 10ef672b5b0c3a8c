from pathlib import Path

import pytest

from monolane.train import DemoRecipe
from monolane.train._demo import pace as pace_module
from monolane.train._demo.material import prepare_corpus, prepare_material
from monolane.train._demo.pace import Pace, measure_pace


def test_steps_fill_the_minutes() -> None:
    recipe = DemoRecipe(long_share=0.25)
    pace = Pace("float32", short=1.0, long=3.0)
    assert pace.mean(recipe) == 1.5
    assert pace.steps(recipe, minutes=2.0) == 80
    assert pace.steps(recipe, minutes=0.001) == 1


def test_both_stretches_are_timed(
    recipe: DemoRecipe, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace_module, "_PROBE_SECONDS", 0.0)
    material = prepare_material(recipe, library)
    corpus = prepare_corpus(material, recipe, tmp_path, resume=False)
    pace = measure_pace(recipe, corpus, compiled=False)
    assert pace.precision == "float32"
    assert pace.short > 0
    assert pace.long > 0

from dataclasses import replace
from pathlib import Path

import pytest

import monolane
from monolane.errors import CheckpointError
from monolane.train import DemoRecipe, Measured
from monolane.train._demo.card import (
    Baseline,
    Half,
    Sample,
    describe_processor,
    measure_baselines,
    write_card,
)
from monolane.train._demo.material import Document
from monolane.train._evaluate import Score


@pytest.fixture
def measured() -> Measured:
    return Measured(
        recipe=DemoRecipe(seed=3),
        python="3.99.1",
        copyright="Copyright (c) 2001-2099 Python Software Foundation. All Rights Reserved.",
        corpus="cafe" * 16,
        train=Half(1500, 30_000_000, 10_000_000),
        held_out=Half(40, 600_000, 200_000),
        parameters=4_614_144,
        weight_bytes=9_234_567,
        steps=2000,
        minutes=61.25,
        threads=2,
        processor="Some CPU",
        precision="bfloat16",
        compiled=True,
        library=Score(bits=300_000.0, bytes=200_000, tokens=66_000),
        tests=Score(bits=444_444.0, bytes=400_000, tokens=134_000),
        baselines=(Baseline("xz -9e", 2.345),),
        samples=(
            Sample("def", 0.0, 0, " f(self):\n    pass\n"),
            Sample("import os\n", 0.8, 5, "```\n"),
        ),
    )


def _card(measured: Measured, folder: Path) -> str:
    write_card(measured, folder)
    return (folder / "README.md").read_text()


def test_the_card_states_what_was_measured(measured: Measured, tmp_path: Path) -> None:
    card = _card(measured, tmp_path)
    for figure in (
        "Held-out bits per byte: **1.241**",  # 744,444 bits / 600,000 bytes
        "| this model, library files | 1.500 |",
        "| this model, test files | 1.111 |",
        "| xz -9e | 2.345 |",
        "4.61 M parameters",
        "8,192,000 tokens",  # 2000 steps of 4096
        "0.8 times the training text",
        "61.2 minutes of steps (2,229 tokens/s",
        "2 threads of a shared Some CPU machine",
        "| training | 1,500 | 30,000,000 | 10,000,000 |",
        "| held out | 40 | 600,000 | 200,000 |",
        "cafe" * 16,
        "Python 3.99.1",
        "> Copyright (c) 2001-2099 Python Software Foundation. All Rights Reserved.",
        "--steps 2000 --seed 3",
        "The last 25% of the steps",
        "bfloat16 matrix\nproducts, torch.compile",
    ):
        assert figure in card


def test_another_result_is_another_card(measured: Measured, tmp_path: Path) -> None:
    worse = replace(measured, tests=replace(measured.tests, bits=500_000.0))
    assert "**1.333**" in _card(worse, tmp_path)


def test_a_half_without_files_is_left_out(measured: Measured, tmp_path: Path) -> None:
    card = _card(replace(measured, tests=Score(0.0, 0, 0)), tmp_path)
    assert "test files" not in card
    assert "**1.500**" in card


def test_the_front_matter_names_the_licence(measured: Measured, tmp_path: Path) -> None:
    front = _card(measured, tmp_path).split("---\n")[1]
    assert "license: other\nlicense_name: psf-2.0\nlicense_link: LICENSE\n" in front
    assert "- laneformer\n" in front


def test_a_remark_stands_with_the_recipe(measured: Measured, tmp_path: Path) -> None:
    card = _card(replace(measured, remark="Done on a rainy day."), tmp_path)
    assert "the norms.\n\nDone on a rainy day.\n\n| field |" in card


def test_samples_are_shown_whole(measured: Measured, tmp_path: Path) -> None:
    card = _card(measured, tmp_path)
    assert "```python\ndef f(self):\n    pass\n```\n" in card
    assert "````python\nimport os\n```\n````\n" in card  # text with a fence in it
    assert "temperature 0.8, seed 5" in card


def test_the_card_has_no_path_of_the_machine(measured: Measured, tmp_path: Path) -> None:
    card = _card(measured, tmp_path)
    assert str(tmp_path) not in card
    assert str(Path.home()) not in card


def test_the_figures_survive_on_disk(measured: Measured, tmp_path: Path) -> None:
    measured.save(tmp_path)
    assert Measured.load(tmp_path) == measured
    with pytest.raises(CheckpointError, match=r"measured\.json of a finished run, found none"):
        Measured.load(tmp_path / "nothing")


def test_the_processor_has_a_name() -> None:
    assert describe_processor().strip()


def test_baselines_compress_each_file_by_itself() -> None:
    text = "abcdefghij" * 100
    one = measure_baselines([Document("a.py", text)])
    two = measure_baselines([Document("a.py", text), Document("b.py", text)])
    assert [baseline.name for baseline in one] == ["xz -9e", "bzip2 -9"]
    # A second copy is no cheaper than the first: nothing is shared between files.
    assert one == two
    assert all(0.1 < baseline.bits_per_byte < 1.5 for baseline in one)


def test_the_shipped_card_has_the_limits_that_a_new_one_would_have(
    measured: Measured, tmp_path: Path
) -> None:
    shipped = (Path(monolane.__file__).parent / "demo" / "README.md").read_text()
    limits = [card.partition("## Limits")[2] for card in (shipped, _card(measured, tmp_path))]
    assert limits[0] == limits[1] != ""

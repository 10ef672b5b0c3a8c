"""Whatever goes wrong while a model is read names it; bugs keep their traceback."""

from pathlib import Path

import pytest

from monolane._naming import naming
from monolane.errors import CheckpointError, ConfigError

PATH = Path("folder/model")


@pytest.mark.parametrize(
    "error",
    [
        OSError(5, "Input/output error"),
        ValueError("no"),
        OverflowError("too large"),
        MemoryError(),
        MemoryError("cannot allocate 6 GiB"),
        RecursionError("too deep"),
    ],
)
def test_errors_of_reading_name_the_model(error: Exception) -> None:
    with (
        pytest.raises(CheckpointError, match="folder/model: expected a model") as told,
        naming(PATH),
    ):
        raise error
    assert str(error) in str(told.value)
    assert told.value.__cause__ is error


@pytest.mark.parametrize("error", [ConfigError("mine"), KeyError("bug"), TypeError("bug")])
def test_errors_of_ours_and_bugs_stay(error: Exception) -> None:
    with pytest.raises(type(error)) as told, naming(PATH):
        raise error
    assert told.value is error
